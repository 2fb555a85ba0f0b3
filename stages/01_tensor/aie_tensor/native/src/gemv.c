/* A few tokens: each weight is unpacked in a register and used at once, several panels side by side to hide the latency of
 * their accumulators; the memory bus sets the pace. */
#include "matmul.h"

#define GEMV_VECS (GEMV_PANELS * VEC_PER_PANEL)
#define NUM_VECS (panels * VEC_PER_PANEL)
#define FOR_VECS UNROLL for (int i = 0; i < NUM_VECS; i++)
#define FOR_TOKENS UNROLL for (int t = 0; t < tokens; t++)
/* vector i of the panels: where its bytes lie, `size` bytes per element */
#define AT(base, i, size) ((base) + (i) / VEC_PER_PANEL * w->panel_bytes + (i) % VEC_PER_PANEL * VW * (size))

ALWAYS_INLINE void gemv_q4(const int format, const int panels, const int tokens, const PackedMatrix *w,
                           const uint8_t *data, const float *x, float *y, ptrdiff_t ahead) {
    const int header = header_bytes(format) * PANEL, bytes = header + BLOCK / 2 * PANEL;
    vf acc[MAX_FEW][GEMV_VECS], scale[GEMV_VECS], minimum[GEMV_VECS];
    FOR_TOKENS FOR_VECS acc[t][i] = vf_set(0.0f);
    for (int b = 0; b < w->k / BLOCK; b++, data += bytes, x += BLOCK) {
        FOR_VECS load_scale_minimum(format, AT(data, i, 0), i % VEC_PER_PANEL, &scale[i], &minimum[i]);
        UNROLL for (int p = 0; p < panels; p++) prefetch(data + p * w->panel_bytes + ahead, bytes);
        const uint8_t *quants = data + header;
        for (int j = 0; j < BLOCK / 2; j++, quants += PANEL) {
            FOR_VECS {
                vf even, odd;
                unpack_nibbles(AT(quants, i, 1), scale[i], minimum[i], &even, &odd);
                const float *pair = tokens > 1 && VW == 8 ? read_again(x + 2 * j) : x + 2 * j; /* 16 registers are few */
                FOR_TOKENS acc[t][i] = vf_fma(even, vf_set(pair[t * w->k]), acc[t][i]);
                FOR_TOKENS acc[t][i] = vf_fma(odd, vf_set(pair[t * w->k + 1]), acc[t][i]);
            }
        }
    }
    FOR_TOKENS FOR_VECS vf_store(y + t * panels * PANEL + i * VW, acc[t][i]);
}

ALWAYS_INLINE void gemv_q8(const int panels, const int tokens, const PackedMatrix *w, const uint8_t *data, const float *x,
                           float *y, ptrdiff_t ahead) {
    const int bytes = (2 + BLOCK) * PANEL;
    vf acc[MAX_FEW][GEMV_VECS], scale[GEMV_VECS];
    FOR_TOKENS FOR_VECS acc[t][i] = vf_set(0.0f);
    for (int b = 0; b < w->k / BLOCK; b++, data += bytes, x += BLOCK) {
        FOR_VECS scale[i] = vf_load_f16(AT(data, i, 2));
        UNROLL for (int p = 0; p < panels; p++) prefetch(data + p * w->panel_bytes + ahead, bytes);
        const uint8_t *quants = data + 2 * PANEL;
        for (int j = 0; j < BLOCK; j++, quants += PANEL) {
            FOR_VECS {
                vf weight = vf_from_int(vi_load_i8(AT(quants, i, 1))) * scale[i];
                FOR_TOKENS acc[t][i] = vf_fma(weight, vf_set(x[t * w->k + j]), acc[t][i]);
            }
        }
    }
    FOR_TOKENS FOR_VECS vf_store(y + t * panels * PANEL + i * VW, acc[t][i]);
}

ALWAYS_INLINE void gemv_plain(const int format, const int panels, const int tokens, const PackedMatrix *w,
                              const uint8_t *data, const float *x, float *y, ptrdiff_t ahead) {
    const int size = format == FORMAT_F32 ? 4 : 2;
    vf acc[MAX_FEW][GEMV_VECS];
    FOR_TOKENS FOR_VECS acc[t][i] = vf_set(0.0f);
    for (int k = 0; k < w->k; k++, data += size * PANEL) {
        UNROLL for (int p = 0; p < panels; p++) __builtin_prefetch(data + p * w->panel_bytes + ahead);
        FOR_VECS {
            vf weight = vf_kept(load_plain(format, AT(data, i, size)));
            FOR_TOKENS acc[t][i] = vf_fma(weight, vf_set(x[t * w->k + k]), acc[t][i]);
        }
    }
    FOR_TOKENS FOR_VECS vf_store(y + t * panels * PANEL + i * VW, acc[t][i]);
}

#define ONE_SHAPE(P, T)                                                                               \
    switch (w->format) {                                                                              \
    case FORMAT_F32: gemv_plain(FORMAT_F32, P, T, w, data, x, y, ahead); break;                       \
    case FORMAT_F16: gemv_plain(FORMAT_F16, P, T, w, data, x, y, ahead); break;                       \
    case FORMAT_BF16: gemv_plain(FORMAT_BF16, P, T, w, data, x, y, ahead); break;                     \
    case FORMAT_Q8_0: gemv_q8(P, T, w, data, x, y, ahead); break;                                     \
    case FORMAT_Q4_0: gemv_q4(FORMAT_Q4_0, P, T, w, data, x, y, ahead); break;                        \
    case FORMAT_Q4_1: gemv_q4(FORMAT_Q4_1, P, T, w, data, x, y, ahead); break;                        \
    default: gemv_q4(FORMAT_Q4_K, P, T, w, data, x, y, ahead); break;                                 \
    }

#define SHAPE(P, T) case (P) * 16 + (T): ONE_SHAPE(P, T) break;

void gemv(const PackedMatrix *w, int first, int panels, const float *x, int num_tokens, float *y) {
    const uint8_t *data = w->data + first * w->panel_bytes;
    ptrdiff_t ahead = panels * w->panel_bytes; /* the panels that follow */
    switch (panels * 16 + num_tokens) {
        SHAPE(1, 1) SHAPE(2, 1) SHAPE(1, 2) SHAPE(2, 2) SHAPE(1, 3) SHAPE(1, 4)
#if VW == 16
        SHAPE(3, 1) SHAPE(4, 1) SHAPE(3, 2) SHAPE(4, 2) SHAPE(2, 3) SHAPE(3, 3) SHAPE(4, 3) SHAPE(2, 4) SHAPE(3, 4) SHAPE(4, 4)
        SHAPE(1, 5) SHAPE(2, 5) SHAPE(1, 6) SHAPE(2, 6) SHAPE(1, 7) SHAPE(2, 7) SHAPE(1, 8) SHAPE(2, 8)
#endif
    }
}

