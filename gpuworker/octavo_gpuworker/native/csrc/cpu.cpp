#include "cpu.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels.h"

namespace octavo {
namespace {

constexpr int ARCH_REQ_XCOMP_PERM = 0x1023;
constexpr int XFEATURE_XTILEDATA = 18;

bool has_bit(unsigned word, int bit) { return word >> bit & 1; }

uint64_t enabled_state() {
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return static_cast<uint64_t>(high) << 32 | low;
}

// Linux gives a process the tile registers only after it has asked, and refuses them where a signal's stack is too small for them.
bool tiles_granted() {
#ifdef OCTAVO_EMULATE_TILES
    return true;
#else
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#endif
}

bool has_tiles(unsigned features, uint64_t state) {
#ifdef OCTAVO_EMULATE_TILES
    return features + state > 0;
#else
    return has_bit(features, 22) && has_bit(features, 24) && (state >> 17 & 3) == 3;
#endif
}

}  // namespace

int supported_isas() {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    const bool fma = has_bit(c, 12), xsave = has_bit(c, 27), f16c = has_bit(c, 29);
    if (!fma || !xsave || !f16c || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    const uint64_t state = enabled_state();
    if (!has_bit(b, 5) || (state & 0x6) != 0x6) return 0;
    int found = 1 << OCTAVO_AVX2;
    const bool avx512 = has_bit(b, 16) && has_bit(b, 17) && has_bit(b, 30) && has_bit(b, 31) && (state & 0xe0) == 0xe0;
    const bool vnni = has_bit(c, 11), amx = has_tiles(d, state);
    unsigned a1 = 0, b1, c1, d1;
    __get_cpuid_count(7, 1, &a1, &b1, &c1, &d1);
    if (avx512 && vnni && has_bit(a1, 5) && kernels_avx512()) {
        found |= 1 << OCTAVO_AVX512;
        if (amx && kernels_amx() && tiles_granted()) found |= 1 << OCTAVO_AMX;
    }
    return found;
}

int choose_isa(int wanted) {
    const int found = supported_isas();
    for (int isa = wanted == OCTAVO_AUTO ? OCTAVO_AMX : wanted; isa > OCTAVO_AUTO; --isa)
        if (found >> isa & 1) return isa;
    return OCTAVO_AUTO;
}

}  // namespace octavo
