"""A model written in the other format, and back: the same numbers, or a sentence that says what the format lacks."""

import gc
import json
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from aie_loader import Model, WeightConverter, load_model, write_tiny_gguf, write_tiny_llama
from aie_loader.errors import TokenizerError, UnsupportedModelError
from aie_loader.export.writing import export_gguf, export_safetensors
from aie_loader.formats import open_safetensors
from aie_loader.formats.gguf_writer import write_gguf
from aie_loader.formats.safetensors_writer import write_safetensors
from aie_loader.precision import find_precision
from aie_loader.text.byte_level import byte_level_bpe, byte_to_char
from aie_loader.text.pieces import PieceType, SentencePieceModel, sentencepiece
from aie_loader.text.special_tokens import SpecialTokens, post_processor
from aie_tensor import DType, InvalidInputError, Matrix, quantize

PARITY = Path(__file__).parent.parent / "parity"
sys.path.insert(0, str(PARITY))
from made_up import made_up  # noqa: E402
from test_decoders import logits  # noqa: E402
from test_decoders_gguf import FAMILIES, converted  # noqa: E402

GOLDEN = sorted((PARITY.parent / "golden" / "parity").glob("*.json"))
# What GGUF, or its reader, has no words for, and what is said of it.
GGUF_LACKS = {
    "gemma2": "attention_scale is",
    "gemma3": "attention_scale is",
    "qwen2_windows": "the window of layer 1 is 5, but its readers take None",
    "phi3_longrope": r"no keys for this model's rotary scaling \(longrope",
    "gpt_neox_serial": "activation is gelu_tanh, but its readers take gelu",
}
JSON_LACKS = {"llama_3_scaled": "divisors"}  # GGUF keeps the result of the scaling, not its settings
GEMMA = {"query_pre_attn_scalar": 16}  # the golden models' is one that no published Gemma has, and GGUF does not say it
IN_GGUF = [path for path in GOLDEN if path.stem not in GGUF_LACKS or path.stem.startswith("gemma")]


@pytest.fixture
def family(tmp_path: Path) -> Callable[..., tuple[dict[str, Any], Path]]:
    """A golden file's model as a folder, with a tokenizer of single characters: (record, folder)."""

    def make(path: Path, dtype: DType = DType.F32, **changes: object) -> tuple[dict[str, Any], Path]:
        record = json.loads(path.read_text())
        config = {**record["config"], **changes}
        folder = tmp_path / path.stem
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        tensors = {name: quantize(made_up(name, tuple(shape)), dtype) for name, shape in record["tensors"].items()}
        write_safetensors(folder / "model.safetensors", tensors)
        tokens = ["<|s|>", *byte_to_char()[32 : 32 + 62], "Ġ!"]
        byte_level_bpe(tokens, [("Ġ", "!")], {0: True}, pre="gpt-2").save(str(folder / "tokenizer.json"))
        return record, folder

    return make


def answer(model: Model, ids: list[int]) -> np.ndarray[Any, Any]:
    return logits(model.config, model.graph, ids, [len(ids)])


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_every_family_through_gguf_and_back(path: Path, family: Any, tmp_path: Path) -> None:
    record, folder = family(path, **(GEMMA if path.stem.startswith("gemma") else {}))
    original = load_model(folder)
    if path.stem in GGUF_LACKS and not path.stem.startswith("gemma"):
        with pytest.raises(UnsupportedModelError, match=GGUF_LACKS[path.stem]):
            export_gguf(original, tmp_path / "out.gguf")
        assert not (tmp_path / "out.gguf").exists()
        return
    there = load_model(export_gguf(original, tmp_path / "out.gguf"))
    expected = answer(original, record["ids"])
    np.testing.assert_allclose(answer(there, record["ids"]), expected, rtol=1e-5, atol=1e-5)
    if path.stem in JSON_LACKS:
        with pytest.raises(UnsupportedModelError, match=JSON_LACKS[path.stem]):
            export_safetensors(there, tmp_path / "back")
        return
    back = load_model(export_safetensors(there, tmp_path / "back"))
    np.testing.assert_allclose(answer(back, record["ids"]), expected, rtol=1e-5, atol=1e-5)
    ours, theirs = open_safetensors(tmp_path / "back" / "model.safetensors"), original.checkpoint
    assert set(ours) == set(theirs)
    for name, matrix in theirs.items():
        if path.stem.startswith("gemma") and len(matrix.shape) == 1:  # weight − 1 + 1 − 1, rounded
            np.testing.assert_allclose(ours[name].array(), matrix.array(), atol=1e-6)
        else:
            assert bytes(ours[name].data) == bytes(matrix.data), name
    assert original.config.architecture == back.config.architecture


@pytest.mark.parametrize("path", IN_GGUF, ids=lambda path: path.stem)
def test_tensors_are_those_of_the_formats_own_converter(path: Path, family: Any, tmp_path: Path) -> None:
    """The parity tests have its conversions written out once more."""
    record, folder = family(path, **(GEMMA if path.stem.startswith("gemma") else {}))
    kind = record["config"]["model_type"]
    kind = "llama" if kind == "mistral" else FAMILIES.get(kind, kind)
    arrays = {name: made_up(name, tuple(shape)) for name, shape in record["tensors"].items()}
    expected = converted(kind, record["config"], arrays)
    written = {
        tensor.name: tensor for tensor in gguf.GGUFReader(export_gguf(load_model(folder), tmp_path / "a")).tensors
    }
    written.pop("rope_freqs.weight", None)
    assert set(written) == set(expected)
    for name, array in expected.items():
        assert written[name].data.shape == array.shape
        np.testing.assert_array_equal(written[name].data, array)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_the_scaling_of_llama_3_is_known_by_its_divisors(factor: float, family: Any, tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192}  # fmt: skip
    path = PARITY.parent / "golden" / "parity" / "llama_3_scaled.json"
    record, folder = family(path, rope_parameters={**scaling, "rope_theta": 500_000.0}, max_position_embeddings=131_072)
    original = load_model(folder)
    there = load_model(export_gguf(original, tmp_path / "out.gguf"))
    assert there.config.rope_scaling is not None and there.config.rope_scaling.kind == "factors"
    back = load_model(export_safetensors(there, tmp_path / "back"))
    assert json.loads((tmp_path / "back" / "config.json").read_text())["rope_scaling"] == scaling
    expected = answer(original, record["ids"])
    for model in (there, back):
        np.testing.assert_allclose(answer(model, record["ids"]), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
def test_a_scale_that_gguf_does_not_say_is_refused(name: str, family: Any, tmp_path: Path) -> None:
    _, folder = family(PARITY.parent / "golden" / "parity" / f"{name}.json")
    with pytest.raises(UnsupportedModelError, match=GGUF_LACKS[name]):
        export_gguf(load_model(folder), tmp_path / "out.gguf")


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_folder_into_a_folder_is_the_same_folder(path: Path, family: Any, tmp_path: Path) -> None:
    _, folder = family(path, DType.BF16)
    out = export_safetensors(load_model(folder), tmp_path / "out")
    ours, theirs = open_safetensors(out / "model.safetensors"), open_safetensors(folder / "model.safetensors")
    assert {name: (m.dtype, m.shape, bytes(m.data)) for name, m in ours.items()} == {
        name: (m.dtype, m.shape, bytes(m.data)) for name, m in theirs.items()
    }
    assert (out / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize("quant", [DType.Q8_0, DType.Q4_1, DType.BF16, DType.F32])
def test_gguf_into_gguf_is_the_same_file(quant: DType, tmp_path: Path) -> None:
    model = load_model(write_tiny_gguf(tmp_path / "a.gguf", quant=quant))
    again = load_model(export_gguf(model, tmp_path / "b.gguf"))
    assert {**again.metadata, "general.file_type": None} == {**model.metadata, "general.file_type": None}
    for name, matrix in model.checkpoint.items():
        assert (again.checkpoint[name].dtype, bytes(again.checkpoint[name].data)) == (matrix.dtype, bytes(matrix.data))


def test_folder_into_gguf_is_what_the_reference_writer_would_write(tmp_path: Path) -> None:
    """The tiny model's own GGUF writer shares no code with the export; the `gguf` package reads what came out."""
    folder = write_tiny_llama(tmp_path / "folder")
    out = export_gguf(load_model(folder), tmp_path / "out.gguf")
    direct = write_tiny_gguf(tmp_path / "direct.gguf", quant=DType.F32)
    ours, theirs = gguf.GGUFReader(out), gguf.GGUFReader(direct)
    expected = {tensor.name: tensor.data.tobytes() for tensor in theirs.tensors}
    assert {tensor.name: tensor.data.tobytes() for tensor in ours.tensors} == expected
    said = {key: field.contents() for key, field in ours.fields.items() if not key.startswith("GGUF.")}
    wanted = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    names = ("general.name", "tokenizer.ggml.token_type", "tokenizer.ggml.unknown_token_id")
    assert {key: said.get(key) for key in wanted if key not in names} == {
        key: value for key, value in wanted.items() if key not in names
    }
    assert said["general.file_type"] == 0 and said["llama.attention.key_length"] == 16


def test_precision_of_the_output(tmp_path: Path) -> None:
    model = load_model(write_tiny_llama(tmp_path / "folder"))
    four = load_model(export_gguf(model, tmp_path / "four.gguf", find_precision("int4")))
    kinds = {name: matrix.dtype for name, matrix in four.graph.weights.items()}
    assert kinds["blk.0.ffn_up.weight"] is DType.Q4_1
    assert kinds["token_embd.weight"] is kinds["output.weight"] is DType.Q8_0
    assert kinds["output_norm.weight"] is DType.F32
    half = load_model(export_safetensors(four, tmp_path / "half", find_precision("fp16")))
    assert half.graph.weights["blk.0.ffn_up.weight"].dtype is DType.F16
    assert json.loads((tmp_path / "half" / "config.json").read_text())["torch_dtype"] == "float16"
    with pytest.raises(InvalidInputError, match=r"holds fp32, fp16 or bf16; for int8, name a \.gguf file"):
        export_safetensors(model, tmp_path / "no", find_precision("int8"))
    assert not (tmp_path / "no").exists()


def test_rows_that_fill_no_blocks_are_f16(family: Any, tmp_path: Path) -> None:
    """The golden models' feed-forward is 48 wide."""
    _, folder = family(PARITY.parent / "golden" / "parity" / "llama.json")
    there = load_model(export_gguf(load_model(folder), tmp_path / "out.gguf", find_precision("int8")))
    kinds = {name: matrix.dtype for name, matrix in there.graph.weights.items()}
    assert kinds["blk.0.ffn_down.weight"] is DType.F16 and kinds["blk.0.ffn_up.weight"] is DType.Q8_0


def test_text_side_survives(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "folder")
    original = load_model(folder)
    there = load_model(export_gguf(original, tmp_path / "out.gguf"))
    back = load_model(export_safetensors(there, tmp_path / "back"))
    messages = [{"role": "user", "content": "hi 12\n\n there"}]
    assert original.chat_template is not None
    prompt = original.chat_template.render(messages)
    for model in (there, back):
        assert model.chat_template is not None and model.chat_template.render(messages) == prompt
        assert model.tokenizer.encode(prompt) == original.tokenizer.encode(prompt)
        assert model.tokenizer.eos_token_ids == original.tokenizer.eos_token_ids
        assert model.config.eos_token_ids == original.config.eos_token_ids


@pytest.mark.parametrize("space_prefix", ["always", "never"])
def test_sentencepiece(space_prefix: Any, tmp_path: Path) -> None:
    """Scores in GGUF, merges in the folder: pieces of a small vocabulary, with bytes for all the rest."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256))]
    types = [PieceType.UNKNOWN, PieceType.CONTROL, PieceType.CONTROL, *[PieceType.BYTE] * 256]
    made = ["▁t", "he", "▁the", "in", "▁a", "er", "on", "▁f", "es", "ing", "12", "▁▁", "th", "ers"]
    letters = sorted({*"abcdefghijklmnopqrstuvwxyz.,'=123 \n▁"} - {" ", "\n"})
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(made) + len(letters))]
    pieces += made + letters
    types += [PieceType.NORMAL] * (len(pieces) - len(types))
    folder = write_tiny_llama(tmp_path / "folder")
    backend = sentencepiece(SentencePieceModel("bpe", pieces, scores, types, 0, space_prefix))
    processor = post_processor(SpecialTokens(start=("<s>", 1)))
    assert processor is not None
    backend.post_processor = processor
    backend.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": "{{ messages }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    original = load_model(folder)
    there = load_model(export_gguf(original, tmp_path / "out.gguf"))
    back = load_model(export_safetensors(there, tmp_path / "back"))
    assert there.metadata["tokenizer.ggml.model"] == "llama"
    for text in ("the fingers on a 123 = 12", "  two  spaces, ÜÄ </s> a<s>b", "", " ", "the\n\n then"):
        for special in (True, False):
            expected = original.tokenizer.encode(text, add_special_tokens=special)
            assert there.tokenizer.encode(text, add_special_tokens=special) == expected
            assert back.tokenizer.encode(text, add_special_tokens=special) == expected
    assert json.loads((tmp_path / "back" / "tokenizer_config.json").read_text())["unk_token"] == "<unk>"


def test_a_tokenizer_that_gguf_cannot_describe_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "folder")
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text())
    split = {"type": "Split", "pattern": {"String": "x"}, "behavior": "Isolated", "invert": False}
    words = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}
    for change, says in (
        ({"pre_tokenizer": split}, "no name that aie knows"),
        ({"model": {**document["model"], "byte_fallback": True}}, "it gives other ids"),
        ({"model": words, "added_tokens": []}, "of the kind WordLevel cannot be written as GGUF"),
    ):
        path.write_text(json.dumps({**document, **change}))
        with pytest.raises(TokenizerError, match=says):
            export_gguf(load_model(folder), tmp_path / "out.gguf")


def test_every_chat_template_survives(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "folder")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools: {{ tools }}")
    model = load_model(folder)
    assert model.chat_template is not None and set(model.chat_template.sources) == {"default", "tool_use"}
    there = load_model(export_gguf(model, tmp_path / "out.gguf"))
    for other in (
        there,
        load_model(export_safetensors(there, tmp_path / "a")),
        load_model(export_safetensors(model, tmp_path / "b")),
    ):
        assert other.chat_template is not None
        assert dict(other.chat_template.sources) == dict(model.chat_template.sources)


@pytest.mark.parametrize("name", ["F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"])
def test_small_floats_are_kept_exactly(name: str, tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "folder")
    random, dtype = np.random.default_rng(0), DType[name]
    tensors = dict(open_safetensors(folder / "model.safetensors"))
    for key, matrix in tensors.items():
        if "mlp" in key:
            raw = random.integers(0, 0x60, matrix.shape, dtype=np.uint8) | random.choice(
                np.array([0, 128], np.uint8), matrix.shape
            )
            raw[raw == 128] = 0  # not a number in two of the types
            tensors[key] = Matrix(dtype, matrix.shape, raw.reshape(-1))
    write_safetensors(folder / "model.safetensors", tensors)
    model = load_model(folder)
    there = load_model(export_gguf(model, tmp_path / "out.gguf"))
    again = load_model(export_safetensors(model, tmp_path / "again"))
    key = "blk.1.ffn_down.weight"
    assert there.graph.weights[key].dtype is DType.F16 and again.graph.weights[key].dtype is dtype
    expected = model.graph.weights[key].dequantize()
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(there.graph.weights[key].dequantize(), expected)
    assert bytes(again.graph.weights[key].data) == bytes(model.graph.weights[key].data)


@pytest.mark.parametrize("dtype", [DType.Q4_K, DType.Q6_K, DType.Q5_1])
def test_blocks_that_we_do_not_make_are_moved(dtype: DType, tmp_path: Path) -> None:
    """As they are from GGUF to GGUF, by value into safetensors, and in another precision where one is asked for."""
    source = load_model(write_tiny_gguf(tmp_path / "source.gguf", quant=DType.F32, hidden=256, layers=1))
    tensors = dict(source.checkpoint)
    name = "blk.0.ffn_up.weight"
    raw = np.random.default_rng(0).integers(0, 64, dtype.nbytes(768 * 256), dtype=np.uint8)
    tensors[name] = Matrix(dtype, (768, 256), raw)
    model = load_model(write_gguf(tmp_path / "a.gguf", dict(source.metadata), tensors))
    there = load_model(export_gguf(model, tmp_path / "b.gguf"))
    assert (there.graph.weights[name].dtype, bytes(there.graph.weights[name].data)) == (dtype, raw.tobytes())
    folder = load_model(export_safetensors(model, tmp_path / "folder"))
    np.testing.assert_array_equal(folder.graph.weights[name].array(), tensors[name].dequantize())
    four = load_model(export_gguf(model, tmp_path / "c.gguf", find_precision("int4")))
    assert bytes(four.graph.weights[name].data) == bytes(quantize(tensors[name].dequantize(), DType.Q4_1).data)


def test_progress_counts_to_the_end(tmp_path: Path) -> None:
    model = load_model(write_tiny_llama(tmp_path / "folder"))
    seen: list[tuple[int, int]] = []
    export_gguf(model, tmp_path / "out.gguf", progress=lambda done, total: seen.append((done, total)))
    assert len(seen) == len(model.graph.weights)
    assert sorted(seen) == seen and seen[-1][0] == seen[-1][1] and len({total for _, total in seen}) == 1


def test_one_tensor_is_made_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(write_tiny_llama(tmp_path / "folder"))
    convert, made = WeightConverter.convert, []

    def watched(self: WeightConverter, name: str, matrix: Matrix) -> Matrix:
        gc.collect()
        alive.append(sum(reference() is not None for reference in made))
        converted = convert(self, name, matrix)
        if converted is not matrix:
            made.append(weakref.ref(converted.data))
        return converted

    alive: list[int] = []
    monkeypatch.setattr(WeightConverter, "convert", watched)
    export_gguf(model, tmp_path / "out.gguf", find_precision("int4"))
    assert len(made) == 16 and max(alive) <= 1


def test_weights_with_a_type_of_their_own_stay(tmp_path: Path) -> None:
    """BF16 and F16 in one checkpoint: each stays what it is; vectors become F32 in GGUF, with the same values."""
    folder = write_tiny_llama(tmp_path / "folder")
    tensors = {
        name: quantize(matrix.array(), DType.BF16 if "mlp" in name or matrix.shape[1:] == () else DType.F16)
        for name, matrix in open_safetensors(folder / "model.safetensors").items()
    }
    write_safetensors(folder / "model.safetensors", tensors)
    original = load_model(folder)
    there = load_model(export_gguf(original, tmp_path / "out.gguf"))
    weights: dict[str, Matrix] = dict(there.graph.weights)
    assert weights["blk.0.ffn_up.weight"].dtype is DType.BF16 and weights["output.weight"].dtype is DType.F16
    norm = weights["output_norm.weight"]
    assert norm.dtype is DType.F32
    np.testing.assert_array_equal(norm.array(), original.graph.weights["output_norm.weight"].dequantize())
