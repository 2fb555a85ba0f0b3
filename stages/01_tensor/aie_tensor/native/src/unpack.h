/* Packed weights as floats. */
#ifndef AIE_UNPACK_H
#define AIE_UNPACK_H

#include "formats.h"

ALWAYS_INLINE void prefetch(const uint8_t *from, const int bytes) {
    UNROLL for (int i = 0; i < bytes; i += 64) __builtin_prefetch(from + i);
}

/* k0 .. k0 + num_k of one panel -> out [num_k][16]. */
void unpack_panel(const PackedMatrix *w, int panel, int k0, int num_k, float *out);

#endif
