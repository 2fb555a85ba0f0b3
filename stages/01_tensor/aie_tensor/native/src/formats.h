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
 *
 * A byte of the 4-bit formats holds k = 2j in its low and k = 2j + 1 in its high half. scale * q is exact in float, so
 * every weight here has the bits that the NumPy reference computes. */
#ifndef AIE_FORMATS_H
#define AIE_FORMATS_H

#include "simd.h"

enum { FORMAT_F32, FORMAT_F16, FORMAT_BF16, FORMAT_Q8_0, FORMAT_Q4_0, FORMAT_Q4_1, NUM_FORMATS };

#define BLOCK 32 /* elements that share a scale */

typedef struct {
    const uint8_t *data; /* panels, one after another */
    int64_t panel_bytes;
    int32_t format, n, k, num_panels; /* n outputs, k inputs; num_panels = ceil(n / 16), the last one padded by zeros */
} PackedMatrix;

/* Bytes that one row's block takes in a file, and 16 rows' blocks in a panel. Plain formats count 32 k as a block. */
static inline int64_t block_bytes(int format) {
    switch (format) {
    case FORMAT_F32: return 4 * BLOCK;
    case FORMAT_F16:
    case FORMAT_BF16: return 2 * BLOCK;
    case FORMAT_Q8_0: return 2 + BLOCK;
    case FORMAT_Q4_0: return 2 + BLOCK / 2;
    default: return 4 + BLOCK / 2;
    }
}

static inline int is_quantized(int format) { return format >= FORMAT_Q8_0; }

/* Bytes of a row of k elements in the file; a plain row may have any length, a quantized one is whole blocks. */
static inline int64_t row_bytes(int format, int k) {
    return is_quantized(format) ? (int64_t)(k / BLOCK) * block_bytes(format) : k * (block_bytes(format) / BLOCK);
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

/* Header of a 4-bit block: Q4_0 is Q4_1 with a minimum of -8 scales. */
ALWAYS_INLINE void load_scale_minimum(const int format, const uint8_t *block, int v, vf *scale, vf *minimum) {
    *scale = vf_load_f16(block + 2 * VW * v);
    *minimum = format == FORMAT_Q4_1 ? vf_load_f16(block + 2 * PANEL + 2 * VW * v) : *scale * -8.0f;
}

ALWAYS_INLINE vf load_plain(const int format, const uint8_t *values) {
    return format == FORMAT_F32 ? vf_load((const float *)(const void *)values)
           : format == FORMAT_F16 ? vf_load_f16(values) : vf_load_bf16(values);
}

#endif
