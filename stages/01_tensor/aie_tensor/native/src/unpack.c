/* One panel of any format into a tile of floats that stays in the first cache; formats.h draws the layouts. */
#include "unpack.h"

ALWAYS_INLINE void unpack_q4(const int format, const uint8_t *block, int num_blocks, float *out) {
    const int header = header_bytes(format) * PANEL, bytes = header + BLOCK / 2 * PANEL;
    for (int b = 0; b < num_blocks; b++, block += bytes, out += BLOCK * PANEL) {
        UNROLL for (int v = 0; v < VEC_PER_PANEL; v++) {
            vf scale, minimum, even, odd;
            load_scale_minimum(format, block, v, &scale, &minimum);
            for (int j = 0; j < BLOCK / 2; j++) {
                unpack_nibbles(block + header + j * PANEL + v * VW, scale, minimum, &even, &odd);
                vf_store(out + 2 * j * PANEL + v * VW, even);
                vf_store(out + (2 * j + 1) * PANEL + v * VW, odd);
            }
        }
    }
}

ALWAYS_INLINE void unpack_q5(const int format, const uint8_t *block, int num_blocks, float *out) {
    const int header = header_bytes(format) * PANEL, fifth = header + BLOCK / 2 * PANEL, bytes = fifth + BLOCK / 8 * PANEL;
    for (int b = 0; b < num_blocks; b++, block += bytes, out += BLOCK * PANEL) {
        UNROLL for (int v = 0; v < VEC_PER_PANEL; v++) {
            vf scale, minimum;
            load_scale_minimum(format, block, v, &scale, &minimum);
            for (int j = 0; j < BLOCK / 2; j++) {
                vi digits = vi_load_u8(block + header + j * PANEL + v * VW);
                vi bits = vi_load_u8(block + fifth + j / 4 * PANEL + v * VW) >> (2 * j % 8);
                vf_store(out + 2 * j * PANEL + v * VW, vf_fma(vf_from_int((digits & 15) | (bits & 1) << 4), scale, minimum));
                vf_store(out + (2 * j + 1) * PANEL + v * VW, vf_fma(vf_from_int(digits >> 4 | (bits & 2) << 3), scale, minimum));
            }
        }
    }
}

static void unpack_q6(const uint8_t *block, int num_blocks, float *out) {
    const int digits_at = 4 * PANEL, pairs_at = digits_at + BLOCK / 2 * PANEL, bytes = pairs_at + BLOCK / 4 * PANEL;
    for (int b = 0; b < num_blocks; b++, block += bytes, out += BLOCK * PANEL) {
        UNROLL for (int v = 0; v < VEC_PER_PANEL; v++) {
            vf d = vf_load_f16(block + 2 * VW * v), scale = d;
            for (int j = 0; j < BLOCK / 2; j++) {
                if (j % 8 == 0) scale = d * vf_from_int(vi_load_i8(block + (2 + j / 8) * PANEL + v * VW));
                vi digits = vi_load_u8(block + digits_at + j * PANEL + v * VW);
                vi pairs = vi_load_u8(block + pairs_at + j / 2 * PANEL + v * VW) >> (4 * j % 8);
                vf_store(out + 2 * j * PANEL + v * VW, vf_from_int(((digits & 15) | (pairs & 3) << 4) - 32) * scale);
                vf_store(out + (2 * j + 1) * PANEL + v * VW, vf_from_int((digits >> 4 | (pairs & 12) << 2) - 32) * scale);
            }
        }
    }
}

static void unpack_q8(const uint8_t *block, int num_blocks, float *out) {
    for (int b = 0; b < num_blocks; b++, block += (2 + BLOCK) * PANEL, out += BLOCK * PANEL) {
        UNROLL for (int v = 0; v < VEC_PER_PANEL; v++) {
            vf scale = vf_load_f16(block + 2 * VW * v);
            for (int j = 0; j < BLOCK; j++)
                vf_store(out + j * PANEL + v * VW, vf_from_int(vi_load_i8(block + (2 + j) * PANEL + v * VW)) * scale);
        }
    }
}

ALWAYS_INLINE void unpack_plain(const int format, const uint8_t *values, int num_k, float *out) {
    const int size = format == FORMAT_F32 ? 4 : 2;
    for (int k = 0; k < num_k; k++, values += size * PANEL, out += PANEL) {
        UNROLL for (int v = 0; v < VEC_PER_PANEL; v++) vf_store(out + v * VW, load_plain(format, values + v * VW * size));
    }
}

void unpack_panel(const PackedMatrix *w, int panel, int k0, int num_k, float *out) {
    const uint8_t *data = w->data + panel * w->panel_bytes + k0 / BLOCK * block_bytes(w->format) * PANEL;
    switch (w->format) {
    case FORMAT_F32: unpack_plain(FORMAT_F32, data, num_k, out); break;
    case FORMAT_F16: unpack_plain(FORMAT_F16, data, num_k, out); break;
    case FORMAT_BF16: unpack_plain(FORMAT_BF16, data, num_k, out); break;
    case FORMAT_Q8_0: unpack_q8(data, num_k / BLOCK, out); break;
    case FORMAT_Q4_0: unpack_q4(FORMAT_Q4_0, data, num_k / BLOCK, out); break;
    case FORMAT_Q4_1: unpack_q4(FORMAT_Q4_1, data, num_k / BLOCK, out); break;
    case FORMAT_Q4_K: unpack_q4(FORMAT_Q4_K, data, num_k / BLOCK, out); break;
    case FORMAT_Q5_0: unpack_q5(FORMAT_Q5_0, data, num_k / BLOCK, out); break;
    case FORMAT_Q5_1: unpack_q5(FORMAT_Q5_1, data, num_k / BLOCK, out); break;
    case FORMAT_Q5_K: unpack_q5(FORMAT_Q5_K, data, num_k / BLOCK, out); break;
    default: unpack_q6(data, num_k / BLOCK, out); break;
    }
}
