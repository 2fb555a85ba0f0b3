"""Is an engine fit to serve, how much will it take, and what is left of it afterwards."""

import gc
import json
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from aie_engine import (
    EngineConfig,
    Golden,
    InvalidInputError,
    LocalEngine,
    ModelCheckError,
    TextModel,
    TokenEvent,
    available_memory_bytes,
    check_engine,
    collect_closed_engines,
    load_text_model,
    memory_need,
    read_golden,
)
from aie_engine.requests import ErrorInfo


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[LocalEngine]:
    made = LocalEngine(EngineConfig(tiny_model, kernels="numpy", max_batch_size=2, kv_memory_bytes=1 << 20))
    yield made
    made.close()


@pytest.fixture(scope="module")
def text(tiny_model: Path) -> TextModel:
    return load_text_model(tiny_model)


def test_a_sound_engine_passes(engine: LocalEngine, text: TextModel) -> None:
    check_engine(engine, text)


def test_a_golden_answer(engine: LocalEngine, text: TextModel, tmp_path: Path) -> None:
    with pytest.raises(ModelCheckError, match="answered with") as caught:
        check_engine(engine, text, Golden("The scheduler", (0, 0, 0)))
    right = tuple(json.loads(str(caught.value).split("answered with ")[1].split(", not")[0]))
    check_engine(engine, text, Golden("The scheduler", right))
    ids = text.tokenizer.encode("The scheduler", add_special_tokens=True)
    path = tmp_path / "golden.json"
    path.write_text(json.dumps({"prompt": ids, "token_ids": right}))
    golden = read_golden(path)
    assert golden == Golden(tuple(ids), right)
    check_engine(engine, text, golden)


def test_a_long_golden_answer_makes_no_long_message(engine: LocalEngine, text: TextModel) -> None:
    with pytest.raises(ModelCheckError, match=r"0, … 3000 tokens\] as golden.json expects") as caught:
        check_engine(engine, text, Golden("The scheduler", (0,) * 3000))
    assert len(str(caught.value)) < 400


def test_a_golden_prompt_that_the_engine_does_not_take(engine: LocalEngine, text: TextModel) -> None:
    for prompt in ((1 << 20,), (1,) * 10_000):
        with pytest.raises(ModelCheckError, match=r"golden prompt"):
            check_engine(engine, text, Golden(prompt, (1,)))


class Scripted:
    """An engine that answers one event, or nothing."""

    def __init__(self, engine: LocalEngine, event: TokenEvent | None) -> None:
        self.info, self._event = engine.info, event
        self.cancelled = 0

    def submit(self, request):
        from aie_engine import TokenStream

        stream = TokenStream(request.request_id, self._cancel)
        if self._event is not None:
            stream.put(self._event)
        return stream

    def _cancel(self, request_id):
        self.cancelled += 1


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (TokenEvent("r", finish_reason="error", error=ErrorInfo("nan", "The logits are NaN.", 500)), "are NaN"),
        (TokenEvent("r", (1 << 20,), finish_reason="length"), "no tokens of the model"),
        (TokenEvent("r", (), finish_reason="length"), "no tokens of the model"),
        (None, "no token within"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(engine: LocalEngine, text: TextModel, event: TokenEvent | None, words: str) -> None:
    scripted = Scripted(engine, event)
    with pytest.raises(ModelCheckError, match=words):
        check_engine(scripted, text, timeout_s=0)
    assert scripted.cancelled == (event is None)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"prompt": 1, "token_ids": [1]}', '{"prompt": "a", "token_ids": []}',
     '{"prompt": "", "token_ids": [1]}',
     '{"prompt": "a", "token_ids": [1], "more": 1}', "[" * 10_000, " " * (1 << 20) + "{}"],
)  # fmt: skip
def test_a_golden_file_that_is_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "golden.json"
    path.write_text(content)
    with pytest.raises(ModelCheckError, match=r"golden\.json"):
        read_golden(path)


def test_no_golden_file(tmp_path: Path) -> None:
    assert read_golden(tmp_path / "golden.json") is None
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(ModelCheckError, match="is no file"):
            read_golden(path)


def test_what_a_model_needs(tiny_model: Path, text: TextModel) -> None:
    engine = LocalEngine(EngineConfig(tiny_model, kernels="numpy", max_batch_size=2, kv_memory_bytes=1 << 20))
    try:
        need = memory_need(EngineConfig(tiny_model, max_batch_size=2, kv_memory_bytes=1 << 20), text.config, 1000)
        assert need.weights == 1000 and need.total == 1000 + need.kv_cache
        # Keys and values in float32, for every token that the blocks hold.
        tokens = engine.info.num_kv_blocks * engine.info.block_size
        assert (
            need.kv_cache == tokens * 2 * 4 * text.config.num_layers * text.config.num_kv_heads * text.config.head_dim
        )
    finally:
        engine.close()
    with pytest.raises(InvalidInputError, match="max_seq_len"):
        memory_need(EngineConfig(tiny_model, max_seq_len=1 << 20), text.config, 1000)


def test_memory_that_is_available(tmp_path: Path) -> None:
    assert 0 < available_memory_bytes(tmp_path) <= psutil.virtual_memory().total
    (tmp_path / "memory.max").write_text("10000\n")
    (tmp_path / "memory.current").write_text("7000\n")
    (tmp_path / "memory.stat").write_text("anon 4000\nactive_file 500\ninactive_file 1500\nslab 9\n")
    assert available_memory_bytes(tmp_path) == 5000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory_bytes(tmp_path) > 5000


def test_nothing_is_left_of_a_closed_engine(tiny_model: Path) -> None:
    config = EngineConfig(tiny_model, kernels="numpy", max_batch_size=2, kv_memory_bytes=1 << 20)
    engines = [LocalEngine(config) for _ in range(2)]
    parts = [engine._parts for engine in engines]
    pools = [weakref.ref(part.memory.pool) for part in parts]
    cores = [weakref.ref(part.core) for part in parts]
    for engine in engines:
        engine.close()
    stats = [part.memory.pool.stats() for part in parts]
    assert all((s.live_bytes, s.reserved_bytes, s.mapped_bytes) == (0, 0, 0) for s in stats)
    del engine, engines, parts
    collect_closed_engines()
    assert [ref() for ref in (*pools, *cores)] == [None] * 4
    assert gc.get_freeze_count(), "what lives on is left alone again"
