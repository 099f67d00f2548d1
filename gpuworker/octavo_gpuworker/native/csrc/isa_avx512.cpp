// The kernels of avx512. Empty where the compiler has no such instructions.
#include "kernels.h"

#ifdef __AVX512BF16__
#define ISA octavo_avx512
// clang-format off: the order matters, later files use what earlier ones define
#include "vec_avx512.h"
#include "product_avx512.h"
#include "rows.h"
#include "harvest.h"
#include "product.h"
#include "attention.h"
#include "attention_many.h"
#include "attention_avx512.h"
#include "measure.h"
// clang-format on

namespace octavo {

const Kernels *kernels_avx512() {
    static const Kernels table{"avx512",      ISA::product,    ISA::norm_row,    ISA::put_group,  ISA::put_gated,
                               ISA::add,     ISA::to_bf16,    ISA::rotate,      ISA::attend_few_wide, ISA::attend_many,
                               ISA::harvest, ISA::highest_of, ISA::first_of, ISA::read_bytes, ISA::burn};
    return &table;
}

}  // namespace octavo

#else

namespace octavo {

const Kernels *kernels_avx512() { return nullptr; }

}  // namespace octavo

#endif
