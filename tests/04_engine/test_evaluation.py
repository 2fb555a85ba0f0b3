"""Divergence and perplexity: by hand, and between models that are the same or nearly so."""

import gc
import math
import weakref
from pathlib import Path

import numpy as np
import pytest

from aie_engine import EngineConfig, GenerateRequest, InvalidInputError, LocalEngine, SamplingParams, memory_need
from aie_engine.evaluation import Tally, TextRunner, builtin_texts, compare_logits, price_precisions
from aie_loader import Model, WeightConverter, export_model, find_precision, load_model
from aie_tensor import Matrix, NativeUnavailableError


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    return load_model(tiny_model)


def test_by_hand() -> None:
    """p = (1/2, 1/4, 1/4), q = (1/4, 1/2, 1/4): KL = ½ ln 2 − ¼ ln 2; the next token is the second of three."""
    p, q = (np.log(np.array([values], np.float32)) for values in ([2, 1, 1], [1, 2, 1]))
    found = compare_logits(p, q + np.float32(7), np.array([1]))  # a constant on all logits changes nothing
    assert found.kl[0] == pytest.approx(0.25 * math.log(2), rel=1e-6)
    assert found.loss[0] == pytest.approx(math.log(2), rel=1e-6)
    assert not found.agrees[0]
    tally = Tally()
    tally.add(found)
    tally.add(compare_logits(p, p, np.array([0])))
    assert tally.num_positions == 2
    assert tally.mean_kl == pytest.approx(0.125 * math.log(2), rel=1e-6)
    assert tally.max_kl == pytest.approx(0.25 * math.log(2), rel=1e-6)
    assert tally.perplexity == pytest.approx(2.0, rel=1e-6)
    assert tally.agreement == 0.5


def test_a_uniform_model_is_as_lost_as_its_vocabulary_is_large() -> None:
    tally = Tally()
    flat = np.zeros((5, 40), np.float32)
    tally.add(compare_logits(flat, flat, np.arange(5)))
    assert tally.perplexity == pytest.approx(40) and tally.mean_kl == 0 and tally.max_kl == 0


def test_a_token_that_the_other_thinks_impossible() -> None:
    reference, other = np.zeros((1, 2), np.float32), np.array([[0, -1000]], np.float32)
    found = compare_logits(reference, other, np.array([0]))
    assert found.kl[0] == pytest.approx(500 - math.log(2), rel=1e-6)


def test_texts_are_there() -> None:
    texts = builtin_texts()
    assert set(texts) == {"code", "cooking", "sea", "servers", "talk"}
    assert 6_000 < sum(len(text.encode()) for text in texts.values()) < 10_000


@pytest.mark.parametrize("kernels", ["numpy", "auto"])
def test_logits_do_not_depend_on_the_pieces(model: Model, kernels: str) -> None:
    ids = model.tokenizer.encode(builtin_texts()["sea"])[:150]
    runner = TextRunner(model, None, max_len=150, kernels=kernels)  # type: ignore[arg-type]
    whole = np.concatenate([np.array(piece) for piece in runner.logits(ids)])
    assert whole.shape == (150, model.config.vocab_size)
    begun = np.concatenate([np.array(piece) for piece in runner.logits(ids[:70])])
    np.testing.assert_allclose(begun, whole[:70], rtol=1e-4, atol=1e-4)
    assert runner.decode_seconds(ids[70], 70) > 0
    runner.close()


@pytest.mark.parametrize("kernels", ["numpy", "auto"])
def test_prices(model: Model, kernels: str) -> None:
    names = ("fp32", "bf16", "int8", "int8-row", "int4")
    chosen = [find_precision(name) for name in names]
    arrived: list[str] = []
    prices = price_precisions(
        model,
        chosen,
        kernels=kernels,  # type: ignore[arg-type]
        rounds=1,
        max_tokens=40,
        arrived=lambda price: arrived.append(price.precision),
    )
    table = {price.precision: price for price in prices}
    assert arrived == ["file", *names]
    assert table["file"].step_share == 1.0
    for name in ("file", "fp32"):  # the tiny model is stored in fp32
        price = table[name]
        assert price.mean_kl == price.max_kl == 0 and price.agreement == 1 and price.bits_per_weight == 32
    divergence = [table[name].mean_kl for name in names]
    assert divergence == sorted(divergence) and divergence[-1] > 10 * divergence[2] > 0
    assert table["int4"].num_positions == 5 * 39
    sizes = [table[name].weight_bytes for name in names]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] == model.weight_bytes
    assert 8.5 < table["int8"].bits_per_weight < 8.6
    for price in prices:
        assert price.max_kl >= price.mean_kl and price.perplexity > 1 and price.step_s > 0


@pytest.mark.native
def test_prices_of_activations_in_eight_bits(model: Model) -> None:
    """Each kind that has such products is priced with them, too; the others are named."""
    lines: list[str] = []
    prices = price_precisions(
        model,
        [find_precision(name) for name in ("bf16", "int8", "int4")],
        rounds=1,
        max_tokens=40,
        activations="int8",
        report=lines.append,
    )
    table = {price.precision: price for price in prices}
    assert list(table) == ["file", "bf16", "int8", "int4", "int8 a8", "int4 a8"]
    for name in ("int8", "int4"):
        plain, rounded = table[name], table[f"{name} a8"]
        assert rounded.weight_bytes == plain.weight_bytes
        assert rounded.mean_kl != plain.mean_kl and 0 < rounded.mean_kl < 0.2
    refused = [line for line in lines if "no product with int8 activations" in line]
    assert [line.split()[2].rstrip(",") for line in refused] == ["F32", "BF16"]


@pytest.mark.native
def test_an_engine_with_activations_in_eight_bits(tiny_model: Path) -> None:
    """Its text does not depend on company either; weights without such products are refused by name."""
    sampling = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    engine = LocalEngine(EngineConfig(tiny_model, kv_memory_bytes=1 << 20, precision="int8", activations="int8"))
    prompts = [(5, 6, 7, 300, 20), (9, 8), tuple(range(30, 60))]
    alone = [[event.token_ids for event in engine.submit(GenerateRequest("x", ids, sampling))] for ids in prompts]
    streams = [engine.submit(GenerateRequest(str(i), ids, sampling)) for i, ids in enumerate(prompts)]
    together = [[event.token_ids for event in stream] for stream in streams]
    engine.close()
    assert [sum(part, ()) for part in together] == [sum(part, ()) for part in alone]
    with pytest.raises(InvalidInputError, match="weight is F32, of which there is no product with int8 activations"):
        LocalEngine(EngineConfig(tiny_model, kv_memory_bytes=1 << 20, activations="int8"))
    with pytest.raises(InvalidInputError, match="int8 activations are for native kernels"):
        EngineConfig(tiny_model, kernels="numpy", activations="int8")
    with pytest.raises(InvalidInputError, match="activations must be fp32 or int8, not 'int4'"):
        EngineConfig(tiny_model, activations="int4")  # type: ignore[arg-type]


@pytest.mark.parametrize("kernels", ["numpy", "auto"])
@pytest.mark.parametrize("precision", ["bf16", "int8-row", "int4"])
def test_an_engine_in_another_precision_says_what_the_written_model_says(
    kernels: str, precision: str, tiny_model: Path, tmp_path: Path
) -> None:
    """Converted while it is loaded, and converted into a file first: the same numbers, so the same text."""
    path = export_model(load_model(tiny_model), tmp_path / "out.gguf", find_precision(precision))
    sampling = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    answers, sizes = [], []
    for config in (
        EngineConfig(tiny_model, kernels=kernels, kv_memory_bytes=1 << 20, precision=precision),  # type: ignore[arg-type]
        EngineConfig(path, kernels=kernels, kv_memory_bytes=1 << 20),  # type: ignore[arg-type]
    ):
        engine = LocalEngine(config)
        events = list(engine.submit(GenerateRequest("x", (5, 6, 7, 300, 20), sampling)))
        answers.append([token for event in events for token in event.token_ids])
        sizes.append(engine.info.weight_bytes)
        engine.close()
    assert answers[0] == answers[1] and len(answers[0]) == 12
    assert sizes[0] == sizes[1]


def test_one_weight_is_converted_at_a_time(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The native executor packs each and forgets it; the embedding table is copied into the pool."""
    convert = WeightConverter.convert
    made: list[weakref.ref[object]] = []
    alive: list[int] = []

    def watched(self: WeightConverter, name: str, matrix: Matrix) -> Matrix:
        gc.collect()
        alive.append(sum(reference() is not None for reference in made))
        converted = convert(self, name, matrix)
        made.append(weakref.ref(converted.data))
        return converted

    monkeypatch.setattr(WeightConverter, "convert", watched)
    try:
        runner = TextRunner(model, find_precision("int8"), max_len=16, kernels="native")
    except NativeUnavailableError as error:
        pytest.skip(str(error))
    runner.close()
    assert len(made) == 16 and max(alive) <= 1


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int4"])
def test_memory_that_a_precision_will_need(precision: str, model: Model) -> None:
    """Close to what is really taken: all but the vectors, and the tiny model has no tied head."""
    need = memory_need(EngineConfig(model.path, precision=precision), model.config, file_bytes=1)
    taken = WeightConverter(model.graph, find_precision(precision)).nbytes
    assert 0.98 * taken < need.weights <= taken
    assert memory_need(EngineConfig(model.path), model.config, file_bytes=123).weights == 123


def test_an_engine_refuses_an_unknown_precision() -> None:
    with pytest.raises(InvalidInputError, match="precision is 'int3'; choose one of fp32"):
        EngineConfig(Path("unused"), precision="int3")
