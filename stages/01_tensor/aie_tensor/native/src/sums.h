/* Sums over a row in one fixed order: each lane in float, the lanes in double. */
#ifndef AIE_SUMS_H
#define AIE_SUMS_H

#include "simd.h"

/* Sum of x - shift, or of its squares. */
ALWAYS_INLINE double row_sum(const float *x, int width, float shift, const int squares) {
    vf sum = vf_set(0.0f);
    double total = 0.0;
    int i = 0;
    for (; i + VW <= width; i += VW) {
        vf v = vf_load(x + i) - shift;
        sum = squares ? vf_fma(v, v, sum) : sum + v;
    }
    for (int lane = 0; lane < VW; lane++) total += sum[lane];
    for (; i < width; i++) {
        float v = x[i] - shift;
        total += squares ? (double)v * v : v;
    }
    return total;
}

#endif
