"""Executors: NumPy against a plain formula, native against NumPy, and a result that no batching can change."""

import gc
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from aie_engine.batch import BatchChunk, StepBatch
from aie_engine.errors import UnsupportedOpError
from aie_engine.executors import Executor, NativeExecutor, NumpyExecutor
from aie_engine.kv_cache import KVCache
from aie_loader import Graph, Model, Node, fuse, load_model, write_tiny_gguf, write_tiny_llama
from aie_tensor import DType, MemoryPool, NativeUnavailableError, native, ops

FORMATS = ["folder", "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"]
BLOCK_SIZE, NUM_BLOCKS, MAX_TOKENS = 4, 64, 96
PROMPT = [3, 17, 99, 250, 17, 17, 301, 42, 8, 5, 133, 77, 256, 301, 9, 11, 60, 61, 62, 200, 3, 4]
EXECUTORS = ["numpy", pytest.param("native", marks=pytest.mark.native)]


@dataclass
class Rig:
    """An executor with a cache of its own; a sequence is a list of blocks, out of order on purpose."""

    executor: Executor
    kv: KVCache
    model: Model

    def table(self, sequence: int) -> list[int]:
        """Sixteen blocks of its own for each of four sequences, scattered over the cache."""
        return np.random.default_rng(0).permutation(NUM_BLOCKS).reshape(4, 16)[sequence].tolist()

    def run(self, *chunks: tuple[int, int, Sequence[int]], every_row: bool = False) -> np.ndarray:
        """Logits [R, V] of chunks (sequence, start, token ids), of the last token of each or of every token."""
        batch = StepBatch.pack([BatchChunk(ids, start, self.table(s), samples=True) for s, start, ids in chunks])
        if every_row:
            batch = replace(batch, logit_rows=np.arange(batch.num_tokens, dtype=np.int32))
        return self.executor.run(batch).copy()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Model]]:
    """The tiny model in each format, loaded once."""
    folder = tmp_path_factory.mktemp("tiny")
    loaded: dict[str, Model] = {}

    def path_of(kind: str) -> Path:
        if kind == "folder":
            return write_tiny_llama(folder / "llama")
        return write_tiny_gguf(folder / f"{kind}.gguf", quant=DType[kind])

    def load(kind: str) -> Model:
        if kind not in loaded:
            loaded[kind] = load_model(path_of(kind))
        return loaded[kind]

    yield load
    for model in loaded.values():
        model.close()


@pytest.fixture(scope="module")
def library() -> native.NativeLibrary:
    try:
        return native.load()
    except NativeUnavailableError as error:
        pytest.skip(str(error))


def build_executor(
    model: Model, kernels: str, request: pytest.FixtureRequest, *, fused: bool = True, **options: Any
) -> tuple[Executor, KVCache]:
    pool = MemoryPool()
    kv = KVCache(model.config, NUM_BLOCKS, BLOCK_SIZE, pool)
    graph = fuse(model.graph) if fused else model.graph
    if kernels == "numpy":
        return NumpyExecutor(graph, kv, **options), kv
    library = request.getfixturevalue("library")
    limits = {"max_tokens": MAX_TOKENS, "max_rows": MAX_TOKENS, "max_context": 64}
    return NativeExecutor(graph, kv, library, num_threads=2, pool=pool, **limits), kv


def build_and_close(model: Model, kernels: str, request: pytest.FixtureRequest) -> None:
    executor, kv = build_executor(model, kernels, request)
    executor.close()
    kv.close()


@pytest.fixture
def rig(request: pytest.FixtureRequest, models: Callable[[str], Model]) -> Iterator[Callable[..., Rig]]:
    """Builds rigs and closes them: rig("native", "Q4_1")."""
    built: list[Rig] = []

    def build(kernels: str, kind: str = "Q8_0", *, fused: bool = True, **options: Any) -> Rig:
        model = models(kind)
        executor, kv = build_executor(model, kernels, request, fused=fused, **options)
        built.append(Rig(executor, kv, model))
        return built[-1]

    yield build
    for one in built:
        one.executor.close()
        one.kv.close()


def assert_close(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Largest difference, relative to the size of the expected logits."""
    assert found.shape == expected.shape
    difference = np.abs(found - expected).max() / np.abs(expected).max()
    assert difference <= tolerance, f"relative difference {difference:.2e}"


def assert_unchanged(kernels: str, found: np.ndarray, expected: np.ndarray) -> None:
    """Native sums have one fixed order, so the same bits; BLAS chooses its order by the shape of the batch."""
    if kernels == "native":
        np.testing.assert_array_equal(found, expected)
    assert_close(found, expected, 1e-5)


def plain_llama(model: Model, ids: Sequence[int]) -> np.ndarray:
    """Logits [T, V] of a Llama from its formula and the folder's tensors: no parser, graph or cache of ours."""
    tensors = load_file(model.path / "model.safetensors")
    config, positions = model.config, np.arange(len(ids))
    heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_dim
    inv_freq = (config.rope_theta ** (-np.arange(0, size, 2) / size)).astype(np.float32)

    def weight(name: str) -> np.ndarray:
        return tensors[f"{name}.weight"]

    x = weight("model.embed_tokens")[list(ids)]
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        h = ops.rms_norm(x, weight(f"{prefix}.input_layernorm"), config.norm_eps)
        q, k, v = (
            (h @ weight(f"{prefix}.self_attn.{name}_proj").T).reshape(len(ids), count, size)
            for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))
        )
        q, k = ops.rope(q, positions, inv_freq, False), ops.rope(k, positions, inv_freq, False)
        mixed = ops.attention(q, k, v, positions, size**-0.5).reshape(len(ids), -1)
        x = x + mixed @ weight(f"{prefix}.self_attn.o_proj").T
        h = ops.rms_norm(x, weight(f"{prefix}.post_attention_layernorm"), config.norm_eps)
        gated = ops.silu(h @ weight(f"{prefix}.mlp.gate_proj").T) * (h @ weight(f"{prefix}.mlp.up_proj").T)
        x = x + gated @ weight(f"{prefix}.mlp.down_proj").T
    return ops.rms_norm(x, weight("model.norm"), config.norm_eps) @ weight("lm_head").T


@pytest.mark.parametrize("fused", [False, True])
def test_numpy_gives_what_the_formula_gives(rig: Callable[..., Rig], fused: bool) -> None:
    numpy = rig("numpy", "folder", fused=fused)
    assert_close(numpy.run((0, 0, PROMPT), every_row=True), plain_llama(numpy.model, PROMPT), 1e-5)


def test_gguf_and_folder_are_the_same_model(rig: Callable[..., Rig]) -> None:
    folder, gguf = rig("numpy", "folder"), rig("numpy", "F32")
    assert_close(gguf.run((0, 0, PROMPT), every_row=True), folder.run((0, 0, PROMPT), every_row=True), 1e-5)


@pytest.mark.native
@pytest.mark.parametrize("kind", FORMATS)
def test_native_gives_what_numpy_gives(rig: Callable[..., Rig], kind: str) -> None:
    fast, oracle = rig("native", kind), rig("numpy", kind, fused=False)
    steps: list[list[tuple[int, int, list[int]]]] = [
        [(0, 0, PROMPT)],
        [(0, 22, [7])],  # decode of one
        [(1, 0, PROMPT[:5]), (0, 23, [9]), (2, 0, [44])],  # prefill and decode mixed
        [(0, 24, [1]), (1, 5, PROMPT[5:]), (2, 1, [2]), (3, 0, PROMPT[3:12])],
        [(0, 25, [5]), (1, 22, [6]), (2, 2, [7]), (3, 9, [8])],  # decode of four
    ]
    for step in steps:
        assert_close(fast.run(*step, every_row=True), oracle.run(*step, every_row=True), 1e-4)


def odd_llama(folder: Path, *, hidden: int, ffn: int, heads: int, kv_heads: int, head_dim: int, layers: int) -> Model:
    """A random Llama of dimensions that no vector length divides, with the tiny model's tokenizer."""
    path = write_tiny_llama(folder, vocab=301)
    rng = np.random.default_rng(hidden)
    rows = {"q_proj": heads * head_dim, "k_proj": kv_heads * head_dim, "v_proj": kv_heads * head_dim, "o_proj": hidden}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (301, hidden), "lm_head": (301, hidden)}
    shapes["model.norm"] = (hidden,)
    for layer in (f"model.layers.{index}" for index in range(layers)):
        for name, size in rows.items():
            shapes[f"{layer}.self_attn.{name}"] = (size, heads * head_dim if name == "o_proj" else hidden)
        shapes |= {f"{layer}.mlp.gate_proj": (ffn, hidden), f"{layer}.mlp.up_proj": (ffn, hidden)}
        shapes |= {f"{layer}.mlp.down_proj": (hidden, ffn), f"{layer}.input_layernorm": (hidden,)}
        shapes[f"{layer}.post_attention_layernorm"] = (hidden,)
    tensors = {f"{name}.weight": rng.standard_normal(shape, np.float32) / 8 for name, shape in shapes.items()}
    save_file(tensors, path / "model.safetensors")
    config = json.loads((path / "config.json").read_text())
    config |= {
        "hidden_size": hidden, "intermediate_size": ffn, "num_attention_heads": heads, "vocab_size": 301,
        "num_key_value_heads": kv_heads, "head_dim": head_dim, "num_hidden_layers": layers,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    return load_model(path)


@pytest.mark.native
@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize(("hidden", "ffn", "heads", "kv_heads", "head_dim"), [
    (50, 37, 5, 1, 10), (72, 100, 3, 3, 80), (33, 17, 4, 2, 96), (16, 16, 1, 1, 2), (96, 33, 26, 1, 6),
])  # fmt: skip
def test_native_takes_dimensions_that_divide_nothing(
    tmp_path: Path, library: native.NativeLibrary, block_size: int, hidden: int, ffn: int, heads: int, kv_heads: int,
    head_dim: int,
) -> None:  # fmt: skip
    model = odd_llama(tmp_path, hidden=hidden, ffn=ffn, heads=heads, kv_heads=kv_heads, head_dim=head_dim, layers=1)
    rng, pool, limit = np.random.default_rng(1), MemoryPool(), 33
    caches = [KVCache(model.config, 200, block_size, pool) for _ in range(2)]
    fast = NativeExecutor(
        fuse(model.graph),
        caches[0],
        library,
        num_threads=5,
        max_tokens=limit,
        max_rows=limit,
        max_context=64,
        pool=pool,
    )
    slow = NumpyExecutor(model.graph, caches[1])
    tables = rng.permutation(192).reshape(3, 64)[:, : -(-64 // block_size)].tolist()
    lengths = [0, 0, 0]
    while max(lengths) < 64:  # random chunks, until the first sequence has reached the end of its context
        chunks, room = [], limit
        for s in range(3):
            if room and (count := int(rng.integers(0, min(room, 64 - lengths[s], 20) + 1))):
                ids = rng.integers(0, 301, count).tolist()
                chunks.append(BatchChunk(ids, lengths[s], tables[s], samples=True))
                lengths[s], room = lengths[s] + count, room - count
        if chunks:
            batch = StepBatch.pack(chunks)
            batch = replace(batch, logit_rows=np.arange(batch.num_tokens, dtype=np.int32))
            assert_close(fast.run(batch), slow.run(batch), 1e-4)
    for one in (fast, slow, *caches, model):
        one.close()


@pytest.mark.parametrize("kernels", EXECUTORS)
@pytest.mark.parametrize("chunk", range(1, len(PROMPT)))
def test_a_prompt_in_chunks_is_the_prompt_as_a_whole(rig: Callable[..., Rig], kernels: str, chunk: int) -> None:
    one = rig(kernels, "Q4_1")
    whole = one.run((0, 0, PROMPT), every_row=True)
    parts = [one.run((1, i, PROMPT[i : i + chunk]), every_row=True) for i in range(0, len(PROMPT), chunk)]
    assert_unchanged(kernels, np.concatenate(parts), whole)


@pytest.mark.parametrize("kernels", EXECUTORS)
def test_neighbours_in_the_batch_change_nothing(rig: Callable[..., Rig], kernels: str) -> None:
    one = rig(kernels, "Q8_0")
    alone = [one.run((0, 0, PROMPT)), one.run((0, 22, [7])), one.run((0, 23, [8]))]
    together = [
        one.run((1, 0, PROMPT[::-1]), (0, 0, PROMPT), (2, 0, [5]))[1:2],
        one.run((2, 1, PROMPT[:9]), (1, 22, [3]), (0, 22, [7]))[2:],
        one.run((0, 23, [8]), (3, 0, PROMPT[:17]))[:1],
    ]
    for found, expected in zip(together, alone, strict=True):
        assert_unchanged(kernels, found, expected)


@pytest.mark.parametrize("kernels", EXECUTORS)
def test_a_step_that_samples_nothing_still_fills_the_cache(rig: Callable[..., Rig], kernels: str) -> None:
    one = rig(kernels)
    silent = StepBatch.pack([BatchChunk(PROMPT[:9], 0, one.table(0), samples=False)])
    assert one.executor.run(silent).shape == (0, one.model.config.vocab_size)
    assert_unchanged(kernels, one.run((0, 9, PROMPT[9:])), one.run((1, 0, PROMPT)))


@pytest.mark.parametrize("kernels", EXECUTORS)
def test_argmax_of_rows(rig: Callable[..., Rig], kernels: str) -> None:
    one = rig(kernels)
    logits = one.run((0, 0, PROMPT), every_row=True)
    assert one.executor.argmax_rows(logits).tolist() == logits.argmax(axis=1).tolist()
    assert one.executor.kernels == kernels
    logits[3, 100:] = np.nan
    assert one.executor.argmax_rows(logits)[3] == 100
    batch = StepBatch.pack([BatchChunk(PROMPT, 0, one.table(0), samples=True)])
    own = one.executor.run(replace(batch, logit_rows=np.arange(len(PROMPT), dtype=np.int32)))
    for rows in (own, own[4:9], own[7:8], own[[5, 2]], own[5:5]):  # native: known already, but for the copy
        assert one.executor.argmax_rows(rows).tolist() == rows.argmax(axis=1).tolist()


def test_weights_need_not_be_kept_expanded(rig: Callable[..., Rig]) -> None:
    kept, fresh = rig("numpy"), rig("numpy", keep_expanded=False)
    np.testing.assert_array_equal(kept.run((0, 0, PROMPT)), fresh.run((0, 0, PROMPT)))


@pytest.mark.parametrize("kernels", EXECUTORS)
def test_a_closed_executor_is_gone_without_the_garbage_collector(
    models: Callable[[str], Model], request: pytest.FixtureRequest, kernels: str
) -> None:
    """It holds hundreds of megabytes; a cycle of references would hold them until the collector happens to run."""
    build_and_close(models("Q8_0"), kernels, request)
    gc.collect()
    gc.disable()
    try:
        build_and_close(models("Q8_0"), kernels, request)
        held = [o for o in gc.get_objects() if type(o).__name__ in {"Lowering", "NativeExecutor", "NumpyExecutor"}]
        assert held == []
    finally:
        gc.enable()


def test_an_unknown_operator_is_named(rig: Callable[..., Rig]) -> None:
    one = rig("numpy")
    graph = Graph(("token_ids",), [Node("x", "conjure", ("token_ids",))], ("x",))
    with pytest.raises(UnsupportedOpError, match=r"'conjure'.*'x'"):
        NumpyExecutor(graph, one.kv)


@pytest.mark.native
@pytest.mark.parametrize(
    ("op", "attrs", "match"),
    [
        ("conv_of_words", {}, "conv_of_words"),
        ("linear", {"sparsity": 0.5}, "linear with sparsity"),  # refused rather than ignored
    ],
)
def test_native_refuses_what_it_has_no_kernel_for(models, library, op, attrs, match) -> None:
    model, pool = models("folder"), MemoryPool()
    nodes = [replace(node, op=op, attrs=attrs) if node.name == "logits" else node for node in model.graph.nodes]
    kv = KVCache(model.config, 4, BLOCK_SIZE, pool)
    with pytest.raises(UnsupportedOpError, match=match):
        NativeExecutor(
            replace(model.graph, nodes=nodes),
            kv,
            library,
            num_threads=1,
            max_tokens=8,
            max_rows=8,
            max_context=8,
            pool=pool,
        )
    kv.close()
    assert pool.stats().live_bytes == 0


@pytest.mark.native
@pytest.mark.parametrize("kind", ["folder", "Q4_1"])
def test_the_unfused_graph_natively(rig: Callable[..., Rig], kind: str) -> None:
    fused, unfused = rig("native", kind), rig("native", kind, fused=False)
    assert_close(unfused.run((0, 0, PROMPT)), fused.run((0, 0, PROMPT)), 1e-6)


@pytest.mark.native
def test_activations_share_memory(rig: Callable[..., Rig]) -> None:
    executor = rig("native").executor
    assert isinstance(executor, NativeExecutor)
    shapes = fuse(rig("numpy").model.graph).shapes
    apart = sum(int(shapes[name][1]) for name in executor.memory.offsets) * MAX_TOKENS * 4
    assert executor.memory.total_bytes < apart / 3
