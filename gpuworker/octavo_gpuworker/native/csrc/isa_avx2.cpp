// The kernels of avx2.
#define ISA octavo_avx2
// clang-format off: the order matters, later files use what earlier ones define
#include "vec_avx2.h"
#include "product_avx2.h"
#include "rows.h"
#include "harvest.h"
#include "product.h"
#include "attention_many.h"
#include "measure.h"
// clang-format on

namespace octavo {

const Kernels *kernels_avx2() {
    static const Kernels table{"avx2",      ISA::product,    ISA::norm_row,    ISA::put_group,  ISA::put_gated,
                               ISA::add,     ISA::to_bf16,    ISA::rotate,      ISA::attend_few, ISA::attend_many,
                               ISA::harvest, ISA::highest_of, ISA::first_of, ISA::read_bytes, ISA::burn};
    return &table;
}

}  // namespace octavo
