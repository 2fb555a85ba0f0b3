"""The generated model: deterministic, real in form, and the same in both file formats."""

import itertools
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from aie_loader import Tokenizer, load_tokenizer, write_tiny_gguf, write_tiny_llama
from aie_loader.bpe_training import learn_merges
from aie_loader.formats.gguf import open_gguf, read_gguf_header
from aie_loader.formats.gguf_writer import write_gguf
from aie_tensor import DType, Matrix

DTYPES = [DType.F32, DType.F16, DType.BF16, DType.Q8_0, DType.Q4_0, DType.Q4_1]


def test_the_same_seed_gives_the_same_files(tmp_path: Path, tiny_model: Path) -> None:
    again = write_tiny_llama(tmp_path / "again")
    assert sorted(path.name for path in again.iterdir()) == [
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"
    ]  # fmt: skip
    for path in again.iterdir():
        assert path.read_bytes() == (tiny_model / path.name).read_bytes(), path.name
    other = write_tiny_llama(tmp_path / "other", seed=1)
    assert (other / "model.safetensors").read_bytes() != (again / "model.safetensors").read_bytes()
    first, second = (write_tiny_gguf(tmp_path / name) for name in ("a.gguf", "b.gguf"))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("quant", DTYPES)
def test_the_reference_reader_reads_it(tmp_path: Path, tiny_model: Path, quant: DType) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", quant=quant)
    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert reader.fields["general.architecture"].contents() == "llama"
    assert len(reader.fields["tokenizer.ggml.tokens"].contents()) == 512
    assert tensors["blk.1.ffn_down.weight"].tensor_type.name == quant.name
    assert tensors["blk.1.ffn_norm.weight"].tensor_type.name == "F32"
    down = load_file(tiny_model / "model.safetensors")["model.layers.1.mlp.down_proj.weight"]
    read = gguf.dequantize(tensors["blk.1.ffn_down.weight"].data, tensors["blk.1.ffn_down.weight"].tensor_type)
    tolerance = {DType.F32: 0.0, DType.F16: 1e-3, DType.BF16: 1e-2, DType.Q8_0: 2e-3}.get(quant, 0.06)
    np.testing.assert_allclose(read.reshape(down.shape), down, atol=tolerance * abs(down).max() * 4)


def test_both_formats_hold_the_same_weights(tmp_path: Path, tiny_model: Path) -> None:
    checkpoint = open_gguf(write_tiny_gguf(tmp_path / "tiny.gguf", quant=DType.F32))
    weights = load_file(tiny_model / "model.safetensors")
    assert len(checkpoint.tensors) == len(weights)
    up = checkpoint.tensors["blk.0.ffn_up.weight"].dequantize()
    np.testing.assert_array_equal(up, weights["model.layers.0.mlp.up_proj.weight"])
    # q: row pairs (i, i + D/2) of each head become neighbours (2i, 2i + 1).
    q = checkpoint.tensors["blk.0.attn_q.weight"].dequantize().reshape(4, 16, 64)
    original = weights["model.layers.0.self_attn.q_proj.weight"].reshape(4, 16, 64)
    np.testing.assert_array_equal(q[:, 0::2], original[:, :8])
    np.testing.assert_array_equal(q[:, 1::2], original[:, 8:])


def test_both_formats_have_the_same_tokenizer(tiny_model: Path, tiny_gguf: Path) -> None:
    texts = ["The queue holds 123 requests.", "<|im_start|>user\nhi<|im_end|>", "你好 😀", ""]
    from_folder, template, _ = load_tokenizer(tiny_model)
    from_gguf, other_template, _ = load_tokenizer(tiny_gguf)
    for text in texts:
        ids = from_folder.encode(text)
        assert ids == from_gguf.encode(text)
        assert from_folder.decode(ids, skip_special_tokens=False) == text
    assert len(from_folder.encode("The queue")) < 9, "merges are used"
    assert from_folder.eos_token_ids == from_gguf.eos_token_ids == (2,)
    assert template is not None
    assert other_template is not None
    assert template.source == other_template.source


@pytest.mark.parametrize("vocab", [259, 300, 512])
def test_vocabulary_has_the_size_asked_for(tmp_path: Path, vocab: int) -> None:
    folder = write_tiny_llama(tmp_path, vocab=vocab)
    assert Tokenizer.from_folder(folder).vocab_size == vocab
    assert load_file(folder / "model.safetensors")["lm_head.weight"].shape == (vocab, 64)


@pytest.mark.parametrize("wrong", [{"hidden": 48}, {"heads": 3}, {"heads": 64}, {"kv_heads": 3}, {"vocab": 100}])
def test_dimensions_that_do_not_fit(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"multiple|at least"):
        write_tiny_llama(tmp_path, **wrong)


def test_merges_by_hand() -> None:
    assert learn_merges("aab aab aac", 2) == [("a", "a"), ("aa", "b")], "a tie goes to the first in order"
    assert learn_merges("abc", 9) == [], "no pair occurs twice"
    assert learn_merges("", 9) == []


def test_writer_keeps_every_kind_of_metadata(tmp_path: Path) -> None:
    metadata = {
        "flag": True, "count": 7, "big": 1 << 40, "negative": -5, "ratio": 0.5, "text": "é", "texts": ["a", ""],
        "ints": [-1, 2], "wide": [1, 1 << 40], "floats": [0.5, 1.5], "flags": [True, False],
        "none": [], "huge": 1 << 63,
    }  # fmt: skip
    matrix = Matrix.from_array(np.arange(5, dtype=np.float32))
    path = write_gguf(tmp_path / "sub" / "a.gguf", metadata, {"x": matrix, "y": matrix})
    reader = gguf.GGUFReader(path)
    for key, value in metadata.items():
        assert reader.fields[key].contents() == value, key
    checkpoint = open_gguf(path)
    assert {key: list(v) if isinstance(v, tuple) else v for key, v in checkpoint.metadata.items()} == metadata
    for name in ("x", "y"):
        np.testing.assert_array_equal(checkpoint.tensors[name].dequantize(), np.arange(5))
    assert all(row.offset % 32 == 0 for row in read_gguf_header(path).tensors)


@pytest.mark.parametrize("value", [None, b"", [1, "a"], {"a": 1}, [None]])
def test_writer_refuses_what_the_format_cannot_hold(tmp_path: Path, value: object) -> None:
    with pytest.raises(TypeError):
        write_gguf(tmp_path / "a.gguf", {"key": value}, {})
    assert list(tmp_path.iterdir()) == [], "nothing half-written stays"


def test_greedy_output_is_not_degenerate(tiny_model: Path) -> None:
    """A plain forward pass of the folder's weights: the text wanders, and its start matters to its end."""
    weights = load_file(tiny_model / "model.safetensors")
    tokenizer = Tokenizer.from_folder(tiny_model)
    answers = []
    for prompt in ("The queue", "A request waits"):
        ids = tokenizer.encode(prompt)
        start = len(ids)
        for _ in range(32):
            ids.append(int(_logits(weights, ids).argmax()))
        answers.append(ids[start:])
    for answer in answers:
        assert len(set(answer)) > 12
        assert max(len(list(run)) for _, run in itertools.groupby(answer)) < 8
        assert all(char.isprintable() for char in tokenizer.decode(answer))
    assert answers[0] != answers[1]


def _logits(weights: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """Logits [V] after the last token. C hidden 64, H 4 heads, G 2 kv heads, D 16."""
    x = weights["model.embed_tokens.weight"][ids]
    num = len(ids)
    angles = np.arange(num)[:, None] * 10_000.0 ** (-np.arange(0, 16, 2) / 16)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weights[f"{name}.weight"]

    def rotate(x: np.ndarray) -> np.ndarray:
        left, right = x[..., :8], x[..., 8:]
        return np.concatenate([left * cos - right * sin, right * cos + left * sin], -1)

    for index in range(2):
        prefix = f"model.layers.{index}."

        def project(x: np.ndarray, name: str, prefix: str = prefix) -> np.ndarray:
            return x @ weights[f"{prefix}{name}.weight"].T

        h = norm(x, prefix + "input_layernorm")
        q = rotate(project(h, "self_attn.q_proj").reshape(num, 4, 16))
        k = rotate(project(h, "self_attn.k_proj").reshape(num, 2, 16)).repeat(2, axis=1)
        v = project(h, "self_attn.v_proj").reshape(num, 2, 16).repeat(2, axis=1)
        scores = np.where(np.tri(num, dtype=bool), np.einsum("qhd,khd->hqk", q, k) / 4, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hqk,khd->qhd", scores / scores.sum(-1, keepdims=True), v).reshape(num, 64)
        x = x + project(mixed, "self_attn.o_proj")
        h = norm(x, prefix + "post_attention_layernorm")
        gate = project(h, "mlp.gate_proj")
        x = x + project(gate / (1 + np.exp(-gate)) * project(h, "mlp.up_proj"), "mlp.down_proj")
    return norm(x[-1], "model.norm") @ weights["lm_head.weight"].T
