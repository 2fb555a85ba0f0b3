"""The real model's golden answers through the whole engine: all at once in a thread, and through a worker process."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from aie_engine import EngineConfig, GenerateRequest, TokenEvent, start_engine
from aie_tensor import NativeUnavailableError

pytestmark = [pytest.mark.real_model, pytest.mark.native, pytest.mark.timeout(300)]

COIN_TOSS = 0.02  # a gap between the two best logits that sums in another order may turn round

Ask = Callable[..., GenerateRequest]


def check(record: Mapping[str, Any], events: Sequence[TokenEvent]) -> None:
    expected = {int(token): value for token, value in record["first_logprobs"].items()}
    assert dict(events[0].logprobs[0].top) == pytest.approx(expected, abs=1e-3), record["name"]
    assert sum(len(event.logprobs) for event in events) == sum(len(event.token_ids) for event in events)
    token_ids = [token for event in events for token in event.token_ids]
    for step, (ours, theirs) in enumerate(zip(token_ids, record["greedy_ids"], strict=False)):
        if ours != theirs:
            assert record["margins"][step] < COIN_TOSS, f"{record['name']}: step {step} gave {ours}, not {theirs}"
            return
    assert len(token_ids) == len(record["greedy_ids"]), record["name"]
    # The reference stops at the end of the text, or after 48 tokens.
    ended = record["greedy_ids"][-1] == 2
    assert events[-1].finish_reason == ("stop" if ended else "length")
    assert events[-1].stop_token_id == (2 if ended else None)


@pytest.mark.parametrize(("workers", "num_prompts"), [(0, 12), (1, 3)])
def test_golden_prompts_at_once(
    real_model: Path, golden: Sequence[Mapping[str, Any]], request_for: Ask, workers: int, num_prompts: int
) -> None:
    try:
        engine = start_engine(EngineConfig(real_model, kernels="native"), workers)
    except NativeUnavailableError as error:
        pytest.skip(str(error))
    try:
        records = golden[:num_prompts]
        streams = [engine.submit(request_for(r["name"], r["prompt_ids"], 48, logprobs=5)) for r in records]
        for record, stream in zip(records, streams, strict=True):
            check(record, list(stream))
        assert engine.stats().kv_usage == 0.0
    finally:
        engine.close()


@pytest.mark.parametrize("speculate", [0, 5])
def test_nothing_changes_with_small_steps_and_odd_blocks(
    real_model: Path, golden: Sequence[Mapping[str, Any]], request_for: Ask, speculate: int
) -> None:
    """Prompts in chunks of a few tokens, so little KV memory that requests are preempted and computed again, tokens
    guessed ahead; and then once more, with the beginnings of prompts in the prefix cache."""
    config = EngineConfig(
        real_model, kernels="native", block_size=7, max_batch_size=8, max_batch_tokens=24,
        max_seq_len=120, kv_memory_bytes=140 * 46080, speculate=speculate,
    )  # fmt: skip
    try:
        engine = start_engine(config, 0)
    except NativeUnavailableError as error:
        pytest.skip(str(error))
    try:
        shortest = sorted(golden, key=lambda record: len(record["prompt_ids"]))[:6]
        for turn in ("cold", "hot"):
            streams = [engine.submit(request_for(r["name"], r["prompt_ids"], 48, logprobs=5)) for r in shortest]
            for record, stream in zip(shortest, streams, strict=True):
                check(record, list(stream))
            stats = engine.stats()
            assert stats.kv_usage == 0.0
            assert stats.num_preemptions > 0, "the memory was meant to be too small"
            assert stats.prefix_hit_tokens > 0 or turn == "cold"
            assert bool(stats.accepted_tokens) == bool(speculate)
    finally:
        engine.close()
