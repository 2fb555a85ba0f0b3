/* Sums over a row in one fixed order: runs of numbers in float, lane by lane, and the runs in double. */
#ifndef AIE_SUMS_H
#define AIE_SUMS_H

#include "simd.h"

enum { SUM_RUN = 64 }; /* vectors: few enough that floats lose nothing that matters */

/* Sum of x - shift, or of its squares. */
ALWAYS_INLINE double row_sum(const float *x, int width, float shift, const int squares) {
    double total = 0.0;
    int i = 0;
    while (i + VW <= width) {
        vf sum = vf_set(0.0f);
        for (int end = i + SUM_RUN * VW; i + VW <= width && i < end; i += VW) {
            vf v = vf_load(x + i) - shift;
            sum = squares ? vf_fma(v, v, sum) : sum + v;
        }
        for (int lane = 0; lane < VW; lane++) total += sum[lane];
    }
    for (; i < width; i++) {
        float v = x[i] - shift;
        total += squares ? (double)v * v : v;
    }
    return total;
}

/* In two passes, since the sum of large numbers loses the digits of small differences. */
ALWAYS_INLINE float row_mean(const float *x, int width) {
    float near = (float)(row_sum(x, width, 0.0f, 0) / width);
    return (float)(near + row_sum(x, width, near, 0) / width);
}

#endif
