/* Threads that stay: the caller is thread 0, the others sleep between runs.
 *
 * Work within an operator is claimed piece by piece from one counter instead of being divided beforehand: when the
 * operating system takes a core away for a while, the other threads take over what is left. Pieces shrink towards the end
 * (guided self-scheduling, Polychronopoulos and Kuck 1987), so that all threads finish together. */
#ifndef AIE_POOL_H
#define AIE_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

typedef void (*PoolBody)(void *argument, int thread);

typedef struct Pool {
    _Alignas(64) atomic_int next;    /* first piece that nobody has claimed yet */
    _Alignas(64) atomic_int arrived; /* threads waiting at the barrier */
    _Alignas(64) atomic_uint phase;  /* counts barriers passed; waiting threads watch it */
    _Alignas(64) atomic_uint run;    /* counts runs; idle threads watch it */
    atomic_int sleepers;             /* threads that wait at the barrier in their sleep */
    int num_threads, num_started, stopping;
    PoolBody body;
    void *argument;
    pthread_t *threads;
    pthread_mutex_t lock;
    pthread_cond_t wake, passed; /* a run begins; a barrier is passed */
} Pool;

Pool *pool_create(int num_threads); /* NULL when memory or threads are refused */
void pool_destroy(Pool *);
void pool_run(Pool *, PoolBody, void *argument); /* body runs on all threads; returns when all have passed its last barrier */
void pool_barrier(Pool *);                       /* also resets the claim counter */
int pool_claim(Pool *, int total, int least, int most, int *first); /* how many pieces, from *first on; 0: none left */

#endif
