/* Products with activations in eight bits, for those who ask for them: x is rounded block by block to scale * q, and
 * blocks of weights and of x are multiplied as integers, four pairs per lane and instruction. What the rounding costs is
 * for `aie quantize --check --activations int8` to say.
 *
 * Digits of weights are unsigned, u = q + zero, since the instructions multiply unsigned by signed; so
 *
 *   w . x over a block = d_w d_x (sum of u q_x - zero * sum of q_x)        [+ minimum * d_x * sum of q_x for Q4_1]
 *
 * In a panel four neighbouring k of a row lie in one 32-bit lane: Q8_0 has [8][16][4] bytes, a 4-bit format [4][16][4],
 * of which byte j of group g holds k = 8 g + j in its low and k = 8 g + 4 + j in its high half.
 *
 * Within a block everything is exact, and the blocks are added in rising order: batching changes nothing here either. */
#include "matmul.h"

#if VW == 8 && !defined(__AVXVNNI__) && !(defined(__AVX512VNNI__) && defined(__AVX512VL__))
#include "int8_pairs.h"
#else

#if VW == 16
#define DOT_ROWS 6 /* 6 rows x 2 panels, sums of integers and of floats: 24 of the 32 registers */
#define DOT_PANELS 2
#elif VW == 8 || defined(__ARM_NEON)
#define DOT_ROWS 2
#define DOT_PANELS 1
#else
#define DOT_ROWS 1
#define DOT_PANELS 1
#endif
#define DOT_VECS (DOT_PANELS * VEC_PER_PANEL)

/* sum[lane] += the lane's four unsigned bytes times the four signed ones of x. */
ALWAYS_INLINE vi dot4(vi sum, vi bytes, int32_t x) {
#if VW == 16 && defined(__AVX512VNNI__)
    return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)bytes, _mm512_set1_epi32(x));
#elif VW == 8 && defined(__AVXVNNI__)
    return (vi)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)bytes, _mm256_set1_epi32(x));
#elif VW == 8
    return (vi)_mm256_dpbusd_epi32((__m256i)sum, (__m256i)bytes, _mm256_set1_epi32(x));
#elif VW == 16 /* pairs of 16-bit products: pmaddubsw would saturate */
    int32_t even = (int32_t)(((uint32_t)(int8_t)x & 0xffff) | (uint32_t)(int8_t)(x >> 16) << 16);
    int32_t odd = (int32_t)(((uint32_t)(int8_t)(x >> 8) & 0xffff) | (uint32_t)(int8_t)(x >> 24) << 16);
    sum += (vi)_mm512_madd_epi16((__m512i)(bytes & 0x00ff00ff), _mm512_set1_epi32(even));
    return sum + (vi)_mm512_madd_epi16((__m512i)(bytes >> 8 & 0x00ff00ff), _mm512_set1_epi32(odd));
#else
    return sum + (bytes & 255) * (int8_t)x + (bytes >> 8 & 255) * (int8_t)(x >> 8) + (bytes >> 16 & 255) * (int8_t)(x >> 16) +
           (bytes >> 24 & 255) * (int8_t)(x >> 24);
#endif
}

typedef int32_t vi_unaligned __attribute__((vector_size(4 * VW), aligned(1), may_alias));

ALWAYS_INLINE int32_t four_bytes(const int8_t *q) {
    int32_t four;
    memcpy(&four, q, 4);
    return four;
}

/* rows x panels: every output has one accumulator, to which the blocks are added one after another. */
ALWAYS_INLINE void dot_tile(const int format, const int rows, const int np, const uint8_t *const data[], ptrdiff_t ahead,
                            const QuantizedBlock *x, ptrdiff_t ldx, int num_blocks, float *y, ptrdiff_t ldy) {
    const int header = (format == FORMAT_DOT_Q4_1 ? 4 : 2) * PANEL, zero = format == FORMAT_DOT_Q8_0 ? 128 : 8;
    const int groups = format == FORMAT_DOT_Q8_0 ? BLOCK / 4 : BLOCK / 8, bytes = header + groups * 4 * PANEL;
    const int vecs = np * VEC_PER_PANEL;
    vf acc[DOT_ROWS][DOT_VECS];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < vecs; v++) acc[r][v] = vf_set(0.0f);
    for (int b = 0; b < num_blocks; b++, x++) {
        vi sum[DOT_ROWS][DOT_VECS];
        const uint8_t *w[DOT_VECS];
        UNROLL for (int v = 0; v < vecs; v++) w[v] = data[v / VEC_PER_PANEL] + b * bytes + v % VEC_PER_PANEL * VW * 2;
        UNROLL for (int p = 0; p < np; p++) prefetch(data[p] + b * bytes + ahead, bytes);
        UNROLL for (int r = 0; r < rows; r++) {
            vi start = (vi){0} - (format == FORMAT_DOT_Q4_1 ? 0 : zero * x[r * ldx].sum);
            UNROLL for (int v = 0; v < vecs; v++) sum[r][v] = start;
        }
        for (int g = 0; g < groups; g++)
            UNROLL for (int v = 0; v < vecs; v++) {
                vi digits = (vi) * (const vi_unaligned *)(const void *)(w[v] + header + g * 4 * PANEL + v % VEC_PER_PANEL * VW * 2);
                if (format == FORMAT_DOT_Q8_0) {
                    UNROLL for (int r = 0; r < rows; r++) sum[r][v] = dot4(sum[r][v], digits, four_bytes(x[r * ldx].q + 4 * g));
                } else {
                    vi low = digits & 0x0f0f0f0f, high = digits >> 4 & 0x0f0f0f0f;
                    UNROLL for (int r = 0; r < rows; r++) sum[r][v] = dot4(sum[r][v], low, four_bytes(x[r * ldx].q + 8 * g));
                    UNROLL for (int r = 0; r < rows; r++) sum[r][v] = dot4(sum[r][v], high, four_bytes(x[r * ldx].q + 8 * g + 4));
                }
            }
        UNROLL for (int v = 0; v < vecs; v++) {
            vf scale = vf_load_f16(w[v]), minimum = vf_load_f16(w[v] + 2 * PANEL);
            UNROLL for (int r = 0; r < rows; r++) {
                acc[r][v] = vf_fma(vf_from_int(sum[r][v]), scale * x[r * ldx].scale, acc[r][v]);
                if (format == FORMAT_DOT_Q4_1) acc[r][v] = vf_fma(minimum, vf_set(x[r * ldx].offset), acc[r][v]);
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < vecs; v++) vf_store(y + r * ldy + v * VW, acc[r][v]);
}

#endif

#define FORMATS_OF(R, P)                                                                                              \
    switch (format) {                                                                                                 \
    case FORMAT_DOT_Q8_0: dot_tile(FORMAT_DOT_Q8_0, R, P, data, ahead, x, ldx, num_blocks, y, ldy); break;            \
    case FORMAT_DOT_Q4_0: dot_tile(FORMAT_DOT_Q4_0, R, P, data, ahead, x, ldx, num_blocks, y, ldy); break;            \
    default: dot_tile(FORMAT_DOT_Q4_1, R, P, data, ahead, x, ldx, num_blocks, y, ldy); break;                         \
    }
#define HEIGHT(R)                                                                  \
    case R:                                                                        \
        if (num_panels == 1) { FORMATS_OF(R, 1) } else { FORMATS_OF(R, DOT_PANELS) } \
        break;

static void dot_rows(int format, int rows, int num_panels, const uint8_t *const data[], ptrdiff_t ahead,
                     const QuantizedBlock *x, ptrdiff_t ldx, int num_blocks, float *y, ptrdiff_t ldy) {
    switch (rows) {
        HEIGHT(1)
#if DOT_ROWS >= 2
        HEIGHT(2)
#endif
#if DOT_ROWS >= 4
        HEIGHT(3) HEIGHT(4)
#endif
#if DOT_ROWS >= 6
        HEIGHT(5) HEIGHT(6)
#endif
    }
}

void dot_gemm(const Op *op, const PanelRef panels[], int num_panels, const QuantizedBlock *x, int first, int end, float *y,
              Finish *finish) {
    const uint8_t *data[2];
    int num_blocks = panels->w->k / BLOCK, ld = num_panels * PANEL, tiles = (end - first + DOT_ROWS - 1) / DOT_ROWS;
    int together = DOT_PANELS == num_panels && panels[0].w->format == panels[num_panels - 1].w->format ? num_panels : 1;
    for (int p = 0; p < num_panels; p++) data[p] = panels[p].w->data + panels[p].panel * panels[p].w->panel_bytes;
    for (int t = 0, row = first; t < tiles; t++) {
        int rows = (end - row + tiles - t - 1) / (tiles - t);
        for (int p = 0; p < num_panels; p += together)
            dot_rows(panels[p].w->format, rows, together, data + p, t == 0 ? panels[p].ahead : 0,
                     x + (size_t)row * (size_t)num_blocks, num_blocks, num_blocks, y + p * PANEL, ld);
        finish(op, panels, num_panels, y, ld, row, rows);
        row += rows;
    }
}

typedef int8_t bytes_of_vi __attribute__((vector_size(VW)));

void quantize_row(const float *x, int k, QuantizedBlock *out) {
    const vf shift = vf_set(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer kept in the low bits */
    for (int b = 0; b < k / BLOCK; b++, x += BLOCK, out++) {
        vf top = vf_set(0.0f);
        vi broken = {0}, total = {0};
        for (int i = 0; i < BLOCK; i += VW) {
            vf v = vf_load(x + i);
            top = vf_max(vf_max(v, -v), top);
            broken |= v != v;
        }
        float largest = vf_hmax(top), inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
        for (int i = 0; i < BLOCK; i += VW) {
            vf rounded = vf_load(x + i) * inverse;
            vi n = (vi)(rounded + shift) - (vi)shift;
            bytes_of_vi bytes = __builtin_convertvector(n, bytes_of_vi);
            memcpy(out->q + i, &bytes, sizeof bytes);
            total += n;
        }
        out->sum = 0, out->scale = largest / 127.0f;
        for (int lane = 0; lane < VW; lane++) {
            out->sum += total[lane];
            if (broken[lane]) out->scale = NAN; /* a NaN in x must reach the output */
        }
        out->offset = out->scale * (float)out->sum;
    }
}
