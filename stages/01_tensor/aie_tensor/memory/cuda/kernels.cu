// Kernels of the memory tools, compiled by NVRTC at first use for the GPU at hand. They include nothing, so that no
// CUDA headers are needed, and use no feature newer than compute capability 5.0.

typedef unsigned char byte_t;
typedef unsigned long long count_t;

// The lowest offset at which `bytes` differs from `expected`, by atomicMin into *found, which starts at ~0.
// Sixteen bytes per load: blocks of the pool start at multiples of 64. The tail is read byte by byte.
extern "C" __global__ void find_other(const byte_t *bytes, count_t num_bytes, byte_t expected, count_t *found) {
    const count_t first = blockIdx.x * (count_t)blockDim.x + threadIdx.x;
    const count_t num_threads = gridDim.x * (count_t)blockDim.x;
    const unsigned word = expected * 0x01010101u;
    const count_t num_wide = num_bytes / sizeof(uint4);
    for (count_t i = first; i < num_wide; i += num_threads) {
        const uint4 wide = reinterpret_cast<const uint4 *>(bytes)[i];
        if (wide.x == word && wide.y == word && wide.z == word && wide.w == word) continue;
        for (count_t k = i * sizeof(uint4); k < (i + 1) * sizeof(uint4); ++k) {
            if (bytes[k] != expected) {
                atomicMin(found, k);
                return;  // this thread's later offsets are larger
            }
        }
    }
    for (count_t k = num_wide * sizeof(uint4) + first; k < num_bytes; k += num_threads) {
        if (bytes[k] != expected) {
            atomicMin(found, k);
            return;
        }
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
