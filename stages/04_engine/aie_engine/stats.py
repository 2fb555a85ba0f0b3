"""Figures of a running engine, as one value that is cheap to make and to send."""

import msgspec

__all__ = ["EngineStats"]


class EngineStats(msgspec.Struct, frozen=True, array_like=True):
    """`num_*` and `kv_usage` are of now; the rest counts from the start of the engine."""

    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0  # part of the KV blocks in use, 0 to 1
    num_free_blocks: int = 0
    num_preemptions: int = 0
    steps: int = 0
    batch_size_sum: int = 0  # requests over all steps; divided by `steps` it is the mean batch size
    tokens_prefill: int = 0  # prompt tokens computed
    tokens_decode: int = 0  # tokens sampled
    step_time_s: float = 0.0  # time spent in steps
    execute_time_s: float = 0.0  # of which in the executor; the rest is the engine's own Python
    failed_steps: int = 0
    rss_bytes: int = 0  # resident memory of the engine's process
    worker_pid: int = 0
    last_step_age_s: float = 0.0  # since the last step ended; grows while idle
    num_kv_blocks: int = 0
    # What the memory pool holds, as in `PoolStats`: reserved = live + cached + pending.
    memory_reserved_bytes: int = 0
    memory_live_bytes: int = 0
    memory_requested_bytes: int = 0
    memory_cached_bytes: int = 0
    memory_pending_bytes: int = 0
    memory_mapped_bytes: int = 0
    # Of the prefix cache, in tokens: looked up at admissions, and found; and blocks kept that nobody holds.
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    num_cached_blocks: int = 0
    # Of speculation: guesses that were verified, and those that were right.
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    batch_sizes: dict[int, int] = {}  # steps by how many requests were in them; msgspec copies the default
    # Of Python's garbage collector, in the engine's process: runs, the time they took, objects it need not look at.
    gc_runs: int = 0
    gc_pause_s: float = 0.0
    gc_frozen: int = 0
