// A copy and its xxh3-64 in one pass: the bytes are hashed while they lie in registers. The hash is XXH3 with 64 bits and seed 0
// (Collet, xxHash 0.8, doc/xxhash_spec.md) for inputs of more than 240 bytes; what a copy without it costs is memory alone.
#include <immintrin.h>

#include <cstring>

#include "api.h"
#include "cpu.h"

namespace octavo {
namespace {

constexpr uint64_t P32_1 = 0x9E3779B1, P32_2 = 0x85EBCA77, P32_3 = 0xC2B2AE3D;
constexpr uint64_t P64_1 = 0x9E3779B185EBCA87, P64_2 = 0xC2B2AE3D27D4EB4F, P64_3 = 0x165667B19E3779F9,
                   P64_4 = 0x85EBCA77C2B2AE63, P64_5 = 0x27D4EB2F165667C5;
constexpr int64_t STRIPE = 64, STRIPES = 16, SECRET = 192;

// The default secret of the specification.
alignas(64) constexpr uint8_t secret[SECRET] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d, 0xe9,
    0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78,
    0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6,
    0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f,
    0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31,
    0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff,
    0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

uint64_t load64(const uint8_t *at) {
    uint64_t value;
    std::memcpy(&value, at, 8);
    return value;
}

uint64_t fold(uint64_t a, uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t merged(const uint64_t *acc, int64_t bytes) {
    uint64_t sum = static_cast<uint64_t>(bytes) * P64_1;
    for (int i = 0; i < 4; ++i)
        sum += fold(acc[2 * i] ^ load64(secret + 11 + 16 * i), acc[2 * i + 1] ^ load64(secret + 11 + 16 * i + 8));
    sum ^= sum >> 37;
    sum *= 0x165667919E3779F9;
    return sum ^ (sum >> 32);
}

constexpr uint64_t START[8] = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1};

// Prefetched so far ahead, which is the next page: the hardware's own prefetcher stops at each. Measured on EPYC, blocks of 360 KB:
// 22 GB/s where memcpy has 24, a copy and a hash after it 15.
constexpr int64_t AHEAD = 4096;

__attribute__((target("avx512f"), always_inline)) inline void add512(__m512i &sum, const __m512i &data, const uint8_t *with) {
    const __m512i key = _mm512_xor_si512(data, _mm512_loadu_si512(with));
    const __m512i product = _mm512_mul_epu32(key, _mm512_srli_epi64(key, 32));
    sum = _mm512_add_epi64(product, _mm512_add_epi64(sum, _mm512_shuffle_epi32(data, _MM_PERM_BADC)));
}

// Past the caches where the target allows it (16 bytes): a block is larger than what it would push out, and lines need not be read
// before they are written.
__attribute__((target("avx512f"), always_inline)) inline void put512(uint8_t *to, const __m512i &data, bool streams) {
    if (!streams) return _mm512_storeu_si512(to, data);
    auto *at = reinterpret_cast<__m128i *>(to);
    _mm_stream_si128(at, _mm512_castsi512_si128(data));
    _mm_stream_si128(at + 1, _mm512_extracti32x4_epi32(data, 1));
    _mm_stream_si128(at + 2, _mm512_extracti32x4_epi32(data, 2));
    _mm_stream_si128(at + 3, _mm512_extracti32x4_epi32(data, 3));
}

__attribute__((target("avx512f"))) uint64_t copy_avx512(uint8_t *to, const uint8_t *from, int64_t bytes) {
    __m512i acc = _mm512_loadu_si512(START);
    const __m512i prime = _mm512_set1_epi64(static_cast<int64_t>(P32_1)), turn = _mm512_loadu_si512(secret + SECRET - STRIPE);
    const int64_t blocks = (bytes - 1) / (STRIPE * STRIPES), stripes = (bytes - 1) / STRIPE;
    const bool streams = reinterpret_cast<uintptr_t>(to) % 16 == 0;
    for (int64_t stripe = 0; stripe < stripes; ++stripe) {
        const int64_t at = stripe * STRIPE, in_block = stripe % STRIPES;
        _mm_prefetch(reinterpret_cast<const char *>(from + at + AHEAD), _MM_HINT_T0);
        const __m512i data = _mm512_loadu_si512(from + at);
        put512(to + at, data, streams);
        add512(acc, data, secret + 8 * in_block);
        if (in_block == STRIPES - 1 && stripe / STRIPES < blocks) {
            const __m512i mixed = _mm512_xor_si512(_mm512_xor_si512(acc, _mm512_srli_epi64(acc, 47)), turn);
            const __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(mixed, 32), prime);
            acc = _mm512_add_epi64(_mm512_mul_epu32(mixed, prime), _mm512_slli_epi64(high, 32));
        }
    }
    _mm_sfence();
    const __m512i last = _mm512_loadu_si512(from + bytes - STRIPE);  // overlaps what is copied already
    _mm512_storeu_si512(to + bytes - STRIPE, last);
    add512(acc, last, secret + SECRET - STRIPE - 7);
    alignas(64) uint64_t lanes[8];
    _mm512_store_si512(lanes, acc);
    return merged(lanes, bytes);
}

#define LOAD256(at) _mm256_loadu_si256(reinterpret_cast<const __m256i *>(at))

__attribute__((target("avx2"), always_inline)) inline void take256(__m256i *acc, uint8_t *to, const uint8_t *from,
                                                                    const uint8_t *with, bool streams) {
    for (int half = 0; half < 2; ++half) {
        const __m256i data = LOAD256(from + 32 * half);
        if (streams) {
            auto *at = reinterpret_cast<__m128i *>(to + 32 * half);
            _mm_stream_si128(at, _mm256_castsi256_si128(data));
            _mm_stream_si128(at + 1, _mm256_extracti128_si256(data, 1));
        } else {
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(to + 32 * half), data);
        }
        const __m256i key = _mm256_xor_si256(data, LOAD256(with + 32 * half));
        const __m256i product = _mm256_mul_epu32(key, _mm256_srli_epi64(key, 32));
        acc[half] = _mm256_add_epi64(product, _mm256_add_epi64(acc[half], _mm256_shuffle_epi32(data, 0x4E)));
    }
}

__attribute__((target("avx2"))) uint64_t copy_avx2(uint8_t *to, const uint8_t *from, int64_t bytes) {
    __m256i acc[2] = {LOAD256(START), LOAD256(START + 4)};
    const __m256i prime = _mm256_set1_epi64x(static_cast<int64_t>(P32_1));
    const int64_t blocks = (bytes - 1) / (STRIPE * STRIPES), stripes = (bytes - 1) / STRIPE;
    const bool streams = reinterpret_cast<uintptr_t>(to) % 16 == 0;
    for (int64_t stripe = 0; stripe < stripes; ++stripe) {
        _mm_prefetch(reinterpret_cast<const char *>(from + stripe * STRIPE + AHEAD), _MM_HINT_T0);
        take256(acc, to + stripe * STRIPE, from + stripe * STRIPE, secret + 8 * (stripe % STRIPES), streams);
        if (stripe % STRIPES < STRIPES - 1 || stripe / STRIPES >= blocks) continue;
        for (int half = 0; half < 2; ++half) {
            const __m256i mixed = _mm256_xor_si256(_mm256_xor_si256(acc[half], _mm256_srli_epi64(acc[half], 47)),
                                                   LOAD256(secret + SECRET - STRIPE + 32 * half));
            const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), prime);
            acc[half] = _mm256_add_epi64(_mm256_mul_epu32(mixed, prime), _mm256_slli_epi64(high, 32));
        }
    }
    _mm_sfence();
    take256(acc, to + bytes - STRIPE, from + bytes - STRIPE, secret + SECRET - STRIPE - 7, false);
    uint64_t lanes[8];
    std::memcpy(lanes, acc, sizeof lanes);
    return merged(lanes, bytes);
}

}  // namespace
}  // namespace octavo

void octavo_copy_xxh3(uint8_t *const *to, const uint8_t *const *from, int64_t bytes, int64_t count, uint64_t *sums) {
    static const bool wide = octavo::choose_isa(OCTAVO_AUTO) >= OCTAVO_AVX512;  // asked once: under a hypervisor cpuid is slow
    const auto copy = wide ? octavo::copy_avx512 : octavo::copy_avx2;
    for (int64_t i = 0; i < count; ++i) sums[i] = copy(to[i], from[i], bytes);
}
