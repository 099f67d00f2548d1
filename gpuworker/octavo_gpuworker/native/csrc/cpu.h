// What this CPU and its operating system run.
#pragma once
#include "api.h"

namespace octavo {

// Bits 1 << OctavoIsa.
int supported_isas();
// The best of `supported_isas` at or below `wanted` (OCTAVO_AUTO: any), or OCTAVO_AUTO when there is none.
int choose_isa(int wanted);

}  // namespace octavo
