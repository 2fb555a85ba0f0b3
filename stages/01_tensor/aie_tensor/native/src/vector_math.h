/* Functions of one vector that models need beyond vf_exp of simd.h. Coefficients: the Cephes library's single precision
 * tanhf, erff and erfcf (Moshier), each good to about one unit in the last place. NaN goes through all of them. */
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
    const vf shift = vf_set(12582912.0f);
    x = vf_max(vf_set(-104.0f), x); /* NaN stays */
    vf rounded = vf_fma(x, vf_set(1.44269504088896341f), shift);
    vi n = (vi)rounded - (vi)shift;
    rounded -= shift;
    vf r = vf_fma(rounded, vf_set(-0.693359375f), x);
    r = vf_fma(rounded, vf_set(2.12194440e-4f), r);
    vf p = vf_fma(vf_set(1.9875691500e-4f), r, vf_set(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set(5.0000001201e-1f));
    p = vf_fma(p, r * r, r) + 1.0f;
#if VW == 16
    (void)n;
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)rounded);
#else
    vi half = n >> 1;
    return p * (vf)((half + 127) << 23) * (vf)((n - half + 127) << 23);
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

/* 1 - erf(x) for x >= 1 */
ALWAYS_INLINE vf vf_erfc_tail(vf x) {
    static const float below_two[] = {2.326819970068386e-2f, -1.387039388740657e-1f, 3.687424674597105e-1f,
                                      -5.824733027278666e-1f, 6.210004621745983e-1f, -4.944515323274145e-1f,
                                      3.404879937665872e-1f, -2.741127028184656e-1f, 5.638259427386472e-1f};
    static const float beyond[] = {-1.047766399936249e+1f, 1.297719955372516e+1f, -7.495518717768503e+0f,
                                   2.921019019210786e+0f, -1.015265279202700e+0f, 4.218463358204948e-1f,
                                   -2.820767439740514e-1f, 5.641895067754075e-1f};
    vf inverse = 1.0f / x, square = inverse * inverse;
    vf p = vf_select(x < 2.0f, vf_polynomial(9, below_two, square), vf_polynomial(8, beyond, square));
    return vf_exp(-x * x) * inverse * p;
}

/* x times the normal distribution function of x; for negative x from the tail, so that nothing cancels. */
ALWAYS_INLINE vf vf_gelu(vf x) {
    static const float c[] = {7.853861353153693e-5f, -8.010193625184903e-4f, 5.188327685732524e-3f, -2.685381193529856e-2f,
                              1.128358514861418e-1f, -3.761262582423300e-1f, 1.128379165726710e+0f};
    vf z = x * 0.70710678118654752f, size = vf_abs(z), half = x * 0.5f;
    vf near = vf_fma(half, z * vf_polynomial(7, c, z * z), half);
    vf tail = vf_erfc_tail(size);
    return vf_select(size < 1.0f, near, vf_select(x < 0.0f, half * tail, x * (1.0f - 0.5f * tail)));
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
