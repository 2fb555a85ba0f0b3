/* Functions of one vector that models need beyond vf_exp of simd.h. Coefficients of tanh: the Cephes library's single
 * precision tanhf (Moshier), good to about one unit in the last place. NaN goes through all of them. */
#ifndef AIE_VECTOR_MATH_H
#define AIE_VECTOR_MATH_H

#include "simd.h"

ALWAYS_INLINE vf vf_abs(vf x) { return (vf)((vi)x & 0x7fffffff); }
ALWAYS_INLINE vf vf_copysign(vf size, vf sign) { return (vf)((vi)vf_abs(size) | ((vi)sign & (vi)vf_set(-0.0f))); }

/* c[0] x^(n-1) + ... + c[n-1] */
ALWAYS_INLINE vf vf_polynomial(const int n, const float *c, vf x) {
    vf sum = vf_set(c[0]);
    UNROLL for (int i = 1; i < n; i++) sum = vf_fma(sum, x, vf_set(c[i]));
    return sum;
}

/* e^x for x <= 0, as softmax needs it: vf_exp without what only larger x need. Below -104 it is exactly 0. */
ALWAYS_INLINE vf vf_exp_down(vf x) {
    vf power;
    vi n;
    vf p = exp_parts(vf_max(vf_set(-104.0f), x), &power, &n); /* NaN stays */
#if VW == 16
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)power);
#else
    return times_power(p, n);
#endif
}

/* Across the lanes by halves, which is quicker than one after another. */
ALWAYS_INLINE float vf_top(vf v) {
#if VW == 16
    return _mm512_reduce_max_ps((__m512)v);
#else
    UNROLL for (int half = VW / 2; half > 0; half /= 2)
        UNROLL for (int i = 0; i < half; i++) v[i] = v[i + half] > v[i] ? v[i + half] : v[i];
    return v[0];
#endif
}

ALWAYS_INLINE float vf_total(vf v) {
#if VW == 16
    return _mm512_reduce_add_ps((__m512)v);
#else
    UNROLL for (int half = VW / 2; half > 0; half /= 2) UNROLL for (int i = 0; i < half; i++) v[i] += v[i + half];
    return v[0];
#endif
}

ALWAYS_INLINE vf vf_sigmoid(vf x) { return 1.0f / (1.0f + vf_exp(-x)); }

/* Near zero by a polynomial, since 1 - 2 / (e^2x + 1) would lose the digits of a small result. */
ALWAYS_INLINE vf vf_tanh(vf x) {
    static const float c[] = {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f};
    vf size = vf_abs(x), square = x * x;
    vf near = vf_fma(vf_polynomial(5, c, square) * square, x, x);
    vf far = vf_copysign(1.0f - 2.0f / (vf_exp(size + size) + 1.0f), x);
    return vf_select(size < 0.625f, near, far);
}

/* 1 - erf(x) for x >= 0 = e^(-x^2) t p(t) with t = 1 / (1 + 0.45 x): in t the rest is so smooth that one polynomial
 * (fitted at Chebyshev's points, good to 4e-8 of the result) serves from 0 to infinity. */
ALWAYS_INLINE vf vf_erfc(vf x) {
    static const float c[] = {-4.169524568e-2f, 1.919335757e-1f, -3.026960296e-1f, 1.443243511e-1f, -2.337396682e-2f,
                              1.202655680e-1f, 1.751967646e-1f, 2.282766692e-1f, 2.538829668e-1f, 2.538853230e-1f};
    vf t = 1.0f / vf_fma(x, vf_set(0.45f), vf_set(1.0f));
    return vf_exp(-x * x) * t * vf_polynomial(10, c, t);
}

/* x times the normal distribution function of x; for negative x from the tail, so that nothing cancels. */
ALWAYS_INLINE vf vf_gelu(vf x) {
    vf tail = 0.5f * vf_erfc(vf_abs(x) * 0.70710678118654752f);
    return x * vf_select(x < 0.0f, tail, 1.0f - tail);
}

ALWAYS_INLINE vf vf_gelu_tanh(vf x) {
    vf inner = 0.79788456080286536f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.0f + vf_tanh(inner));
}

/* Vectors of which perhaps only the first `left` numbers exist. */
ALWAYS_INLINE vf load_part(const float *p, int left) {
    float part[VW] = {0};
    if (left >= VW) return vf_load(p);
    memcpy(part, p, sizeof(float) * (size_t)left);
    return vf_load(part);
}

ALWAYS_INLINE void store_part(float *p, vf v, int left) {
    float part[VW];
    if (left >= VW) {
        vf_store(p, v);
        return;
    }
    vf_store(part, v);
    memcpy(p, part, sizeof(float) * (size_t)left);
}

#endif
