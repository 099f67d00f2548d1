#include "api.h"

#include <sched.h>
#include <sys/eventfd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

#include "cpu.h"
#include "flight.h"
#include "kernels.h"
#include "sampler.h"
#include "step.h"

namespace octavo {

std::string check_sampling(const OctavoBatch &, int32_t vocab);

const Kernels &kernels_of(int isa) {
    if (isa == OCTAVO_AMX) return *kernels_amx();
    return isa == OCTAVO_AVX512 ? *kernels_avx512() : *kernels_avx2();
}

int64_t attend_few_scratch(int tokens, int group, int wide) {
    // Queries, sums, 16 keys and values in floats; or sums, and queries in words with their steps.
    return 2LL * tokens * group * wide + 64LL * wide;
}

int64_t attend_many_scratch(int tokens, int group, int wide) {
    const int64_t rows = static_cast<int64_t>(tokens) * group;
    // scores, partial and whole sums, best, total and keep in floats; then weights, queries, keys, values and rows in halves.
    return rows * 64 + 2 * rows * wide + 3 * (rows + 15) + wide + (rows * 64 + rows * wide + 3LL * 64 * wide) / 2 + 64;
}

}  // namespace octavo

using namespace octavo;

struct OctavoModel {
    OctavoModel(const OctavoConfig &config, const OctavoWeights &weights, uint8_t *pool, int64_t block_bytes)
        : step(config, weights, pool, block_bytes), threads(config.threads, step.max_phases()), flight(step, threads, busy) {}
    Step step;
    ThreadPool threads;
    std::mutex busy;
    Flight flight;  // the last one, which ends before what it uses
};

namespace {

int32_t fail(char *error, int64_t size, const std::string &text) {
    std::snprintf(error, static_cast<size_t>(size), "%s", text.c_str());
    return -1;
}

std::string check_config(const OctavoConfig &c, int64_t block_bytes) {
    const struct {
        const char *name;
        int64_t value, low, high;
    } fields[] = {
        {"layers", c.layers, 1, 4096},           {"d_model", c.d_model, 2, 1 << 20},     {"kv_heads", c.kv_heads, 1, 4096},
        {"q_heads", c.q_heads, 1, 65536},        {"head_dim", c.head_dim, 2, 1024},      {"ffn", c.ffn, 1, 1 << 22},
        {"vocab", c.vocab, 1, 1 << 24},          {"format", c.format, 0, 2},             {"head_format", c.head_format, 0, 2},
        {"kv_dtype", c.kv_dtype, 0, 2},          {"block_tokens", c.block_tokens, 1, 4096}, {"num_blocks", c.num_blocks, 1, INT32_MAX},
        {"threads", c.threads, 1, 1024},         {"activation", c.activation, 0, 1},     {"isa", c.isa, 0, 3},
    };
    for (const auto &field : fields)
        if (field.value < field.low || field.value > field.high)
            return std::string(field.name) + " is " + std::to_string(field.value) + "; expected " + std::to_string(field.low) +
                   " to " + std::to_string(field.high);
    if (c.q_heads % c.kv_heads) return "q_heads is no multiple of kv_heads";
    if (c.head_dim % 2) return "head_dim is odd";
    if (c.format != OCTAVO_BF16 && c.head_dim % GROUP) return "head_dim is no multiple of 32, which int8 and int4 weights need";
    const int64_t item = c.kv_dtype == OCTAVO_KV_F32 ? 4 : c.kv_dtype == OCTAVO_KV_BF16 ? 2 : 1;
    const int64_t row = c.head_dim * item + (c.kv_dtype == OCTAVO_KV_INT8 ? 4 : 0);
    const int64_t expected = 2LL * c.layers * c.kv_heads * c.block_tokens * row;
    if (block_bytes != expected)
        return "block_bytes is " + std::to_string(block_bytes) + "; the config asks for " + std::to_string(expected);
    if (choose_isa(c.isa) == OCTAVO_AUTO) return "isa: this CPU has no AVX2 with FMA";
    return "";
}

struct EventBell : Bell {
    explicit EventBell(int fd) : fd(fd) {}
    void ring() override {
        if (fd > 0) eventfd_write(fd, 1);
    }
    int fd;
};

double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The same call on every thread.
template <typename F>
struct Everywhere : Job {
    Everywhere(int count, F call) : count(count), call(call) {}
    int phases() const override { return 1; }
    int units(int) const override { return count; }
    void work(int, int unit, int) override { call(unit); }
    int count;
    F call;
};

}  // namespace

int32_t octavo_abi() { return OCTAVO_ABI; }

int32_t octavo_isas() { return supported_isas(); }

int32_t octavo_create(const OctavoConfig *config, const OctavoWeights *weights, uint8_t *pool, int64_t block_bytes,
                      OctavoModel **out, char *error, int64_t error_size) {
    try {
        if (auto text = check_config(*config, block_bytes); !text.empty()) return fail(error, error_size, text);
        *out = new OctavoModel(*config, *weights, pool, block_bytes);
        return 0;
    } catch (const std::exception &failure) {
        return fail(error, error_size, failure.what());
    }
}

int32_t octavo_step(OctavoModel *model, const OctavoBatch *batch, char *error, int64_t error_size) {
    try {
        const std::lock_guard<std::mutex> one_at_a_time(model->busy);
        if (auto text = model->step.check(*batch); !text.empty()) return fail(error, error_size, text);
        model->step.prepare(*batch, model->threads.threads());
        EventBell bell(batch->bell);
        model->threads.run(model->step, &bell);
        return 0;
    } catch (const std::bad_alloc &) {
        return fail(error, error_size, "out of memory for this step");
    } catch (const std::exception &failure) {
        return fail(error, error_size, failure.what());
    }
}

int32_t octavo_begin(OctavoModel *model, const OctavoBatch *batch, const OctavoFlight *flight, char *error, int64_t error_size) {
    try {
        model->flight.begin(*batch, *flight);
        return 0;
    } catch (const std::bad_alloc &) {
        return fail(error, error_size, "out of memory for this step");
    } catch (const std::exception &failure) {
        return fail(error, error_size, failure.what());
    }
}

void octavo_extend(OctavoModel *model, int64_t limit) { model->flight.extend(limit); }

void octavo_halt(OctavoModel *model) { model->flight.halt(); }

int64_t octavo_taken(OctavoModel *model, int64_t seen, int32_t bell, int32_t *over, char *error, int64_t error_size) {
    EventBell(bell).ring();
    bool ended = false;
    std::string failure;
    const int64_t told = model->flight.wait(seen, ended, failure);
    *over = ended;
    return failure.empty() ? told : fail(error, error_size, failure);
}

void octavo_destroy(OctavoModel *model) {
    model->flight.halt();
    { const std::lock_guard<std::mutex> after_the_running_step(model->busy); }
    delete model;
}

int32_t octavo_isa_of(const OctavoModel *model) { return model->step.isa(); }

int32_t octavo_sample(const OctavoBatch *batch, const float *logits, int32_t vocab, int32_t wanted_isa, char *error,
                      int64_t error_size) {
    try {
        const int isa = choose_isa(wanted_isa);
        if (isa == OCTAVO_AUTO) return fail(error, error_size, "isa: this CPU has no AVX2 with FMA");
        if (auto text = check_sampling(*batch, vocab); !text.empty()) return fail(error, error_size, text);
        Buffer<float> work;
        for (int row = 0; row < batch->rows; ++row)
            sample_row(*batch, row, logits + static_cast<int64_t>(row) * vocab, vocab, -1, isa, work.ensure(sampling_work(vocab)));
        return 0;
    } catch (const std::exception &failure) {
        return fail(error, error_size, failure.what());
    }
}

double octavo_stream_bytes_per_s(const uint8_t *data, int64_t bytes, int32_t threads, int32_t isa) try {
    const Kernels &kernels = kernels_of(choose_isa(isa));
    ThreadPool pool(threads, 1);
    const int64_t piece = 1 << 18, pieces = bytes / piece;
    std::atomic<int> kept{0};
    Everywhere job(static_cast<int>(pieces), [&](int unit) { kept += kernels.read_bytes(data + unit * piece, piece) > 0; });
    const double began = seconds();
    pool.run(job);
    return static_cast<double>(pieces * piece) / (seconds() - began);
} catch (const std::exception &) {
    return 0;  // the threads could not be had
}

double octavo_peak_macs_per_s(int32_t format, int32_t threads, int32_t isa) try {
    const Kernels &kernels = kernels_of(choose_isa(isa));
    ThreadPool pool(threads, 1);
    constexpr int UNITS = 64, ITERATIONS = 2000;
    double done = 0;
    std::mutex sum;
    Everywhere job(UNITS, [&](int) {
        const double macs = kernels.burn(format, ITERATIONS);
        const std::lock_guard<std::mutex> hold(sum);
        done += macs;
    });
    const double began = seconds();
    pool.run(job);
    return done / (seconds() - began);
} catch (const std::exception &) {
    return 0;
}

// On a thread of its own: the caller's would wait for the interpreter's lock as one that nobody lets run, and whoever holds that lock
// must run. Without a thread to be had, or where the system knows no idle ones, the pages are taken as they are written, or as any thread would.
void octavo_touch(uint8_t *data, int64_t bytes) {
    constexpr int64_t PAGE = 4096;
    const auto take = [=] {
        const sched_param none{};
        sched_setscheduler(0, SCHED_IDLE, &none);
        // one write that leaves what is there, whoever else writes meanwhile
        for (int64_t at = 0; at < bytes; at += PAGE) asm volatile("lock orb $0, %0" : "+m"(data[at])::"cc");
    };
    try {
        std::thread(take).join();
    } catch (const std::system_error &) {
    }
}
