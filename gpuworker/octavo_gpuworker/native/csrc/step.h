// Step: one mixed batch as a Job of phases. Per layer: norm, QKV + rotation + KV write, attention, output projection + residual,
// norm, gate/up + activation, down + residual; then final norm, head, sampling.
#pragma once
#include <atomic>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "kernels.h"
#include "pool.h"

namespace octavo {

// A buffer on a cache line's boundary that only grows; its old content is lost when it does.
template <typename T>
class Buffer {
  public:
    T *ensure(int64_t count) {
        if (count > capacity_) {
            capacity_ = count + count / 4 + 64;
            data_.reset(static_cast<T *>(::operator new(sizeof(T) * capacity_, std::align_val_t(64))));
        }
        return data_.get();
    }
    T *get() const { return data_.get(); }

  private:
    struct Free {
        void operator()(T *p) const { ::operator delete(p, std::align_val_t(64)); }
    };
    std::unique_ptr<T, Free> data_;
    int64_t capacity_ = 0;
};

// Memory of an Activations of some rows.
class ActivationBuffer {
  public:
    void ensure(int format, int64_t rows, int64_t depth);
    Activations view;

  private:
    Buffer<uint16_t> bf16_;
    Buffer<int8_t> codes_;
    Buffer<float> scales_, sums_;
    Buffer<int32_t> comp_;
};

constexpr int64_t ROW_BLOCK = 192;   // rows of one unit: with 1,536 inputs 590 KB of activations, inside a second cache of 1 MB
constexpr int64_t NORM_ROWS = 8;     // rows of one unit of a norm
constexpr int64_t OWN_NORM = 4;      // up to so many rows every thread norms them itself, which saves a barrier
constexpr int64_t ROWS_AHEAD = 16;   // of the residual stream, asked for beside the one that is added to: the hardware foresees none beyond a page
constexpr int64_t HEAD_PANELS = 8;   // panels of one unit of the head
constexpr int64_t KEPT_OF_ROW = 8192, KEPT_OF_PART = 512;  // candidates that there is room for, of a row and of a thread's part of it
constexpr int LOGITS_AFTER_A_MISS = 32;  // so many steps leave all logits once one had to make some again: 2.9 ms, leaving them costs 0.1
constexpr int ORDERED_ROWS = 32;     // up to so many rows are sampled in the order of their candidates
constexpr int64_t AHEAD_BYTES = 1 << 16;  // of the weights of a later phase, asked for by a thread that waits

enum class PhaseKind { embed, attn_norm, qkv, attend, gather, o, mlp_norm, gate_up, down, final_norm, head, sample };

struct PhaseOf {
    PhaseKind kind;
    int layer;
    int units;
};

// One unit of attention: query tokens of a sequence, and for few queries a span of keys of one or all KV heads.
struct AttendUnit {
    int sequence, kv_head, heads, token0, tokens;
    int first, last;        // keys; of few queries
    int split, splits;      // splits 0: many queries
    int problem;            // index of the counter that its splits share
    int64_t part;           // row of the partial results, [heads, tokens * group]
};

class Step : public Job {
  public:
    Step(const OctavoConfig &, const OctavoWeights &, uint8_t *pool, int64_t block_bytes);
    // Empty, or what is wrong with the batch: nothing was touched then.
    std::string check(const OctavoBatch &) const;
    void prepare(const OctavoBatch &, int threads);

    int phases() const override { return static_cast<int>(phases_.size()); }
    int units(int phase) const override { return phases_[phase].units; }
    void work(int phase, int unit, int thread) override;
    bool neighbours(int phase) const override { return weights_of(phase).matrix != nullptr; }
    Ahead ahead(int phase, int thread) const override;
    int max_phases() const { return config_.layers * 8 + 8; }
    int isa() const { return isa_; }

  private:
    // Rows and columns of one unit of a product.
    struct Tile {
        int64_t row, rows, item;
    };
    // Rows, panels and columns of one unit of the head.
    struct HeadTile {
        int64_t row, rows, panel, panels, column, columns;
    };
    // What a phase multiplies with, and how many panels of it one unit takes; null where there is none.
    struct Weights {
        const OctavoMatrix *matrix;
        int64_t panels;
        int format;
    };
    // Where a token's keys and values go.
    struct KvPlace {
        uint8_t *block;
        int64_t slot;
    };
    struct Thread {
        Buffer<float> tile, scratch;
        std::vector<Harvest> found;  // of each row; counted by each thread for itself: an atomic would wait for the logits to be written
        Buffer<float> kept_values, logits;
        Buffer<int32_t> kept_ids, whole_units;
        std::vector<const Harvest *> parts;
        ActivationBuffer normed;
        int normed_phase = -1;
    };

    void plan_phases();
    Weights weights_of(int phase) const;
    void plan_attention();
    void plan_decodes(int sequence, int first_token, int new_tokens, bool whole, int64_t &problems, int64_t &parts);
    void plan_prefill(int sequence, int new_tokens);
    int decodes_of(int sequence) const;
    Tile tile_of(int unit, int64_t rows, int64_t items) const;
    void place_tokens();
    int row_blocks(int64_t rows) const;
    // Residual stream and attention output of a layer: of all tokens, or of the rows that sample once the others ended.
    bool narrowed(int layer) const { return compact_ && layer == config_.layers - 1; }
    float *residual(int layer) const { return narrowed(layer) ? sampled_x_.get() : x_.get(); }
    int64_t rows_of(int layer) const { return narrowed(layer) ? batch_.rows : batch_.tokens; }
    const Activations &normed(int phase, const float *x, const float *weight, int64_t rows, int format, Thread &);
    void embed(int unit);
    void norm(int unit, const float *x, const float *weight, int64_t rows, int format);
    void embed_row(int64_t row);
    void qkv(int phase, int layer, int unit, Thread &);
    void write_head(int layer, int64_t head, int64_t row, float *values);
    void write_kv(int layer, uint8_t *block, int64_t slot, const float *values);
    void attend(int layer, int unit, Thread &);
    void attend_few(const AttendUnit &, AttentionInput, Thread &);
    void merge(const AttendUnit &, Thread &);
    void put_attended(int64_t row, int64_t head, const float *values);
    void gather(int unit);
    void add_product(const Activations &, const OctavoMatrix &, const Tile &, float *residual, Thread &);
    void o(int layer, int unit, Thread &);
    void gate_up(int phase, int layer, int unit, Thread &);
    void down(int layer, int unit, Thread &);
    void plan_sampling();
    void head(int phase, int unit, Thread &);
    void make_room(Thread &) const;
    HeadTile head_tile(int unit) const;
    const float *head_product(int phase, const HeadTile &, Thread &);
    void harvest(int64_t row, const HeadTile &, const float *values, float best, Harvest &);
    float *left_of(int64_t row) { return (batch_.out_logits ? batch_.out_logits : logits_.get()) + row * config_.vocab; }
    const float *head_unit(int64_t row, int64_t item, Thread &);
    const float *logits_of(int64_t row, Thread &);
    struct FoundRow;
    int sampled_row(int unit) const;
    void sample(int row, Thread &);

    const OctavoConfig config_;
    std::vector<OctavoLayer> layers_;
    OctavoWeights weights_;
    uint8_t *pool_;
    int64_t block_bytes_;
    int isa_;
    const Kernels &kernels_;
    int64_t wide_;       // head_dim padded to a panel
    int64_t kv_layer_bytes_, kv_values_bytes_;

    OctavoBatch batch_{};
    bool compact_ = false;
    std::vector<PhaseOf> phases_;
    std::vector<AttendUnit> attends_;
    std::vector<int32_t> sequence_of_;
    std::vector<KvPlace> kv_places_;
    std::unique_ptr<std::atomic<int>[]> finished_;
    int64_t finished_capacity_ = 0;
    std::vector<bool> plain_;  // rows that need only their largest logit
    std::vector<bool> harvested_;  // rows of which the head takes what the sampler needs
    std::vector<float> reaches_;   // how far below its best one, over the temperature, the head looks for a row's candidates
    std::vector<bool> written_;    // rows of which the head leaves the logits
    bool any_harvested_ = false;
    int logits_for_ = 0;           // steps for which logits are left though they are hardly ever looked at
    std::atomic<bool> missed_{false};
    std::vector<std::atomic<float>> seen_;  // the largest logit of a row so far, or a little less
    Buffer<float> x_, sampled_x_, cos_, sin_, part_out_, part_best_, part_total_, logits_;
    Buffer<uint16_t> q_;
    ActivationBuffer normed_, attended_, sampled_attended_, gated_;
    std::vector<Thread> threads_;
};

}  // namespace octavo
