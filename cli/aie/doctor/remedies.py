"""What to change, by the name that each server has for it."""

from collections.abc import Mapping
from typing import Final, Literal

__all__ = ["FLAGS", "Knob", "how_to_start_leak_hunt", "setting"]

Knob = Literal["batch", "kv", "prefill", "queue", "rate", "threads", "workers", "wait", "batcher"]

# Server, as its metrics tell whose they are → what is to be turned → the flag. Where a server has none it is not there.
FLAGS: Final[Mapping[str, Mapping[Knob, str]]] = {
    "aie": {
        "batch": "--max-batch-size",
        "kv": "--kv-memory",
        "prefill": "--max-prefill-tokens",
        "queue": "--max-queue",
        "rate": "--rate-limit",
        "threads": "--threads",
        "workers": "--workers",
        "wait": "--max-wait-ms",
        "batcher": "--batcher",
    },
    "vLLM": {
        "batch": "--max-num-seqs",
        "kv": "--gpu-memory-utilization",
        "prefill": "--max-num-batched-tokens",
        "workers": "--data-parallel-size",
    },
    "SGLang": {
        "batch": "--max-running-requests",
        "kv": "--mem-fraction-static",
        "prefill": "--chunked-prefill-size",
        "queue": "--max-queued-requests",
        "workers": "--dp-size",
    },
    "llama-server": {
        "batch": "--parallel",
        "kv": "--ctx-size",
        "prefill": "--ubatch-size",
        "threads": "--threads",
    },
}
_IN_WORDS: Final[Mapping[Knob, str]] = {
    "batch": "its limit on requests computed at once",
    "kv": "its memory for the KV cache",
    "prefill": "its limit on prompt tokens in a step",
    "queue": "its limit on waiting requests",
    "rate": "its limit on requests per second",
    "threads": "its number of compute threads",
    "workers": "its number of workers",
    "wait": "how long its batches wait for company",
    "batcher": "how it makes batches",
}


def setting(server: str, knob: Knob) -> str:
    """`--max-batch-size`; of an unknown server what it is about, with other servers' names for it."""
    flag = FLAGS.get(server, {}).get(knob)
    if flag is not None:
        return flag
    known = [f"{name}: {flags[knob]}" for name, flags in FLAGS.items() if knob in flags and name != "aie"]
    return _IN_WORDS[knob] + (f" ({', '.join(known)})" if known and server not in FLAGS else "")


def how_to_start_leak_hunt(server: str, url: str) -> str:
    """What finds the line of code that holds memory."""
    if server == "aie":
        return f"start it with --memdebug, then `aie memdebug --url {url} --requests 200` names owner and line"
    return "a heap profiler in its process (memray attach, for Python) names the line; restart it meanwhile"
