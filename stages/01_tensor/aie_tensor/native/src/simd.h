/* One vector type for every CPU: `vf` holds VW floats, and VEC_PER_PANEL of them cover a panel of 16 output rows.
 *
 * GCC's and Clang's vector extensions give the arithmetic (+ - * / and comparisons); only what they cannot say well
 * (fused multiply-add, widening loads, half precision) is written with intrinsics, each with a portable twin below. */
#ifndef AIE_SIMD_H
#define AIE_SIMD_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include <immintrin.h>
#define VW 16
#define AIE_ISA "avx512"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#define VW 8
#define AIE_ISA "avx2"
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#define VW 4
#define AIE_ISA "neon"
#else
#define VW 4
#define AIE_ISA "portable"
#endif

#define PANEL 16                   /* output rows that lie side by side in a packed matrix */
#define VEC_PER_PANEL (PANEL / VW) /* vectors that cover them */
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef float vf __attribute__((vector_size(4 * VW)));
typedef int32_t vi __attribute__((vector_size(4 * VW)));
typedef float vf_unaligned __attribute__((vector_size(4 * VW), aligned(4), may_alias));

ALWAYS_INLINE vf vf_load(const float *p) { return (vf) * (const vf_unaligned *)p; }
ALWAYS_INLINE void vf_store(float *p, vf v) { *(vf_unaligned *)p = (vf_unaligned)v; }
ALWAYS_INLINE vf vf_set(float s) { return s - (vf){0}; }
ALWAYS_INLINE vf vf_select(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }

/* v, held in a register. A compiler that runs short of names would rather load v again at each use, as an operand of the
 * arithmetic, and loads are what a register tile has least of. */
ALWAYS_INLINE vf vf_kept(vf v) {
#if VW >= 8
    __asm__("" : "+x"(v));
#elif defined(__ARM_NEON)
    __asm__("" : "+w"(v));
#endif
    return v;
}

/* p, of which the compiler does not know that it has loaded from there before: what was loaded need not be kept. */
ALWAYS_INLINE const float *read_again(const float *p) {
    __asm__ volatile("" : "+r"(p));
    return p;
}

ALWAYS_INLINE float vf_sum(vf v) {
    float total = 0.0f;
    UNROLL for (int i = 0; i < VW; i++) total += v[i];
    return total;
}

ALWAYS_INLINE float vf_hmax(vf v) {
    float top = v[0];
    UNROLL for (int i = 1; i < VW; i++) top = v[i] > top ? v[i] : top;
    return top;
}

/* IEEE half precision to float for one number, by its bits (also subnormals, infinities and NaN). */
static inline float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3ff, bits;
    float value;
    if (exponent == 0) {
        value = (float)mantissa * 5.9604644775390625e-8f; /* 2^-24: zero and subnormals */
        return sign ? -value : value;
    }
    bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
    memcpy(&value, &bits, 4);
    return value;
}

#define HALF_MAX 65504.0f

/* The nearest IEEE half; of two, the one whose last bit is 0. */
static inline uint16_t float_to_half(float f) {
#ifdef __F16C__
    return (uint16_t)_cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT);
#else
    uint32_t bits, size;
    memcpy(&bits, &f, 4);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    size = bits & 0x7fffffff;
    if (size >= 0x477ff000) return (uint16_t)(sign | (size > 0x7f800000 ? 0x7e00 : 0x7c00));
    if (size < 0x38800000) { /* subnormal or zero: in multiples of 2^-24, which are those of a float next to a half */
        float shifted = fabsf(f) + 0.5f;
        memcpy(&bits, &shifted, 4);
        return (uint16_t)(sign | (bits - 0x3f000000));
    }
    size += 0xfff + (size >> 13 & 1);
    return (uint16_t)(sign | (size - 0x38000000) >> 13);
#endif
}

static inline float bfloat_to_float(uint16_t b) {
    uint32_t bits = (uint32_t)b << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* a > b ? a : b, so b where one of them is NaN */
#if VW == 16
ALWAYS_INLINE vf vf_max(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
#elif VW == 8
ALWAYS_INLINE vf vf_max(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
#else
ALWAYS_INLINE vf vf_max(vf a, vf b) { return vf_select(a > b, a, b); }
#endif

#if VW == 16
ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
ALWAYS_INLINE vi vi_load_u8(const void *p) { return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128(p)); }
ALWAYS_INLINE vi vi_load_i8(const void *p) { return (vi)_mm512_cvtepi8_epi32(_mm_loadu_si128(p)); }
ALWAYS_INLINE vf vf_from_int(vi v) { return (vf)_mm512_cvtepi32_ps((__m512i)v); }
ALWAYS_INLINE vf vf_load_f16(const void *p) { return (vf)_mm512_cvtph_ps(_mm256_loadu_si256(p)); }
ALWAYS_INLINE vf vf_load_bf16(const void *p) {
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16);
}
#elif VW == 8
ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
ALWAYS_INLINE vi vi_load_u8(const void *p) { return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64(p)); }
ALWAYS_INLINE vi vi_load_i8(const void *p) { return (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64(p)); }
ALWAYS_INLINE vf vf_from_int(vi v) { return (vf)_mm256_cvtepi32_ps((__m256i)v); }
ALWAYS_INLINE vf vf_load_f16(const void *p) { return (vf)_mm256_cvtph_ps(_mm_loadu_si128(p)); }
ALWAYS_INLINE vf vf_load_bf16(const void *p) {
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16);
}
#else
#ifdef __ARM_NEON
ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) { return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
ALWAYS_INLINE vf vf_load_f16(const void *p) {
    uint16_t h[4];
    memcpy(h, p, 8);
    return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(h)));
}
#else
ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
ALWAYS_INLINE vf vf_load_f16(const void *p) {
    uint16_t h[4];
    memcpy(h, p, 8);
    return (vf){half_to_float(h[0]), half_to_float(h[1]), half_to_float(h[2]), half_to_float(h[3])};
}
#endif
ALWAYS_INLINE vi vi_load_u8(const void *p) {
    const uint8_t *b = p;
    return (vi){b[0], b[1], b[2], b[3]};
}
ALWAYS_INLINE vi vi_load_i8(const void *p) {
    const int8_t *b = p;
    return (vi){b[0], b[1], b[2], b[3]};
}
ALWAYS_INLINE vf vf_from_int(vi v) { return __builtin_convertvector(v, vf); }
ALWAYS_INLINE vf vf_load_bf16(const void *p) {
    uint16_t h[4];
    memcpy(h, p, 8);
    return (vf)(vi){h[0] << 16, h[1] << 16, h[2] << 16, h[3] << 16};
}
#endif

/* For one number, rounded as vf_fma rounds it: the same sum must not depend on whether it ran in a vector. */
static inline float float_fma(float a, float b, float c) {
#if VW > 4 || defined(__ARM_NEON)
    return fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

/* e^x = 2^n e^r with |r| <= ln 2 / 2: gives e^r, by its Taylor polynomial with minimax coefficients (Cephes' expf), and n
 * as a float and as an integer. For x within -104 .. 89. */
ALWAYS_INLINE vf exp_parts(vf x, vf *n, vi *integer) {
    const vf shift = vf_set(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer kept in the low bits */
    vf rounded = vf_fma(x, vf_set(1.44269504088896341f), shift);
    *integer = (vi)rounded - (vi)shift;
    *n = rounded -= shift;
    vf r = vf_fma(rounded, vf_set(-0.693359375f), x);
    r = vf_fma(rounded, vf_set(2.12194440e-4f), r);
    vf p = vf_fma(vf_set(1.9875691500e-4f), r, vf_set(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set(5.0000001201e-1f));
    return vf_fma(p, r * r, r) + 1.0f;
}

/* p * 2^n through the exponent bits, in two factors, so that neither leaves the normal range. */
ALWAYS_INLINE vf times_power(vf p, vi n) {
    vi half = n >> 1;
    vf low = (vf)((half + 127) << 23), high = (vf)((n - half + 127) << 23);
    return p * low * high;
}

/* e^x to about 1 ulp. e^0 is exactly 1, e^-inf exactly 0, NaN stays NaN. */
ALWAYS_INLINE vf vf_exp(vf x) {
    vf bounded = vf_select(x > 89.0f, vf_set(89.0f), vf_select(x < -104.0f, vf_set(-104.0f), x)), power;
    vi n;
    vf p = exp_parts(bounded, &power, &n), result = times_power(p, n);
    return vf_select(x < -104.0f, vf_set(0.0f), vf_select(x != x, x, result));
}

#endif
