// Kernels of the memory tools, compiled by NVRTC at first use for the GPU at hand. They include nothing, so that no
// CUDA headers are needed, and use no feature newer than compute capability 5.0.

typedef unsigned char byte_t;
typedef unsigned long long count_t;

// found[0] += how many of the bytes are not `expected`; found[1] := the lowest offset of one, if below found[1].
// Sixteen bytes per load: blocks of the pool start at multiples of 64. The tail is read byte by byte.
extern "C" __global__ void find_others(const byte_t *bytes, count_t num_bytes, byte_t expected, count_t *found) {
    const count_t thread = blockIdx.x * (count_t)blockDim.x + threadIdx.x;
    const count_t num_threads = gridDim.x * (count_t)blockDim.x;
    const unsigned word = expected * 0x01010101u;
    const count_t num_wide = num_bytes / sizeof(uint4);
    count_t count = 0, first = ~0ull;
    for (count_t i = thread; i < num_wide; i += num_threads) {
        const uint4 wide = reinterpret_cast<const uint4 *>(bytes)[i];
        if (wide.x == word && wide.y == word && wide.z == word && wide.w == word) continue;
        for (count_t k = i * sizeof(uint4); k < (i + 1) * sizeof(uint4); ++k) {
            if (bytes[k] == expected) continue;
            ++count;
            if (k < first) first = k;
        }
    }
    for (count_t k = num_wide * sizeof(uint4) + thread; k < num_bytes; k += num_threads) {
        if (bytes[k] == expected) continue;
        ++count;
        if (k < first) first = k;
    }
    if (count > 0) {  // rare: most threads see only intact bytes, and touch no shared word
        atomicAdd(found, count);
        atomicMin(found + 1, first);
    }
}

// y := a·x + y, `rounds` times over: work whose length can be chosen, to show a copy running beside it.
extern "C" __global__ void axpy(float *y, const float *x, float a, count_t num_elements, int rounds) {
    const count_t num_threads = gridDim.x * (count_t)blockDim.x;
    for (count_t i = blockIdx.x * (count_t)blockDim.x + threadIdx.x; i < num_elements; i += num_threads) {
        const float addend = x[i];
        float sum = y[i];
        for (int round = 0; round < rounds; ++round) sum = a * addend + sum;
        y[i] = sum;
    }
}
