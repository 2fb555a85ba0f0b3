/* Rows of a file into panels (see formats.h), and single rows into floats. Both run once per weight or per token. */
#include "blocks.h"
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

/* Any other format: header, 4-bit digits, and what is left of the digits (fifth bits, or upper pairs). `out` is zeroed. */
static void pack_block(int format, uint8_t *out, const RowBlock *block, int row) {
    int halves = format == FORMAT_Q5_0 || format == FORMAT_Q6_K ? 1 : 2, singles = is_k(format) ? 2 : 0;
    for (int i = 0; i < halves; i++) memcpy(out + 2 * PANEL * i + 2 * row, block->header + 2 * i, 2);
    out += 2 * PANEL * halves;
    for (int i = 0; i < singles; i++) out[PANEL * i + row] = block->header[2 * halves + i];
    out += PANEL * singles;
    for (int j = 0; j < BLOCK / 2; j++)
        out[PANEL * j + row] = (uint8_t)((block->digits[2 * j] & 15) | block->digits[2 * j + 1] << 4);
    out += BLOCK / 2 * PANEL;
    for (int j = 0; j < BLOCK; j++) {
        if (format == FORMAT_Q6_K) out[j / 4 * PANEL + row] |= (uint8_t)(block->digits[j] >> 4 << 2 * (j % 4));
        else if (has_fifth_bits(format)) out[j / 8 * PANEL + row] |= (uint8_t)(block->digits[j] >> 4 << j % 8);
    }
}

/* The layouts of int8.c: four neighbouring k of a row side by side. `block` is as in the file. */
static void pack_dot_block(int format, uint8_t *out, const uint8_t *block, int row) {
    int halves = format == FORMAT_DOT_Q4_1 ? 2 : 1;
    for (int i = 0; i < halves; i++) memcpy(out + 2 * PANEL * i + 2 * row, block + 2 * i, 2);
    out += 2 * PANEL * halves + 4 * row, block += 2 * halves;
    if (format == FORMAT_DOT_Q8_0) {
        for (int k = 0; k < BLOCK; k++) out[k / 4 * 4 * PANEL + k % 4] = block[k] ^ 0x80;
        return;
    }
    for (int k = 0; k < BLOCK; k++) {
        uint8_t digit = k < BLOCK / 2 ? block[k] & 15 : block[k - BLOCK / 2] >> 4;
        uint8_t *to = out + k / 8 * 4 * PANEL + k % 4;
        *to = k % 8 < 4 ? digit : (uint8_t)(*to | digit << 4);
    }
}

static void pack_quantized(int format, uint8_t *panel, const uint8_t *row, int k, int place) {
    int64_t bytes = block_bytes(format); /* in the file, too, but for the K types */
    for (int b = 0; b < k / BLOCK; b++) {
        uint8_t *to = panel + b * bytes * PANEL;
        if (is_dot(format)) {
            pack_dot_block(format, to, row + b * bytes, place);
        } else if (format == FORMAT_Q8_0) {
            pack_q8_block(to, row + b * bytes, place);
        } else if (format == FORMAT_Q4_0 || format == FORMAT_Q4_1) {
            pack_q4_block(to, row + b * bytes, place, format == FORMAT_Q4_1 ? 2 : 1);
        } else {
            RowBlock block = read_block(format, row, b);
            pack_block(format, to, &block, place);
        }
    }
}

AIE_EXPORT int64_t aie_panel_bytes(int format, int k) { return packed_row_bytes(format, k) * PANEL; }

/* rows [n] in the file's layout -> out [ceil(n / 16)] panels; out must be zeroed, since padding rows are not written. */
AIE_EXPORT void aie_pack(int format, int n, int k, const uint8_t *rows, uint8_t *out) {
    int64_t stride = row_bytes(format, k);
    for (int row = 0; row < n; row += PANEL) {
        uint8_t *panel = out + row / PANEL * packed_row_bytes(format, k) * PANEL;
        const uint8_t *in = rows + row * stride;
        int num_rows = n - row < PANEL ? n - row : PANEL;
        if (!is_quantized(format)) pack_plain(panel, in, (int)(block_bytes(format) / BLOCK), k, stride, num_rows);
        else for (int r = 0; r < num_rows; r++) pack_quantized(format, panel, in + r * stride, k, r);
    }
}

/* One row in the file's layout -> out [k] floats (the embedding). */
void unpack_row(int format, int k, const uint8_t *row, float *out) {
    if (format == FORMAT_F32) {
        memcpy(out, row, 4 * (size_t)k);
        return;
    }
    for (int i = 0; !is_quantized(format) && i < k; i++) {
        uint16_t bits;
        memcpy(&bits, row + 2 * i, 2);
        out[i] = format == FORMAT_F16 ? half_to_float(bits) : bfloat_to_float(bits);
    }
    for (int b = 0; is_quantized(format) && b < k / BLOCK; b++) {
        RowBlock block = read_block(format, row, b);
        block_values(format, &block, out + b * BLOCK);
    }
}
