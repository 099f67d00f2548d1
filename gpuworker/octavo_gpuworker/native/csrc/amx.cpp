// The kernels of AMX: bf16 products of 4 rows and more on tiles, those of attention over many queries among them; everything else is
// AVX-512's. Empty where the compiler has no such instructions.
#include "kernels.h"

#if defined(__AVX512BF16__) && ((defined(__AMX_TILE__) && defined(__AMX_BF16__)) || defined(OCTAVO_EMULATE_TILES))
#define ISA octavo_amx
// clang-format off: the order matters, later files use what earlier ones define
#include "vec_avx512.h"
#include "rows.h"
#include "product_amx.h"
#include "attention_many.h"
// clang-format on

namespace octavo {

const Kernels *kernels_amx() {
    static const Kernels table = [] {
        Kernels kernels = *kernels_avx512();
        kernels.name = "amx";
        kernels.product = ISA::product;
        kernels.attend_many = ISA::attend_many;
        return kernels;
    }();
    return &table;
}

}  // namespace octavo

#ifdef OCTAVO_EMULATE_TILES
#include <cstdio>

// A product by the emulated tiles, for tests: as Kernels::product of bf16. -1: what a real one would have faulted on, in `error`.
OCTAVO_API int32_t octavo_emulated_product(const uint16_t *x, int64_t row0, int64_t rows, const uint8_t *panels_data, int64_t columns,
                                           int64_t depth, int64_t panel0, int64_t panels, float *out, int64_t stride, char *error,
                                           int64_t error_size) try {
    octavo::Activations from;
    from.bf16 = const_cast<uint16_t *>(x);
    from.depth = depth;
    ISA::product(OCTAVO_BF16, from, row0, rows, {panels_data, nullptr, columns, depth}, panel0, panels, out, stride);
    if (ISA::tile_registers().configured) throw std::logic_error("the tiles were not released");
    return 0;
} catch (const std::exception &fault) {
    std::snprintf(error, static_cast<size_t>(error_size), "%s", fault.what());
    return -1;
}

// What LDTILECFG says of these 64 bytes: 0, or -1 with its reason.
OCTAVO_API int32_t octavo_emulated_config(const uint8_t *bytes, char *error, int64_t error_size) try {
    ISA::TileConfig config;
    std::memcpy(&config, bytes, sizeof config);
    ISA::configure_tiles(config);
    ISA::release_tiles();
    return 0;
} catch (const std::exception &fault) {
    std::snprintf(error, static_cast<size_t>(error_size), "%s", fault.what());
    return -1;
}
#endif

#else

namespace octavo {

const Kernels *kernels_amx() { return nullptr; }

}  // namespace octavo

#endif
