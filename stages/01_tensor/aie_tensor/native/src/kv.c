/* Writing into the paged cache. aie_tensor/kv_numbers.py rounds in the same way. */
#include "kv.h"

/* The largest magnitude in x [n]; NaN when something is no finite number. */
static float largest(const float *x, int n) {
    float top = 0.0f;
    for (int i = 0; i < n; i++) {
        float size = fabsf(x[i]);
        if (!(size < INFINITY)) return NAN;
        top = size > top ? size : top;
    }
    return top;
}

static float bounded_half(float x) { return x > HALF_MAX ? HALF_MAX : x < -HALF_MAX ? -HALF_MAX : x; }

/* x [n], rounded to `format`, to elements 0, step, 2 step, ... of `to`. Returns the scale of an int8 vector: symmetric, its
 * largest magnitude becomes 127. What is not finite makes the scale NaN, so that it is not lost. */
static float put(int format, const float *x, int n, uint8_t *to, int step) {
    if (format == KV_F32) {
        for (int i = 0; i < n; i++) ((float *)(void *)to)[i * step] = x[i];
        return 1.0f;
    }
    if (format == KV_F16) {
        for (int i = 0; i < n; i++) ((uint16_t *)(void *)to)[i * step] = float_to_half(bounded_half(x[i]));
        return 1.0f;
    }
    float top = largest(x, n), inverse = top > 0.0f ? 127.0f / top : 0.0f;
    int usable = inverse > 0.0f && inverse < INFINITY; /* else zeros, or so small that they are as good as zero, or NaN */
    for (int i = 0; i < n; i++) ((int8_t *)to)[i * step] = usable ? (int8_t)rintf(x[i] * inverse) : 0;
    return usable || top != top ? top / 127.0f : 0.0f;
}

void kv_store(const KvHead *head, int position, const float *key, const float *value) {
    const PlanSpec *s = head->spec;
    float key_scale = put(s->kv_format, key, s->head_dim, key_at(head, position), s->block_size);
    float value_scale = put(s->kv_format, value, s->head_dim, value_at(head, position), 1);
    if (s->kv_format != KV_I8) return;
    *scale_at(head, s->key_scales, position) = key_scale;
    *scale_at(head, s->value_scales, position) = value_scale;
}
