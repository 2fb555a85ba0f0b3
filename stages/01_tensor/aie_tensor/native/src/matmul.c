/* x [T][K] times packed weights: `linear` with bias and residual, and `swiglu`.
 *
 * One token: each weight is unpacked in a register and used at once (gemv), several panels side by side to hide the
 * latency of their accumulators; the memory bus sets the pace. More tokens: a few panels are unpacked into a tile that
 * stays in the first cache, and the register tile of micro.h multiplies it with all tokens, so that unpacking is paid once
 * per step. Both add up each output element in the same order, so a token's result does not depend on its company. */
#include "micro.h"
#include "plan.h"

#if VW == 16
#define GEMV_PANELS 4
#else
#define GEMV_PANELS 2
#endif
#define GEMV_VECS (GEMV_PANELS * VEC_PER_PANEL)
#define CHUNK 192 /* k per tile: 2 panels x 192 x 16 floats are 24 KB */

/* ---- one token ---- */

ALWAYS_INLINE void gemv_q4(const int format, const int panels, const PackedMatrix *w, const uint8_t *data, const float *x,
                           float *y) {
    const int halves = format == FORMAT_Q4_1 ? 2 : 1, bytes = (2 * halves + BLOCK / 2) * PANEL;
    vf acc[GEMV_VECS], scale[GEMV_VECS], minimum[GEMV_VECS];
    UNROLL for (int i = 0; i < panels * VEC_PER_PANEL; i++) acc[i] = vf_set(0.0f);
    for (int b = 0; b < w->k / BLOCK; b++, data += bytes, x += BLOCK) {
        UNROLL for (int i = 0; i < panels * VEC_PER_PANEL; i++)
            load_scale_minimum(format, data + i / VEC_PER_PANEL * w->panel_bytes, i % VEC_PER_PANEL, &scale[i], &minimum[i]);
        const uint8_t *quants = data + 2 * PANEL * halves;
        for (int j = 0; j < BLOCK / 2; j++, quants += PANEL) {
            vf x0 = vf_set(x[2 * j]), x1 = vf_set(x[2 * j + 1]), even, odd;
            UNROLL for (int i = 0; i < panels * VEC_PER_PANEL; i++) {
                unpack_nibbles(quants + i / VEC_PER_PANEL * w->panel_bytes + i % VEC_PER_PANEL * VW, scale[i], minimum[i],
                               &even, &odd);
                acc[i] = vf_fma(odd, x1, vf_fma(even, x0, acc[i]));
            }
        }
    }
    UNROLL for (int i = 0; i < panels * VEC_PER_PANEL; i++) vf_store(y + i * VW, acc[i]);
}

ALWAYS_INLINE void gemv_q8(const int panels, const PackedMatrix *w, const uint8_t *data, const float *x, float *y) {
    vf acc[GEMV_VECS], scale[GEMV_VECS];
    UNROLL for (int i = 0; i < panels * VEC_PER_PANEL; i++) acc[i] = vf_set(0.0f);
    for (int b = 0; b < w->k / BLOCK; b++, data += (2 + BLOCK) * PANEL, x += BLOCK) {
        UNROLL for (int i = 0; i < panels * VEC_PER_PANEL; i++)
            scale[i] = vf_load_f16(data + i / VEC_PER_PANEL * w->panel_bytes + i % VEC_PER_PANEL * 2 * VW);
        const uint8_t *quants = data + 2 * PANEL;
        for (int j = 0; j < BLOCK; j++, quants += PANEL) {
            vf xj = vf_set(x[j]);
            UNROLL for (int i = 0; i < panels * VEC_PER_PANEL; i++) {
                vi q = vi_load_i8(quants + i / VEC_PER_PANEL * w->panel_bytes + i % VEC_PER_PANEL * VW);
                acc[i] = vf_fma(vf_from_int(q) * scale[i], xj, acc[i]);
            }
        }
    }
    UNROLL for (int i = 0; i < panels * VEC_PER_PANEL; i++) vf_store(y + i * VW, acc[i]);
}

ALWAYS_INLINE void gemv_plain(const int format, const int panels, const PackedMatrix *w, const uint8_t *data,
                              const float *x, float *y) {
    const int size = format == FORMAT_F32 ? 4 : 2;
    vf acc[GEMV_VECS];
    UNROLL for (int i = 0; i < panels * VEC_PER_PANEL; i++) acc[i] = vf_set(0.0f);
    for (int k = 0; k < w->k; k++, data += size * PANEL) {
        vf xk = vf_set(x[k]);
        UNROLL for (int i = 0; i < panels * VEC_PER_PANEL; i++)
            acc[i] = vf_fma(load_plain(format, data + i / VEC_PER_PANEL * w->panel_bytes + i % VEC_PER_PANEL * VW * size), xk,
                            acc[i]);
    }
    UNROLL for (int i = 0; i < panels * VEC_PER_PANEL; i++) vf_store(y + i * VW, acc[i]);
}

#define FOR_PANELS(call)                                \
    switch (panels) {                                   \
    case 1: { const int P = 1; call; } break;           \
    case 2: { const int P = 2; call; } break;           \
    case 3: { const int P = GEMV_PANELS < 3 ? 2 : 3; call; } break; \
    default: { const int P = GEMV_PANELS; call; } break; \
    }

/* y [panels * 16] = the panels' rows times x [K] */
static void gemv(const PackedMatrix *w, int first, int panels, const float *x, float *y) {
    const uint8_t *data = w->data + first * w->panel_bytes;
    switch (w->format) {
    case FORMAT_F32: FOR_PANELS(gemv_plain(FORMAT_F32, P, w, data, x, y)); break;
    case FORMAT_F16: FOR_PANELS(gemv_plain(FORMAT_F16, P, w, data, x, y)); break;
    case FORMAT_BF16: FOR_PANELS(gemv_plain(FORMAT_BF16, P, w, data, x, y)); break;
    case FORMAT_Q8_0: FOR_PANELS(gemv_q8(P, w, data, x, y)); break;
    case FORMAT_Q4_0: FOR_PANELS(gemv_q4(FORMAT_Q4_0, P, w, data, x, y)); break;
    default: FOR_PANELS(gemv_q4(FORMAT_Q4_1, P, w, data, x, y)); break;
    }
}

/* ---- many tokens ---- */

ALWAYS_INLINE void unpack_q4(const int format, const uint8_t *block, int num_blocks, float *out) {
    const int halves = format == FORMAT_Q4_1 ? 2 : 1, bytes = (2 * halves + BLOCK / 2) * PANEL;
    for (int b = 0; b < num_blocks; b++, block += bytes, out += BLOCK * PANEL)
        UNROLL for (int v = 0; v < VEC_PER_PANEL; v++) {
            vf scale, minimum, even, odd;
            load_scale_minimum(format, block, v, &scale, &minimum);
            for (int j = 0; j < BLOCK / 2; j++) {
                unpack_nibbles(block + (2 * halves + j) * PANEL + v * VW, scale, minimum, &even, &odd);
                vf_store(out + 2 * j * PANEL + v * VW, even);
                vf_store(out + (2 * j + 1) * PANEL + v * VW, odd);
            }
        }
}

static void unpack_q8(const uint8_t *block, int num_blocks, float *out) {
    for (int b = 0; b < num_blocks; b++, block += (2 + BLOCK) * PANEL, out += BLOCK * PANEL)
        UNROLL for (int v = 0; v < VEC_PER_PANEL; v++) {
            vf scale = vf_load_f16(block + 2 * VW * v);
            for (int j = 0; j < BLOCK; j++)
                vf_store(out + j * PANEL + v * VW, vf_from_int(vi_load_i8(block + (2 + j) * PANEL + v * VW)) * scale);
        }
}

ALWAYS_INLINE void unpack_plain(const int format, const uint8_t *values, int num_k, float *out) {
    const int size = format == FORMAT_F32 ? 4 : 2;
    for (int i = 0; i < num_k * VEC_PER_PANEL; i++) vf_store(out + i * VW, load_plain(format, values + i * VW * size));
}

/* k0 .. k0 + num_k of one panel -> out [num_k][16] */
static void unpack_panel(const PackedMatrix *w, int panel, int k0, int num_k, float *out) {
    const uint8_t *data = w->data + panel * w->panel_bytes + k0 / BLOCK * block_bytes(w->format) * PANEL;
    switch (w->format) {
    case FORMAT_F32: unpack_plain(FORMAT_F32, data, num_k, out); break;
    case FORMAT_F16: unpack_plain(FORMAT_F16, data, num_k, out); break;
    case FORMAT_BF16: unpack_plain(FORMAT_BF16, data, num_k, out); break;
    case FORMAT_Q8_0: unpack_q8(data, num_k / BLOCK, out); break;
    case FORMAT_Q4_0: unpack_q4(FORMAT_Q4_0, data, num_k / BLOCK, out); break;
    default: unpack_q4(FORMAT_Q4_1, data, num_k / BLOCK, out); break;
    }
}

/* y [T][num * 16] = x [T][K] times panels first .. first + num; `tile` is scratch. */
static void product(const PackedMatrix *w, int first, int num, const float *x, int num_tokens, float *y, float *tile) {
    if (num_tokens == 1) {
        gemv(w, first, num, x, y);
        return;
    }
    const float *panels[TILE_PANELS];
    for (int k0 = 0; k0 < w->k; k0 += CHUNK) {
        int num_k = w->k - k0 < CHUNK ? w->k - k0 : CHUNK;
        for (int p = 0; p < num; p++) {
            panels[p] = tile + p * CHUNK * PANEL;
            unpack_panel(w, first + p, k0, num_k, tile + p * CHUNK * PANEL);
        }
        micro_rows(num_tokens, num, x + k0, w->k, panels, PANEL, num_k, y, num * PANEL, k0 > 0);
    }
}

/* ---- the operators ---- */

static int most_panels(int num_tokens) { return num_tokens == 1 ? GEMV_PANELS : TILE_PANELS; }

size_t linear_scratch_floats(int max_tokens) {
    size_t rows = (size_t)(max_tokens < GEMV_PANELS ? GEMV_PANELS : max_tokens);
    return rows * TILE_PANELS * PANEL * 2 + (size_t)TILE_PANELS * CHUNK * PANEL;
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
    while ((claimed = pool_claim(c->plan->pool, total, num_tokens == 1 ? 1 : TILE_PANELS, most, &first)))
        while (claimed > 0) { /* a claim may cross from one matrix into the next */
            const PackedMatrix *w = op->mats;
            int panel = first, column = 0;
            for (; panel >= w->num_panels; w++) panel -= w->num_panels, column += w->n;
            int num = w->num_panels - panel < claimed ? w->num_panels - panel : claimed;
            product(w, panel, num, op->x, num_tokens, y, tile);
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
    int num_tokens = op_rows(c, op), most = num_tokens == 1 ? GEMV_PANELS / 2 : TILE_PANELS, first, num;
    float *tile = c->scratch, *g = tile + TILE_PANELS * CHUNK * PANEL;
    if (num_tokens == 0) return;
    while ((num = pool_claim(c->plan->pool, gate->num_panels, num_tokens == 1 ? 1 : TILE_PANELS, most, &first))) {
        float *u = g + (size_t)num_tokens * (size_t)num * PANEL;
        product(gate, first, num, op->x, num_tokens, g, tile);
        product(up, first, num, op->x, num_tokens, u, tile);
        int count = gate->n - first * PANEL < num * PANEL ? gate->n - first * PANEL : num * PANEL;
        store_swiglu(op, g, u, num * PANEL, num_tokens, first * PANEL, count);
    }
}
