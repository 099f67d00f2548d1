#include <immintrin.h>
__m512 f(__m512 a, __m512bh b) { return _mm512_dpbf16_ps(a, b, b); }
