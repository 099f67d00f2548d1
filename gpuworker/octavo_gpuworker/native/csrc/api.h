// The C ABI of the native kernels: plain structs, one call per step, errors as text. Mirrored by ../abi.py.
#pragma once
#include <cstdint>

#define OCTAVO_ABI 4
#define OCTAVO_API extern "C" __attribute__((visibility("default")))

enum OctavoFormat : int32_t { OCTAVO_BF16 = 0, OCTAVO_INT8 = 1, OCTAVO_INT4 = 2 };
enum OctavoKv : int32_t { OCTAVO_KV_BF16 = 0, OCTAVO_KV_F32 = 1, OCTAVO_KV_INT8 = 2 };
enum OctavoActivation : int32_t { OCTAVO_SILU = 0, OCTAVO_GELU_TANH = 1 };
enum OctavoIsa : int32_t { OCTAVO_AUTO = 0, OCTAVO_AVX2 = 1, OCTAVO_AVX512 = 2, OCTAVO_AMX = 3 };

// Shape and flags of a model; lengths in elements.
struct OctavoConfig {
    int32_t layers, d_model, q_heads, kv_heads, head_dim, ffn, vocab, activation;
    int32_t format, head_format, kv_dtype, block_tokens, num_blocks, qk_norm, tied, threads;
    float norm_eps, attention_scale, embedding_scale;
    int32_t isa;
    int32_t deterministic;  // a token's bits depend on its own beginning alone: not on the batch, nor on how a prompt is chunked
};

// One matrix of the packed file: panels of 32 output columns (see pack.h). Null pointers where it has no such part.
struct OctavoMatrix {
    const uint8_t *data;
    const float *bias;    // one per column
    int64_t columns, depth;  // both padded to 32
};

struct OctavoLayer {
    const float *attn_norm, *q_norm, *k_norm, *mlp_norm;
    OctavoMatrix qkv, o, gate_up, down;
    int32_t window;  // 0: none
    int32_t reserved;
};

struct OctavoWeights {
    const OctavoLayer *layers;
    const float *norm;
    const float *inverse_frequencies;  // [head_dim / 2]
    const uint16_t *embedding;         // bf16 [vocab, d_model], or null when tied: then rows of `head` are read
    OctavoMatrix head;
};

// One mixed step of S sequences with T new tokens and R rows that sample. Arrays are the caller's; nothing is kept.
struct OctavoBatch {
    int32_t tokens, sequences, rows, table_stride;
    const int32_t *token_ids;     // [T]
    const int32_t *query_start;   // [S + 1]
    const int32_t *context_len;   // [S], the new tokens included
    const int32_t *block_tables;  // [S, table_stride]
    const int32_t *sample_rows;   // [R], rows of token_ids; may repeat
    // How each row draws, [R]:
    const float *temperature;
    const double *top_p, *min_p;
    const int32_t *top_k, *logprobs;
    const uint64_t *seeds;
    const int64_t *positions;
    const float *repetition, *presence, *frequency;
    const int32_t *history_start;  // [R + 1] into history; an empty span: no penalties
    const int32_t *history;
    const int32_t *prompt_len;     // [R]
    const int32_t *bias_start;     // [R + 1]
    const int32_t *bias_ids;
    const float *bias_values;
    const int32_t *grammar_rows;   // [R] index of the row's mask, or -1; null: no row has one
    const uint32_t *grammar;       // [masks, (vocab + 31) / 32]
    int32_t grammar_masks, top_stride;
    int32_t bell;  // an eventfd that is rung once all threads were told to begin; 0: none
    // Results:
    int32_t *out_tokens;       // [R]; -1: the row's logits were not finite (or NaN or infinite once edited), or nothing was allowed
    float *out_logprobs;       // [R]
    int32_t *out_top_ids;      // [R, top_stride]
    float *out_top_logprobs;   // [R, top_stride]
    float *out_logits;         // [R, vocab] raw, or null
};

// Steps of a batch one after the other, each row's token the next one to be computed: of decodes alone, one token per sequence and row,
// row for row. It goes on by itself up to `limit` steps, and ends behind a step that drew one of `stops` or a -1.
struct OctavoFlight {
    int32_t room;              // steps that `tokens` and `elapsed_ns` hold; nobody may lag further behind than that
    int32_t stop_count;
    const int32_t *stops;      // [stop_count] ascending; copied
    int32_t *tokens;           // [room, rows]: the tokens of step n at n % room
    int64_t *elapsed_ns;       // [room]: how long it took
    int64_t limit;             // at least one step runs
    int32_t waits;             // 1: at the limit it waits to be let go on; 0: there it is over
    const int32_t *hold;       // no further step begins while this is not 0; anybody may write it
};

struct OctavoModel;

OCTAVO_API int32_t octavo_abi();
// Bits 1 << OctavoIsa of what this CPU and its operating system run.
OCTAVO_API int32_t octavo_isas();
// All return 0, or -1 with one line in `error`.
OCTAVO_API int32_t octavo_create(const OctavoConfig *, const OctavoWeights *, uint8_t *pool, int64_t block_bytes,
                                 OctavoModel **out, char *error, int64_t error_size);
OCTAVO_API int32_t octavo_step(OctavoModel *, const OctavoBatch *, char *error, int64_t error_size);
// A flight on a thread of its own; the arrays of the batch must stay, and token_ids, context_len and positions are written there for each
// next step. -1: the one before is not over. The step itself may fail: `octavo_taken` says so.
OCTAVO_API int32_t octavo_begin(OctavoModel *, const OctavoBatch *, const OctavoFlight *, char *error, int64_t error_size);
// Up to so many steps in all, those that are over included.
OCTAVO_API void octavo_extend(OctavoModel *, int64_t limit);
// No further step begins.
OCTAVO_API void octavo_halt(OctavoModel *);
// Rings the eventfd `bell`, unless it is 0, and waits until more than `seen` steps are done and the next one has begun, or the flight is
// over (`*over`): how many steps may be taken. -1: none is left, and the next one failed.
OCTAVO_API int64_t octavo_taken(OctavoModel *, int64_t seen, int32_t bell, int32_t *over, char *error, int64_t error_size);
OCTAVO_API void octavo_destroy(OctavoModel *);
OCTAVO_API int32_t octavo_isa_of(const OctavoModel *);
// Sampling alone, for tests and for logits that another backend made: logits [R, vocab].
OCTAVO_API int32_t octavo_sample(const OctavoBatch *, const float *logits, int32_t vocab, int32_t isa, char *error,
                                 int64_t error_size);
// Packs rows [0, rows) of a float32 matrix [rows, depth] into columns column0.. of a panelled matrix. -2: a value that int8 or
// int4 cannot keep: not finite, or with a scale beyond float16.
OCTAVO_API int64_t octavo_packed_bytes(int32_t format, int64_t columns, int64_t depth);
OCTAVO_API int32_t octavo_pack(int32_t format, const float *source, int64_t rows, int64_t depth, int64_t column0,
                               int64_t columns, int64_t padded_depth, uint8_t *data);
// Raw GGUF blocks of type 2 (Q4_0) or 3 (Q4_1) into int4 panels, without loss.
OCTAVO_API int32_t octavo_pack_gguf_int4(int32_t type, const uint8_t *source, int64_t rows, int64_t depth,
                                         int64_t column0, int64_t columns, int64_t padded_depth, uint8_t *data);
// The same blocks into int8 panels whose steps are whole parts of theirs: Q4_0 without loss but for float16's rounding of the step,
// Q4_1 with what the offset leaves over. -2 as above.
OCTAVO_API int32_t octavo_pack_gguf_int8(int32_t type, const uint8_t *source, int64_t rows, int64_t depth,
                                         int64_t column0, int64_t columns, int64_t padded_depth, uint8_t *data);
// The inverse of packing, float32 [columns, depth]: the oracle of the tests.
OCTAVO_API void octavo_unpack(int32_t format, const uint8_t *data, int64_t columns, int64_t depth, float *out);
// Measurements of this machine with `threads` threads: bytes/s of streaming reads, and multiply-adds/s of the format's product; 0
// where these threads cannot be had.
OCTAVO_API double octavo_stream_bytes_per_s(const uint8_t *data, int64_t bytes, int32_t threads, int32_t isa);
OCTAVO_API double octavo_peak_macs_per_s(int32_t format, int32_t threads, int32_t isa);
// `count` copies of `bytes` (more than 240) each; sums[i] is the xxh3-64 of what to[i] has now.
OCTAVO_API void octavo_copy_xxh3(uint8_t *const *to, const uint8_t *const *from, int64_t bytes, int64_t count, uint64_t *sums);
// Has the system back [data, data + bytes) with memory, a page after the other, and changes nothing; others may read and write there.
OCTAVO_API void octavo_touch(uint8_t *data, int64_t bytes);
