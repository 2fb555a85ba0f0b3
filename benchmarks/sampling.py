"""What each wish costs a row of logits: `python benchmarks/sampling.py [--rows 1 32] [--vocab 49152] [--json PATH]`.

Rows look like a language model's: logits fall with the logarithm of their rank, and a little noise. For each wish the
time per row is the smallest of many runs of `sample`, in processor time of the one thread that it takes, so that a busy
machine shows little in it. The last column is the same done plainly: every row by itself, sorted and summed up whole.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aie_engine import SamplingParams
from aie_engine.philox import uniform_one
from aie_engine.sampling import SampleRow, sample

WISHES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top_k": {"top_k": 50},
    "top_p": {"top_p": 0.9},
    "min_p": {"min_p": 0.05},
    "top_k and top_p": {"top_k": 50, "top_p": 0.9},
    "typical_p": {"typical_p": 0.9},
    "repetition penalty": {"temperature": 0.0, "repetition_penalty": 1.1},
    "frequency and presence": {"temperature": 0.0, "frequency_penalty": 0.5, "presence_penalty": 0.5},
    "logit_bias of 100": {"temperature": 0.0, "logit_bias": tuple((token, 1.0) for token in range(100))},
    "bad_words, 20": {"temperature": 0.0, "bad_words": tuple((token, token + 1) for token in range(20))},
    "allowed_token_ids, 500": {"temperature": 0.0, "allowed_token_ids": tuple(range(500))},
    "mask": {"temperature": 0.0},
    "logprobs, 5": {"temperature": 0.0, "logprobs": 5},
}
NUM_KNOWN, NUM_PROMPT = 500, 250
PLAIN = ("temperature", "top_k", "top_p", "min_p", "top_k and top_p")

Float32Array = npt.NDArray[np.float32]


@dataclass(slots=True)
class Cost:
    """Of one wish with so many rows."""

    wish: str
    num_rows: int
    us_per_row: float = float("inf")
    plain_us_per_row: float | None = None


def model_like(num_rows: int, vocab: int, rng: np.random.Generator) -> Float32Array:
    """Logits [R, V]."""
    by_rank = -1.3 * np.log(np.arange(1, vocab + 1))
    rows = [rng.permutation(by_rank) + 0.5 * rng.standard_normal(vocab) for _ in range(num_rows)]
    return np.stack(rows).astype(np.float32)


def rows_that_wish(name: str, num_rows: int, vocab: int, rng: np.random.Generator) -> list[SampleRow]:
    known = rng.integers(0, vocab, NUM_KNOWN).astype(np.int32)
    params = SamplingParams(**WISHES[name]).with_seed(1)
    mask = rng.integers(0, 2**32, -(-vocab // 32), dtype=np.uint64).astype(np.uint32) if name == "mask" else None
    return [SampleRow(params, NUM_KNOWN, known, NUM_PROMPT, mask=mask) for _ in range(num_rows)]


def sample_plainly(logits: Float32Array, rows: Sequence[SampleRow]) -> list[int]:
    """What temperature and filters mean, in the words of their definitions."""
    return [_one_plainly(values, row) for values, row in zip(logits, rows, strict=True)]


def _one_plainly(values: Float32Array, row: SampleRow) -> int:
    wish = row.params
    scaled = (values - values.max()).astype(np.float64) / wish.temperature
    order = np.argsort(-scaled, kind="stable")
    weights = np.exp(scaled[order])
    kept = int((weights >= wish.min_p).sum())
    if wish.top_k > 0:
        kept = min(kept, wish.top_k)
    sums = np.cumsum(weights[:kept])
    kept = min(kept, 1 + int(np.searchsorted(sums, wish.top_p * sums[-1])))
    aim = uniform_one(wish.seed or 0, row.position) * sums[kept - 1]
    return int(order[min(kept - 1, int(np.searchsorted(sums, aim, side="right")))])


def seconds(run: Callable[[], object]) -> float:
    began = time.thread_time()
    run()
    return time.thread_time() - began


def measure(num_rows: int, vocab: int, num_rounds: int) -> list[Cost]:
    rng = np.random.default_rng(0)
    logits = model_like(num_rows, vocab, rng)
    asked = {name: rows_that_wish(name, num_rows, vocab, rng) for name in WISHES}
    costs = {name: Cost(name, num_rows) for name in WISHES}
    for number in range(num_rounds):
        for name, rows in asked.items():
            cost = costs[name]
            cost.us_per_row = min(cost.us_per_row, 1e6 / num_rows * seconds(lambda rows=rows: sample(logits, rows)))
            if name in PLAIN and number < 3:
                took = 1e6 / num_rows * seconds(lambda rows=rows: sample_plainly(logits, rows))
                cost.plain_us_per_row = min(took, cost.plain_us_per_row or took)
    return list(costs.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32], help="rows of a step (default: 1 32)")
    parser.add_argument("--vocab", type=int, default=49152, help="tokens of the model (default: 49152)")
    parser.add_argument("--rounds", type=int, default=20, help="runs of each wish (default: 20)")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    args = parser.parse_args()
    costs = [cost for num_rows in args.rows for cost in measure(num_rows, args.vocab, args.rounds)]
    print(f"Python {platform.python_version()}, numpy {np.__version__}, {args.vocab} tokens; smallest of runs\n")
    print(f"{'wish':<26}{'rows':>6}{'µs/row':>9}{'plainly':>10}")
    for cost in costs:
        plainly = "" if cost.plain_us_per_row is None else f"{cost.plain_us_per_row:.0f}"
        print(f"{cost.wish:<26}{cost.num_rows:>6}{cost.us_per_row:>9.0f}{plainly:>10}")
    if args.json:
        args.json.write_text(json.dumps([asdict(cost) for cost in costs], indent=1))


if __name__ == "__main__":
    main()
