/* The tile of int8.c for CPUs with AVX2 and no instruction that adds four products of bytes at once: bytes are multiplied
 * and added in pairs of 16 bits, which saturate. They never do here:
 *
 *   4-bit   a pair is at most 2 x 15 x 127, and the eight that a block adds to a lane 30480: they are widened once a block
 *   Q8_0    |w| is multiplied with sign(w) x, at most 2 x 128 x 127 = 32512: a pair fits, and is widened at once
 *
 * With sixteen registers the sums of floats stay in y; they are needed once a block. */
#ifndef AIE_INT8_PAIRS_H
#define AIE_INT8_PAIRS_H

#include "matmul.h"

#define DOT_ROWS 4 /* x 2 vectors of sums; digits, x and constants fill the other registers */
#define DOT_PANELS 1

#define ONE_BY_ONE _Pragma("GCC unroll 1") /* unrolled, the loop would keep more values than there are registers */

ALWAYS_INLINE __m256i load_digits(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }

/* Four bytes of x in every lane. The compiler must not load those of all rows ahead of time: sums would lose their registers. */
ALWAYS_INLINE __m256i four_of_x(const int8_t *q) {
    __m256i four;
    __asm__ volatile("vpbroadcastd %1, %0" : "=x"(four) : "m"(*(const int32_t *)(const void *)q));
    return four;
}

/* sum[r][v], 32 bits a lane: digits of a block times those of x, without the digits' zero for Q4_0. */
ALWAYS_INLINE void block_sums_q4(const int rows, const uint8_t *digits, const QuantizedBlock *x, ptrdiff_t ldx,
                                 __m256i sum[DOT_ROWS][2]) {
    const __m256i low_half = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < 2; v++) sum[r][v] = _mm256_setzero_si256();
    ONE_BY_ONE for (int g = 0; g < BLOCK / 8; g++, digits += 4 * PANEL) {
        __m256i low[2], high[2];
        UNROLL for (int v = 0; v < 2; v++) {
            __m256i both = load_digits(digits + v * 4 * VW);
            low[v] = _mm256_and_si256(both, low_half), high[v] = _mm256_and_si256(_mm256_srli_epi16(both, 4), low_half);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            const int8_t *q = x[r * ldx].q + 8 * g;
            __m256i first = four_of_x(q), second = four_of_x(q + 4);
            UNROLL for (int v = 0; v < 2; v++) {
                sum[r][v] = _mm256_add_epi16(sum[r][v], _mm256_maddubs_epi16(low[v], first));
                sum[r][v] = _mm256_add_epi16(sum[r][v], _mm256_maddubs_epi16(high[v], second));
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < 2; v++) sum[r][v] = _mm256_madd_epi16(sum[r][v], ones);
}

ALWAYS_INLINE void block_sums_q8(const int rows, const uint8_t *digits, const QuantizedBlock *x, ptrdiff_t ldx,
                                 __m256i sum[DOT_ROWS][2]) {
    const __m256i zero = _mm256_set1_epi8(-128), ones = _mm256_set1_epi16(1);
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < 2; v++) sum[r][v] = _mm256_setzero_si256();
    ONE_BY_ONE for (int g = 0; g < BLOCK / 4; g++, digits += 4 * PANEL) {
        __m256i w[2], size[2];
        UNROLL for (int v = 0; v < 2; v++) {
            w[v] = _mm256_xor_si256(load_digits(digits + v * 4 * VW), zero);
            size[v] = _mm256_abs_epi8(w[v]);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            __m256i four = four_of_x(x[r * ldx].q + 4 * g);
            UNROLL for (int v = 0; v < 2; v++) {
                __m256i pairs = _mm256_maddubs_epi16(size[v], _mm256_sign_epi8(four, w[v]));
                sum[r][v] = _mm256_add_epi32(sum[r][v], _mm256_madd_epi16(pairs, ones));
            }
        }
    }
}

/* rows x one panel: every output has one accumulator, to which the blocks are added one after another. */
ALWAYS_INLINE void dot_tile(const int format, const int rows, const int np, const uint8_t *const data[], ptrdiff_t ahead,
                            const QuantizedBlock *x, ptrdiff_t ldx, int num_blocks, float *y, ptrdiff_t ldy) {
    const int header = (format == FORMAT_DOT_Q4_1 ? 4 : 2) * PANEL, bytes = (int)block_bytes(format) * PANEL;
    const uint8_t *w = data[0];
    (void)np;
    for (int r = 0; r < rows; r++) memset(y + r * ldy, 0, PANEL * sizeof *y);
    for (int b = 0; b < num_blocks; b++, x++, w += bytes) {
        __m256i sum[DOT_ROWS][2];
        prefetch(w + ahead, bytes);
        if (format == FORMAT_DOT_Q8_0) block_sums_q8(rows, w + header, x, ldx, sum);
        else block_sums_q4(rows, w + header, x, ldx, sum);
        UNROLL for (int v = 0; v < 2; v++) {
            vf scale = vf_load_f16(w + 2 * VW * v), minimum = vf_set(0.0f);
            if (format == FORMAT_DOT_Q4_1) minimum = vf_load_f16(w + 2 * PANEL + 2 * VW * v);
            UNROLL for (int r = 0; r < rows; r++) {
                const QuantizedBlock *own = x + r * ldx;
                vi total = (vi)sum[r][v];
                if (format == FORMAT_DOT_Q4_0) total -= 8 * own->sum;
                vf value = vf_fma(vf_from_int(total), scale * own->scale, vf_load(y + r * ldy + v * VW));
                if (format == FORMAT_DOT_Q4_1) value = vf_fma(minimum, vf_set(own->offset), value);
                vf_store(y + r * ldy + v * VW, value);
            }
        }
    }
}

#endif
