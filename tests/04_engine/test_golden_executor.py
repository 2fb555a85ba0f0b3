"""The real model's golden answers, at the level of the executor: all kernels and formats, alone and in a batch.

The reference (transformers, float32, weights expanded from the same GGUF) records for each prompt the greedy tokens,
the gap between the two best logits at each step, and five log-probabilities of the first. A gap below 0.02 is a coin
toss of float32 sums in another order: there the token may differ, and then the rest of that prompt proves nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aie_engine.batch import BatchChunk, StepBatch
from aie_engine.executors import Executor, NativeExecutor, NumpyExecutor
from aie_engine.kv_cache import KVCache
from aie_engine.params import SamplingParams
from aie_engine.requests import TokenLogprobs
from aie_engine.sampling import SampleRow, sample
from aie_loader import Model, export_safetensors, fuse, load_model
from aie_tensor import MemoryPool, NativeUnavailableError, native

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(900)]

Record = Mapping[str, Any]
BLOCK_SIZE, NUM_BLOCKS, MAX_TOKENS = 16, 96, 640
COIN_TOSS = 0.02


class Decoder:
    """Greedy decoding over an executor: block tables by hand, every sequence in every step."""

    def __init__(self, executor: Executor, kv: KVCache) -> None:
        self.executor, self.kv = executor, kv

    def run(self, prompts: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[list[TokenLogprobs]]:
        """The first `lengths` tokens after each prompt. A sequence leaves the batch when it has them."""
        free = iter(range(NUM_BLOCKS))
        tables = [
            [next(free) for _ in range(self.kv.blocks_for(len(prompt) + length))]
            for prompt, length in zip(prompts, lengths, strict=True)
        ]
        answers: list[list[TokenLogprobs]] = [[] for _ in prompts]
        todo = [(i, 0, list(prompt)) for i, prompt in enumerate(prompts)]  # (sequence, start, tokens to compute)
        while todo:
            chunks = [BatchChunk(tokens, start, tables[i], samples=True) for i, start, tokens in todo]
            logits = self.executor.run(StepBatch.pack(chunks))
            wish = SamplingParams(temperature=0, logprobs=0 if answers[todo[0][0]] else 5)
            rows = [SampleRow(wish, 0, np.empty(0, np.int32), 0) for _ in todo]
            output = sample(logits, rows, argmax=self.executor.argmax_rows)
            for (i, _, _), found in zip(todo, output.logprobs, strict=True):
                assert found is not None
                answers[i].append(found)
            todo = [
                (i, start + len(tokens), [answers[i][-1].token_id])
                for i, start, tokens in todo
                if len(answers[i]) < lengths[i]
            ]
        return answers


def check(record: Record, answer: Sequence[TokenLogprobs]) -> None:
    """The answer, or its beginning, is the golden one."""
    expected = {int(token): value for token, value in record["first_logprobs"].items()}
    assert dict(answer[0].top) == pytest.approx(expected, abs=1e-3), record["name"]
    for step, found in enumerate(answer):
        token, margin = record["greedy_ids"][step], record["margins"][step]
        if found.token_id != token:
            assert margin < COIN_TOSS, f"{record['name']}: step {step} gave {found.token_id}, not {token}"
            return


@pytest.fixture(scope="module")
def models(real_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Model]]:
    """The model from its GGUF file and from a safetensors folder written out of it, each loaded once."""
    loaded: dict[str, Model] = {"gguf": load_model(real_model)}

    def load(source: str) -> Model:
        if source not in loaded:
            folder = tmp_path_factory.mktemp("smollm2")
            export_safetensors(loaded["gguf"], folder)
            loaded[source] = load_model(folder)
        return loaded[source]

    yield load
    for model in loaded.values():
        model.close()


@contextmanager
def decoder(model: Model, kernels: str) -> Iterator[Decoder]:
    pool = MemoryPool()
    kv = KVCache(model.config, NUM_BLOCKS, BLOCK_SIZE, pool)
    executor: Executor
    if kernels == "numpy":
        executor = NumpyExecutor(model.graph, kv)
    else:
        try:
            lib = native.load()
        except NativeUnavailableError as error:
            pytest.skip(str(error))
        executor = NativeExecutor(
            fuse(model.graph), kv, lib, num_threads=2, max_tokens=MAX_TOKENS, max_rows=64, max_context=1024, pool=pool
        )
    yield Decoder(executor, kv)
    executor.close()
    kv.close()


@pytest.mark.parametrize("source", ["gguf", "safetensors"])
@pytest.mark.parametrize("kernels", [pytest.param("native", marks=pytest.mark.native), "numpy"])
def test_golden_answers(models: Callable[[str], Model], golden: Sequence[Record], source: str, kernels: str) -> None:
    prompts = [record["prompt_ids"] for record in golden]
    lengths = [len(record["greedy_ids"]) for record in golden]
    with decoder(models(source), kernels) as greedy:
        answers = greedy.run(prompts, lengths)
        for record, answer in zip(golden, answers, strict=True):
            check(record, answer)
        for record, prompt, length in zip(golden, prompts, lengths, strict=True):
            check(record, greedy.run([prompt], [length])[0])


@pytest.mark.parametrize("source", ["gguf", "safetensors"])
def test_golden_prompts_encode_to_the_golden_ids(
    models: Callable[[str], Model], golden: Sequence[Record], source: str
) -> None:
    tokenizer = models(source).tokenizer
    for record in golden:
        assert tokenizer.encode(record["prompt"]) == record["prompt_ids"], record["name"]
