/* Included by the compiler before each file of the kernels, in one build that only test_native_pool.py uses: in front of
 * every atomic operation and lock a thread may lose time, so that orders of events come up that are otherwise rare. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

static inline void shake(void) {
    static _Thread_local uint32_t state;
    if (!state) state = (uint32_t)(uintptr_t)&state | 1;
    state ^= state << 13, state ^= state >> 17, state ^= state << 5;
    if (state % 8 == 0) sched_yield();
    for (volatile uint32_t i = 0; state % 4 == 1 && i < state % 1024; i++) {}
}

#undef atomic_load
#undef atomic_store
#undef atomic_fetch_add
#undef atomic_fetch_sub
#undef atomic_compare_exchange_weak
#define atomic_load(p) (shake(), __atomic_load_n((p), __ATOMIC_SEQ_CST))
#define atomic_store(p, v) (shake(), __atomic_store_n((p), (v), __ATOMIC_SEQ_CST))
#define atomic_fetch_add(p, v) (shake(), __atomic_fetch_add((p), (v), __ATOMIC_SEQ_CST))
#define atomic_fetch_sub(p, v) (shake(), __atomic_fetch_sub((p), (v), __ATOMIC_SEQ_CST))
#define atomic_compare_exchange_weak(p, expected, v) \
    (shake(), __atomic_compare_exchange_n((p), (expected), (v), 1, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
#define pthread_mutex_lock(m) (shake(), pthread_mutex_lock(m))
#define pthread_cond_wait(c, m) (shake(), pthread_cond_wait((c), (m)))
