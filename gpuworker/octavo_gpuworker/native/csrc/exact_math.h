// exp, log and the masses of weights in separate float32 multiplications and additions, each of which IEEE 754 rounds in one way
// only; include it only in units compiled without contraction of a * b + c. ../../masses.py and ../../philox.py are the twins.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace octavo {

constexpr float HALF_STEP = 1.0f / 33554432.0f;  // 2^-25
constexpr double MASS_ONE = 1099511627776.0;     // 2^40: weights are summed as whole numbers, in any order
constexpr float MASS_HALF = 1048576.0f;          // 2^20
constexpr float MASSLESS = -28.0f;               // exp of less is below 2^-40: no mass

// Cephes' expf for x <= 0; 0 below -87.
__attribute__((always_inline)) inline float exp_exact(float x) {
    const float n = std::nearbyint(x * 1.44269504088896341f);
    const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    const float y = (p * (r * r) + r) + 1.0f;
    const int32_t bits = (static_cast<int32_t>(n < -127.0f ? -127.0f : n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, 4);
    return x < -87.0f ? 0.0f : y * power;
}

// Cephes' logf for normal x > 0.
inline float log_exact(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, 4);
    const int32_t exponent = (bits >> 23) - 126, mantissa = (bits & 0x7fffff) | 0x3f000000;
    float m;
    std::memcpy(&m, &mantissa, 4);
    const bool small = m < 0.707106781186547524f;
    const float e = static_cast<float>(small ? exponent - 1 : exponent);
    m = small ? (m + m) - 1.0f : m - 1.0f;
    const float z = m * m;
    float p = 7.0376836292e-2f;
    p = p * m + -1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m + -1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m + -1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m + -2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    float y = (p * m) * z;
    y = y + e * -2.12194440e-4f;
    y = y - 0.5f * z;
    return (m + y) + e * 0.693359375f;
}

inline int64_t mass_of(float weight) { return static_cast<int64_t>(static_cast<double>(weight) * MASS_ONE); }

inline float gumbel_of(float u) { return -log_exact(-log_exact(u)); }

}  // namespace octavo
