/* x [T][K] times packed weights: `linear` with bias and residual, and `swiglu`.
 *
 * A few tokens: each weight is unpacked in a register and used at once (gemv), several panels side by side to hide the
 * latency of their accumulators; the memory bus sets the pace. More tokens: some panels are unpacked into a tile that
 * stays in the first cache, and the register tile of micro.h multiplies it with all tokens, so that unpacking is paid once
 * per step. Both add up each output element in the same order, so a token's result does not depend on its company. */
#include "micro.h"
#include "plan.h"
#include "unpack.h"

#if VW == 16
#define GEMV_PANELS 4 /* side by side for one token */
#define MAX_FEW 8     /* tokens up to which weights go from memory through registers, without a tile */
#else
#define GEMV_PANELS 2
#define MAX_FEW 4
#endif
#define GEMV_VECS (GEMV_PANELS * VEC_PER_PANEL)
#define CHUNK 192 /* k per tile: 2 panels x 192 x 16 floats are 24 KB */

/* ---- few tokens ---- */

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
                FOR_TOKENS acc[t][i] = vf_fma(odd, vf_set(x[t * w->k + 2 * j + 1]),
                                              vf_fma(even, vf_set(x[t * w->k + 2 * j]), acc[t][i]));
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
            vf weight = load_plain(format, AT(data, i, size));
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

/* y [T][panels * 16] = x [T][K] times the panels' rows, T <= max_few(panels) */
static void gemv(const PackedMatrix *w, int first, int panels, const float *x, int num_tokens, float *y, int num_threads) {
    const uint8_t *data = w->data + first * w->panel_bytes;
    ptrdiff_t ahead = (ptrdiff_t)(num_threads * panels) * w->panel_bytes; /* what somebody will need next */
    switch (panels * 16 + num_tokens) {
        SHAPE(1, 1) SHAPE(2, 1) SHAPE(1, 2) SHAPE(2, 2) SHAPE(1, 3) SHAPE(1, 4)
#if VW == 16
        SHAPE(3, 1) SHAPE(4, 1) SHAPE(3, 2) SHAPE(4, 2) SHAPE(2, 3) SHAPE(3, 3) SHAPE(4, 3) SHAPE(2, 4) SHAPE(3, 4) SHAPE(4, 4)
        SHAPE(1, 5) SHAPE(2, 5) SHAPE(1, 6) SHAPE(2, 6) SHAPE(1, 7) SHAPE(2, 7) SHAPE(1, 8) SHAPE(2, 8)
#endif
    }
}

/* ---- many tokens ---- */

/* Formats whose digits are too scattered to be put together in a register while it multiplies. */
static int only_as_tile(int format) { return has_fifth_bits(format) || format == FORMAT_Q6_K; }

/* y [T][num * 16] = x [T][K] times panels first .. first + num; `tile` is scratch. */
static void product(const PackedMatrix *w, int first, int num, const float *x, int num_tokens, float *y, float *tile,
                    int num_threads) {
    if (num_tokens <= MAX_FEW && !only_as_tile(w->format)) {
        gemv(w, first, num, x, num_tokens, y, num_threads);
        return;
    }
    ptrdiff_t ahead = (ptrdiff_t)(num_threads * TILE_PANELS) * w->panel_bytes;
    for (int at = 0; at < num; at += TILE_PANELS)
        for (int k0 = 0; k0 < w->k; k0 += CHUNK) {
            const float *panels[TILE_PANELS];
            int num_k = w->k - k0 < CHUNK ? w->k - k0 : CHUNK, some = num - at < TILE_PANELS ? num - at : TILE_PANELS;
            for (int p = 0; p < some; p++) {
                panels[p] = tile + p * CHUNK * PANEL;
                unpack_panel(w, first + at + p, k0, num_k, tile + p * CHUNK * PANEL, ahead);
            }
            micro_rows(num_tokens, some, x + k0, w->k, panels, PANEL, num_k, y + at * PANEL, num * PANEL, k0 > 0);
        }
}

/* ---- the operators ---- */

/* Panels that one thread takes at a time: what leaves the accumulators in registers. */
static int most_panels(int num_tokens) {
    if (num_tokens > MAX_FEW) return TILE_PANELS;
    return num_tokens <= MAX_FEW / 2 ? GEMV_PANELS : GEMV_PANELS / 2;
}

size_t linear_scratch_floats(int max_tokens) {
    size_t few = MAX_FEW * GEMV_PANELS, many = (size_t)max_tokens * TILE_PANELS;
    return (few > many ? few : many) * PANEL * 2 + (size_t)TILE_PANELS * CHUNK * PANEL;
}

/* y [T][stride] -> out columns column .. column + count, with bias and residual */
static void store_columns(const Op *op, const float *y, int stride, int num_tokens, int column, int count) {
    for (int t = 0; t < num_tokens; t++, y += stride) {
        size_t at = (size_t)t * (size_t)op->out_width + (size_t)column;
        for (int i = 0; i < count; i++) {
            float value = y[i];
            if (op->bias) value += op->bias[column + i];
            op->out[at + (size_t)i] = op->y ? value + op->y[at + (size_t)i] : value;
        }
    }
}

void run_linear(Context *c, const Op *op) {
    int num_tokens = op_rows(c, op), most = most_panels(num_tokens), total = 0, first, claimed;
    float *tile = c->scratch, *y = tile + TILE_PANELS * CHUNK * PANEL;
    if (num_tokens == 0) return;
    for (int m = 0; m < op->num_mats; m++) total += op->mats[m].num_panels;
    while ((claimed = pool_claim(c->plan->pool, &c->ticket, total, num_tokens <= MAX_FEW ? 1 : TILE_PANELS, most, &first)))
        while (claimed > 0) { /* a claim may cross from one matrix into the next */
            const PackedMatrix *w = op->mats;
            int panel = first, column = 0;
            for (; panel >= w->num_panels; w++) panel -= w->num_panels, column += w->n;
            int num = w->num_panels - panel < claimed ? w->num_panels - panel : claimed;
            product(w, panel, num, op->x, num_tokens, y, tile, c->plan->spec.num_threads);
            int count = w->n - panel * PANEL < num * PANEL ? w->n - panel * PANEL : num * PANEL;
            store_columns(op, y, num * PANEL, num_tokens, column + panel * PANEL, count);
            first += num, claimed -= num;
        }
}

static void store_swiglu(const Op *op, const float *gate, const float *up, int stride, int num_tokens, int column, int count) {
    for (int t = 0; t < num_tokens; t++, gate += stride, up += stride) {
        float *out = op->out + (size_t)t * (size_t)op->out_width + column, last[VW];
        for (int i = 0; i < count; i += VW) {
            vf g = vf_load(gate + i), value = g / (1.0f + vf_exp(-g)) * vf_load(up + i);
            if (i + VW <= count) {
                vf_store(out + i, value);
            } else {
                vf_store(last, value);
                memcpy(out + i, last, sizeof(float) * (size_t)(count - i));
            }
        }
    }
}

/* out = silu(x Wgate) * (x Wup); both halves of an element are computed by the same thread. */
void run_swiglu(Context *c, const Op *op) {
    const PackedMatrix *gate = &op->mats[0], *up = &op->mats[1];
    int num_tokens = op_rows(c, op), most = most_panels(num_tokens), first, num;
    float *tile = c->scratch, *g = tile + TILE_PANELS * CHUNK * PANEL;
    if (num_tokens == 0) return;
    while ((num = pool_claim(c->plan->pool, &c->ticket, gate->num_panels, num_tokens <= MAX_FEW ? 1 : TILE_PANELS, most, &first))) {
        float *u = g + (size_t)num_tokens * (size_t)num * PANEL;
        product(gate, first, num, op->x, num_tokens, g, tile, c->plan->spec.num_threads);
        product(up, first, num, op->x, num_tokens, u, tile, c->plan->spec.num_threads);
        int count = gate->n - first * PANEL < num * PANEL ? gate->n - first * PANEL : num * PANEL;
        store_swiglu(op, g, u, num * PANEL, num_tokens, first * PANEL, count);
    }
}
