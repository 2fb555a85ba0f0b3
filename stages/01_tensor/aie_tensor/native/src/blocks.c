/* The quantized blocks of files, element by element; what `aie_tensor.decoding` and `k_blocks` say in NumPy. */
#include "blocks.h"

/* Scale and minimum (6 bits each) of the index-th of eight sub-blocks; 4 to 7 have their upper bits with the first four. */
static void six_bits(const uint8_t *packed, int index, uint8_t *scale, uint8_t *minimum) {
    if (index < 4) {
        *scale = packed[index] & 63, *minimum = packed[index + 4] & 63;
    } else {
        *scale = (uint8_t)((packed[index + 4] & 15) | (packed[index - 4] >> 2 & 48));
        *minimum = (uint8_t)(packed[index + 4] >> 4 | (packed[index] >> 2 & 48));
    }
}

/* Blocks of 32 whose digits follow a header of one or two halves: low nibbles first, then high ones. */
static void read_small(int format, const uint8_t *block, RowBlock *out) {
    int header = header_bytes(format);
    memcpy(out->header, block, (size_t)header);
    const uint8_t *fifth = block + header, *digits = has_fifth_bits(format) ? fifth + 4 : fifth;
    for (int j = 0; j < BLOCK; j++) {
        out->digits[j] = j < BLOCK / 2 ? digits[j] & 15 : digits[j - BLOCK / 2] >> 4;
        if (has_fifth_bits(format)) out->digits[j] |= (uint8_t)((fifth[j / 8] >> j % 8 & 1) << 4);
    }
}

/* Q4_K and Q5_K: d, e, scales and minima in front; a run of 32 bytes holds the digits of two sub-blocks. */
static void read_k45(int format, const uint8_t *block, int sub, RowBlock *out) {
    memcpy(out->header, block, 4);
    six_bits(block + 4, sub, &out->header[4], &out->header[5]);
    const uint8_t *fifth = block + 16, *digits = (format == FORMAT_Q5_K ? fifth + BLOCK : fifth) + sub / 2 * BLOCK;
    for (int j = 0; j < BLOCK; j++) {
        out->digits[j] = digits[j] >> 4 * (sub % 2) & 15;
        if (format == FORMAT_Q5_K) out->digits[j] |= (uint8_t)((fifth[j] >> sub & 1) << 4);
    }
}

/* Q6_K: two halves of 128 elements, each from 64 bytes of nibbles and 32 of upper pairs; a scale for every 16 elements. */
static void read_k6(const uint8_t *block, int sub, RowBlock *out) {
    int half = sub / 4, run = sub % 4;
    memcpy(out->header, block + 208, 2);
    memcpy(out->header + 2, block + 192 + 2 * sub, 2);
    for (int j = 0; j < BLOCK; j++) {
        int low = block[64 * half + 32 * (run % 2) + j] >> 4 * (run / 2) & 15, high = block[128 + 32 * half + j] >> 2 * run & 3;
        out->digits[j] = (uint8_t)(low | high << 4);
    }
}

RowBlock read_block(int format, const uint8_t *row, int index) {
    RowBlock out;
    if (format == FORMAT_Q8_0) {
        const uint8_t *block = row + index * block_bytes(format);
        memcpy(out.header, block, 2);
        memcpy(out.digits, block + 2, BLOCK);
    } else if (!is_k(format)) {
        read_small(format, row + index * block_bytes(format), &out);
    } else {
        int subs = K_BLOCK / BLOCK;
        const uint8_t *block = row + index / subs * row_bytes(format, K_BLOCK);
        if (format == FORMAT_Q6_K) read_k6(block, index % subs, &out);
        else read_k45(format, block, index % subs, &out);
    }
    return out;
}

static float half_at(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return half_to_float(h);
}

void block_values(int format, const RowBlock *block, float out[BLOCK]) {
    const uint8_t *header = block->header, *q = block->digits;
    float scale = half_at(header), minimum = 0.0f;
    if (format == FORMAT_Q8_0) {
        for (int j = 0; j < BLOCK; j++) out[j] = scale * (float)(int8_t)q[j];
        return;
    }
    if (format == FORMAT_Q6_K) {
        for (int j = 0; j < BLOCK; j++) out[j] = scale * (float)(int8_t)header[2 + j / 16] * (float)(q[j] - 32);
        return;
    }
    if (format == FORMAT_Q4_K || format == FORMAT_Q5_K) {
        scale *= (float)header[4];
        minimum = -(half_at(header + 2) * (float)header[5]);
    } else {
        minimum = header_bytes(format) == 4 ? half_at(header + 2) : scale * (format == FORMAT_Q5_0 ? -16.0f : -8.0f);
    }
    for (int j = 0; j < BLOCK; j++) out[j] = scale * (float)q[j] + minimum; /* the product is exact */
}
