/* Threads that stay: the caller is thread 0, the others sleep between runs.
 *
 * Work within an operator is claimed piece by piece from one counter instead of being divided beforehand: when the
 * operating system takes a core away for a while, the other threads take over what is left. Pieces shrink towards the end
 * (guided self-scheduling, Polychronopoulos and Kuck 1987), so that all threads finish together. And nobody waits for
 * threads, only for pieces: a thread that sleeps through an operator is not missed, it finds the phase over and goes on. */
#ifndef AIE_POOL_H
#define AIE_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

/* One thread's place: the phase (an operator's work) that it is in, and the pieces it holds. */
typedef struct {
    uint32_t phase;
    int held, entered;
} Ticket;

typedef void (*PoolBody)(void *argument, int thread);

typedef struct Pool {
    _Alignas(64) atomic_ullong next; /* phase << 32 | first piece of it that nobody has claimed yet */
    _Alignas(64) atomic_int done;    /* finished pieces of the phase */
    _Alignas(64) atomic_int leaving; /* threads that have not left the run yet */
    _Alignas(64) atomic_uint run;    /* counts runs; idle threads watch it */
    atomic_int sleepers;             /* threads that wait in their sleep */
    uint32_t first_phase;            /* of the run */
    int num_threads, num_started, stopping;
    PoolBody body;
    void *argument;
    pthread_t *threads;
    pthread_mutex_t lock;
    pthread_cond_t wake, passed; /* a run begins; a phase ends, or everybody has left */
} Pool;

Pool *pool_create(int num_threads); /* NULL when memory or threads are refused */
void pool_destroy(Pool *);
void pool_run(Pool *, PoolBody, void *argument); /* body runs on all threads; returns when all have left it */
Ticket pool_ticket(const Pool *);                /* for each thread at the start of the body */
void pool_wait(Pool *, Ticket *);                /* until all pieces of the phase are done; begins the next phase */

/* How many of `total` pieces, from *first on, are this thread's; 0: none is left. What it claimed before is thereby done,
 * so a thread claims until it gets 0. All threads must give the same total. */
int pool_claim(Pool *, Ticket *, int total, int least, int most, int *first);

#endif
