/* One quantized block of 32 elements of one row, as a file has it, taken apart. */
#ifndef AIE_BLOCKS_H
#define AIE_BLOCKS_H

#include "formats.h"

typedef struct {
    uint8_t header[6];    /* as in formats.h, for one row */
    uint8_t digits[BLOCK]; /* the levels q, whole; int8 for Q8_0 */
} RowBlock;

/* The index-th 32 elements of a row. */
RowBlock read_block(int format, const uint8_t *row, int index);

/* The same as floats. */
void block_values(int format, const RowBlock *, float out[BLOCK]);

#endif
