/* Rows of a file into panels (see formats.h), and single rows into floats. Both run once per weight or per token. */
#include "plan.h"

static void pack_plain(uint8_t *panel, const uint8_t *rows, int size, int k, int64_t stride, int num_rows) {
    for (int i = 0; i < k; i++)
        for (int r = 0; r < num_rows; r++) memcpy(panel + ((int64_t)i * PANEL + r) * size, rows + r * stride + (int64_t)i * size, size);
}

static void pack_q8_block(uint8_t *out, const uint8_t *block, int row) {
    memcpy(out + 2 * row, block, 2);
    uint8_t *quants = out + 2 * PANEL + row;
    for (int i = 0; i < BLOCK; i++) quants[i * PANEL] = block[2 + i];
}

/* In the file a byte holds elements j and j + 16; in the panel neighbours, so that k runs in order. */
static void pack_q4_block(uint8_t *out, const uint8_t *block, int row, int num_halves) {
    for (int i = 0; i < num_halves; i++) memcpy(out + 2 * PANEL * i + 2 * row, block + 2 * i, 2);
    const uint8_t *in = block + 2 * num_halves;
    uint8_t *quants = out + 2 * PANEL * num_halves + row;
    for (int j = 0; j < BLOCK / 4; j++) {
        uint8_t a = in[2 * j], b = in[2 * j + 1];
        quants[j * PANEL] = (uint8_t)((a & 15) | (b & 15) << 4);
        quants[(j + BLOCK / 4) * PANEL] = (uint8_t)(a >> 4 | (b & 0xf0));
    }
}

AIE_EXPORT int64_t aie_panel_bytes(int format, int k) { return row_bytes(format, k) * PANEL; }

/* rows [n] in the file's layout -> out [ceil(n / 16)] panels; out must be zeroed, since padding rows are not written. */
AIE_EXPORT void aie_pack(int format, int n, int k, const uint8_t *rows, uint8_t *out) {
    int64_t stride = row_bytes(format, k), bytes = block_bytes(format);
    for (int row = 0; row < n; row += PANEL) {
        uint8_t *panel = out + row / PANEL * stride * PANEL;
        const uint8_t *in = rows + row * stride;
        int num_rows = n - row < PANEL ? n - row : PANEL;
        if (!is_quantized(format)) {
            pack_plain(panel, in, (int)(bytes / BLOCK), k, stride, num_rows);
            continue;
        }
        for (int r = 0; r < num_rows; r++)
            for (int b = 0; b < k / BLOCK; b++) {
                uint8_t *to = panel + b * bytes * PANEL;
                const uint8_t *from = in + r * stride + b * bytes;
                if (format == FORMAT_Q8_0) pack_q8_block(to, from, r);
                else pack_q4_block(to, from, r, format == FORMAT_Q4_1 ? 2 : 1);
            }
    }
}

static float half_at(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return half_to_float(h);
}

/* One row in the file's layout -> out [k] floats (the embedding). */
void unpack_row(int format, int k, const uint8_t *row, float *out) {
    if (format == FORMAT_F32) {
        memcpy(out, row, 4 * (size_t)k);
        return;
    }
    if (!is_quantized(format)) {
        for (int i = 0; i < k; i++) {
            uint16_t bits;
            memcpy(&bits, row + 2 * i, 2);
            out[i] = format == FORMAT_F16 ? half_to_float(bits) : bfloat_to_float(bits);
        }
        return;
    }
    for (int b = 0; b < k / BLOCK; b++, row += block_bytes(format), out += BLOCK) {
        float scale = half_at(row), minimum = format == FORMAT_Q4_1 ? half_at(row + 2) : -8.0f * scale;
        const uint8_t *q = row + (format == FORMAT_Q4_1 ? 4 : 2);
        for (int i = 0; i < BLOCK; i++) {
            if (format == FORMAT_Q8_0) out[i] = scale * (float)(int8_t)q[i];
            else out[i] = scale * (float)(i < 16 ? q[i] & 15 : q[i - 16] >> 4) + minimum;
        }
    }
}
