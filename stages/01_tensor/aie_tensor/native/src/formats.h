/* Weight formats, and how a packed matrix lies in memory.
 *
 * A packed matrix is cut into panels of 16 output rows. Within a panel, k runs outermost and the 16 rows lie side by
 * side, so that a vector lane is an output row: unpacking gives [k][16] floats without any transposition, and a product
 * needs no sum across lanes. The quantized formats keep the bits of their 32-element blocks, only in another order:
 *
 *   F32, F16, BF16   [k][16] values
 *   Q8_0  per 32 k   [16] half scales, [32][16] int8                    w = scale * q
 *   Q4_0  per 32 k   [16] half scales, [16][16] bytes                   w = scale * (q - 8)
 *   Q4_1  per 32 k   [16] half scales, [16] half minima, [16][16] bytes w = scale * q + minimum
 *   Q5_0, Q5_1       as Q4_0 (but q - 16) and Q4_1, then [4][16] bytes of fifth bits
 *   Q4_K  per 32 k   [16] half d, [16] half e, [16] uint8 s, [16] uint8 m, [16][16] bytes      w = d s q - e m
 *   Q5_K  per 32 k   as Q4_K, then [4][16] bytes of fifth bits
 *   Q6_K  per 32 k   [16] half d, [2][16] int8 s, [16][16] bytes, [8][16] bytes of upper pairs w = d s (q - 32)
 *
 *   DOT_Q8_0, DOT_Q4_0, DOT_Q4_1: the same blocks for products with 8-bit activations; int8.c draws their digits
 *
 * A byte of the 4-bit digits holds k = 2j in its low and k = 2j + 1 in its high half; fifth bits and upper pairs run through
 * their bytes from the lowest bits up. The K types have 256 k to a block in a file, with d and e once; here they are
 * repeated. scale * q is exact in float, so every weight here has the bits that the NumPy reference computes. */
#ifndef AIE_FORMATS_H
#define AIE_FORMATS_H

#include "simd.h"

enum {
    FORMAT_F32, FORMAT_F16, FORMAT_BF16, FORMAT_Q8_0, FORMAT_Q4_0, FORMAT_Q4_1,
    FORMAT_Q5_0, FORMAT_Q5_1, FORMAT_Q4_K, FORMAT_Q5_K, FORMAT_Q6_K,
    FORMAT_DOT_Q8_0, FORMAT_DOT_Q4_0, FORMAT_DOT_Q4_1, NUM_FORMATS
};

#define BLOCK 32    /* elements that share a scale */
#define K_BLOCK 256 /* elements of a block of the K types in a file */

typedef struct {
    const uint8_t *data; /* panels, one after another */
    int64_t panel_bytes;
    int32_t format, n, k, num_panels; /* n outputs, k inputs; num_panels = ceil(n / 16), the last one padded by zeros */
} PackedMatrix;

static inline int is_quantized(int format) { return format >= FORMAT_Q8_0; }
static inline int is_k(int format) { return format >= FORMAT_Q4_K && format <= FORMAT_Q6_K; }
static inline int is_dot(int format) { return format >= FORMAT_DOT_Q8_0; }
static inline int has_fifth_bits(int format) { return format == FORMAT_Q5_0 || format == FORMAT_Q5_1 || format == FORMAT_Q5_K; }

/* Bytes before the digits of a packed block of the formats with 4-bit digits, for each of its 16 rows. */
static inline int header_bytes(int format) {
    return format == FORMAT_Q4_0 || format == FORMAT_Q5_0 ? 2 : format == FORMAT_Q4_K || format == FORMAT_Q5_K ? 6 : 4;
}

/* Bytes of a packed block for each of its 16 rows. Plain formats count 32 k as a block. */
static inline int64_t block_bytes(int format) {
    switch (format) {
    case FORMAT_F32: return 4 * BLOCK;
    case FORMAT_F16:
    case FORMAT_BF16: return 2 * BLOCK;
    case FORMAT_Q8_0:
    case FORMAT_DOT_Q8_0: return 2 + BLOCK;
    case FORMAT_DOT_Q4_0: return 2 + BLOCK / 2;
    case FORMAT_DOT_Q4_1: return 4 + BLOCK / 2;
    case FORMAT_Q6_K: return 4 + BLOCK / 2 + BLOCK / 4;
    default: return header_bytes(format) + BLOCK / 2 + (has_fifth_bits(format) ? BLOCK / 8 : 0);
    }
}

/* Bytes of a packed row of k elements; a plain row may have any length, a quantized one is whole blocks. */
static inline int64_t packed_row_bytes(int format, int k) {
    return is_quantized(format) ? (int64_t)(k / BLOCK) * block_bytes(format) : k * (block_bytes(format) / BLOCK);
}

/* The same row in the file. Only the K types are stored otherwise than packed. */
static inline int64_t row_bytes(int format, int k) {
    int64_t k_bytes = format == FORMAT_Q4_K ? 144 : format == FORMAT_Q5_K ? 176 : 210;
    return is_k(format) ? k / K_BLOCK * k_bytes : packed_row_bytes(format, k);
}

/* The weights of VW rows at k = 2j and k = 2j + 1. Both halves are converted by one table lookup where the CPU has it. */
ALWAYS_INLINE void unpack_nibbles(const uint8_t *bytes, vf scale, vf minimum, vf *even, vf *odd) {
    vi q = vi_load_u8(bytes);
#if VW == 16
    const __m512 digits = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    vf low = (vf)_mm512_permutexvar_ps((__m512i)q, digits); /* looks at the low four bits only */
    vf high = (vf)_mm512_permutexvar_ps((__m512i)(q >> 4), digits);
#else
    vf low = vf_from_int(q & 15), high = vf_from_int(q >> 4);
#endif
    *even = vf_fma(low, scale, minimum);
    *odd = vf_fma(high, scale, minimum);
}

/* Header of a block with 4-bit digits: w = scale * q + minimum. */
ALWAYS_INLINE void load_scale_minimum(const int format, const uint8_t *block, int v, vf *scale, vf *minimum) {
    *scale = vf_load_f16(block + 2 * VW * v);
    if (is_k(format)) {
        vf e = vf_load_f16(block + 2 * PANEL + 2 * VW * v);
        *scale *= vf_from_int(vi_load_u8(block + 4 * PANEL + VW * v));
        *minimum = -(e * vf_from_int(vi_load_u8(block + 5 * PANEL + VW * v)));
    } else if (header_bytes(format) == 4) {
        *minimum = vf_load_f16(block + 2 * PANEL + 2 * VW * v);
    } else {
        *minimum = *scale * (format == FORMAT_Q5_0 ? -16.0f : -8.0f);
    }
}

ALWAYS_INLINE vf load_plain(const int format, const uint8_t *values) {
    return format == FORMAT_F32 ? vf_load((const float *)(const void *)values)
           : format == FORMAT_F16 ? vf_load_f16(values) : vf_load_bf16(values);
}

#endif
