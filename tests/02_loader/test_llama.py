"""Llama: configurations from both kinds of files, one graph, and an error for every model that would come out wrong."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aie_loader import (
    Graph,
    MalformedHeaderError,
    MissingTensorError,
    ModelConfig,
    TensorShapeError,
    UnknownArchitectureError,
    UnsupportedModelError,
    UnsupportedTensorTypeError,
    fuse,
)
from aie_loader.architectures import ARCHITECTURES, NAMES, architecture_of_gguf, architecture_of_json
from aie_tensor import Matrix

GOLDEN = Path(__file__).parent.parent / "golden" / "parity"
JSON: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "intermediate_size": 12,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 10,
    "max_position_embeddings": 64, "rope_theta": 5000.0, "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GGUF: dict[str, object] = {
    "general.architecture": "llama", "llama.embedding_length": 8, "llama.feed_forward_length": 12,
    "llama.block_count": 2, "llama.attention.head_count": 2, "llama.attention.head_count_kv": 1,
    "llama.vocab_size": 10, "llama.context_length": 64, "llama.rope.freq_base": 5000.0,
    "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.dimension_count": 4,
    "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
}  # fmt: skip


def from_json(**changes: object) -> ModelConfig:
    return ARCHITECTURES["llama"].from_json({**JSON, **changes}, None, "config.json")


def from_gguf(changes: Mapping[str, object] = {}) -> ModelConfig:
    return ARCHITECTURES["llama"].from_gguf({**GGUF, **changes}, "m.gguf")


def tensors(*, bias: bool = False, head: bool = True) -> dict[str, Matrix]:
    """Tensors of the model above under GGUF's names."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (10, 8), "output_norm.weight": (8,)}
    if head:
        shapes["output.weight"] = (10, 8)
    for layer in range(2):
        shapes |= {
            f"blk.{layer}.{name}.weight": shape
            for name, shape in {
                "attn_norm": (8,), "attn_q": (8, 8), "attn_k": (4, 8), "attn_v": (4, 8), "attn_output": (8, 8),
                "ffn_norm": (8,), "ffn_gate": (12, 8), "ffn_up": (12, 8), "ffn_down": (8, 12),
            }.items()
        }  # fmt: skip
        if bias:
            shapes |= {f"blk.{layer}.attn_{name}.bias": (size,) for name, size in {"q": 8, "k": 4, "v": 4}.items()}
    return {name: Matrix.from_array(np.ones(shape, np.float32)) for name, shape in shapes.items()}


def build(config: ModelConfig, given: Mapping[str, Matrix]) -> tuple[ModelConfig, Graph]:
    return ARCHITECTURES["llama"].build(config, given, "the model", is_gguf=config.rope_interleaved)


# Configuration


def test_both_kinds_of_files_give_one_configuration() -> None:
    a, b = from_json(), from_gguf()
    differing = {name for name in ModelConfig.__dataclass_fields__ if getattr(a, name) != getattr(b, name)}
    assert differing == {"rope_interleaved"}
    assert (a.rope_interleaved, b.rope_interleaved) == (False, True)
    assert (a.head_dim, a.num_kv_heads, a.rope_theta, a.eos_token_ids) == (4, 1, 5000.0, (2,))


def test_defaults_of_config_json() -> None:
    config = from_json(
        num_key_value_heads=None, rope_theta=None, rms_norm_eps=None, bos_token_id=None, eos_token_id=None,
        max_position_embeddings=None, tie_word_embeddings=None, head_dim=None,
    )  # fmt: skip
    assert (config.num_kv_heads, config.head_dim, config.rope_theta, config.norm_eps) == (2, 4, 10_000.0, 1e-6)
    assert (config.bos_token_id, config.eos_token_ids, config.tie_word_embeddings) == (None, (), False)


def test_defaults_of_gguf() -> None:
    bare = {"llama.attention.head_count_kv": None, "llama.rope.freq_base": None, "llama.rope.dimension_count": None}
    config = from_gguf({**bare, "llama.vocab_size": None, "tokenizer.ggml.tokens": ["t"] * 10})
    assert (config.num_kv_heads, config.rope_theta, config.vocab_size) == (2, 10_000.0, 10)


def test_head_size_may_differ_from_the_quotient() -> None:
    assert from_json(head_dim=16).head_dim == 16
    config = from_gguf({"llama.attention.key_length": 16, "llama.rope.dimension_count": 16})
    assert config.head_dim == 16
    with pytest.raises(MalformedHeaderError, match="head_dim is missing"):
        from_json(hidden_size=9)


def test_every_end_token_counts() -> None:
    more = {"eos_token_id": [2, 3]}
    assert ARCHITECTURES["llama"].from_json({**JSON, "eos_token_id": [4, 2]}, more, "x").eos_token_ids == (4, 2, 3)
    assert from_gguf({"tokenizer.ggml.eot_token_id": 5}).eos_token_ids == (2, 5)


@pytest.mark.parametrize("place", ["rope_parameters", "rope_scaling"])
def test_unscaled_rotation_in_newer_files(place: str) -> None:
    assert from_json(**{place: {"rope_type": "default", "rope_theta": 77.0}}).rope_theta == 77.0
    assert from_json(**{place: {"type": "default"}}).rope_theta == 5000.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "8"}, "hidden_size is '8'; it must be an integer"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"hidden_size": 8.0}, "hidden_size is 8.0"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({"num_hidden_layers": 1 << 40}, "num_hidden_layers"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0; it must be a finite positive number"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps is inf"),
        ({"rope_theta": [1]}, "rope_theta"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'; it must be an object"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1; it must be true or false"),
        ({"eos_token_id": 10}, "eos_token_id is 10; it must be token ids below 10"),
        ({"eos_token_id": [1, "2"]}, "eos_token_id"),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "cannot share 3 key/value heads"),
        ({"head_dim": 3}, "cannot be rotated in pairs"),
    ],
)
def test_wrong_numbers_are_named(change: dict[str, object], words: str) -> None:
    with pytest.raises(MalformedHeaderError, match=words) as caught:
        from_json(**change)
    assert str(caught.value).startswith("config.json: ")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rope_scaling": {"rope_type": "mrope", "factor": 8}}, "rotary scaling of type 'mrope' is not supported yet"),
        ({"hidden_act": "xielu"}, "'xielu'"),
        ({"quantization_config": {}}, "quantized"),
    ],
)
def test_variants_that_would_come_out_wrong_are_refused_json(change: dict[str, object], words: str) -> None:
    with pytest.raises(UnsupportedModelError, match=words):
        from_json(**change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"llama.rope.scaling.type": "longrope"}, "'longrope'"),
        ({"llama.attention.value_length": 8}, "different head sizes"),
        ({"llama.expert_count": 8}, "experts"),
    ],
)
def test_variants_that_would_come_out_wrong_are_refused_gguf(change: dict[str, object], words: str) -> None:
    with pytest.raises(UnsupportedModelError, match=words):
        from_gguf(change)


def test_unknown_architectures_list_the_known() -> None:
    for metadata in ({"general.architecture": "mamba"}, {}, {"general.architecture": 3}):
        with pytest.raises(UnknownArchitectureError, match="known: llama") as caught:
            architecture_of_gguf(metadata, "m.gguf")
        assert caught.value.exit_code == 2
    with pytest.raises(UnknownArchitectureError, match="'mamba'; known: llama"):
        architecture_of_json({"model_type": "mamba"}, "config.json")
    with pytest.raises(UnknownArchitectureError, match="'MambaForCausalLM'"):
        architecture_of_json({"architectures": ["MambaForCausalLM"]}, "config.json")
    assert architecture_of_json({"architectures": ["GPT2LMHeadModel"]}, "x") is ARCHITECTURES["gpt2"]
    assert architecture_of_json({"model_type": "gpt_neox"}, "x") is ARCHITECTURES["gptneox"]
    assert architecture_of_json({"architectures": ["LlamaForCausalLM"]}, "x") is ARCHITECTURES["llama"]


# Graph


def test_both_kinds_of_files_give_one_graph() -> None:
    ours = tensors()
    _, a = build(from_gguf(), ours)
    _, b = build(from_json(), {NAMES["llama"].in_checkpoint(name): matrix for name, matrix in ours.items()})
    for one, other in zip(a.nodes, b.nodes, strict=True):
        assert (one.name, one.op, one.inputs) == (other.name, other.op, other.inputs)
        assert {**one.attrs, "interleaved": None} == {**other.attrs, "interleaved": None}
    assert {node.attrs["interleaved"] for node in a.nodes if node.op == "rope"} == {True}
    assert {node.attrs["interleaved"] for node in b.nodes if node.op == "rope"} == {False}
    assert dict(a.weights) == dict(b.weights)
    assert a.shapes["logits"] == ("R", 10)
    assert len(fuse(a).nodes) == 2 * 7 + 4


def test_rotation_constants() -> None:
    _, graph = build(from_gguf(), tensors())
    rope = next(node for node in graph.nodes if node.op == "rope")
    expected = 1.0 / 5000.0 ** (np.arange(0, 4, 2) / 4)
    np.testing.assert_allclose(np.array(rope.attrs["inv_freq"]), expected, rtol=1e-12)
    assert next(node for node in graph.nodes if node.op == "attention").attrs["scale"] == 0.5


def test_tied_head_is_the_embedding() -> None:
    config, graph = build(from_gguf(), tensors(head=False))
    assert config.tie_word_embeddings
    assert graph.nodes[-1].inputs == ("output_norm", "token_embd.weight") and "output.weight" not in graph.weights
    given = {NAMES["llama"].in_checkpoint(name): matrix for name, matrix in tensors(head=True).items()}
    config, graph = build(from_json(tie_word_embeddings=True), given)  # a copy in the file is not another head
    assert graph.nodes[-1].inputs[1] == "token_embd.weight"
    with pytest.raises(MissingTensorError, match=r"'lm_head\.weight'"):
        build(from_json(), {name: matrix for name, matrix in given.items() if name != "lm_head.weight"})


def test_attention_biases() -> None:
    _, graph = build(from_gguf(), tensors(bias=True))
    assert next(node for node in graph.nodes if node.name == "blk.1.attn_k").inputs[2] == "blk.1.attn_k.bias"
    assert len(fuse(graph).nodes) == 2 * 7 + 4
    with pytest.raises(MissingTensorError, match=r"self_attn\.q_proj\.bias"):
        build(from_json(attention_bias=True), {NAMES["llama"].in_checkpoint(name): m for name, m in tensors().items()})


def test_missing_tensor_names_the_nearest() -> None:
    given: dict[str, Any] = tensors()
    given["blk.1.ffn_upp.weight"] = given.pop("blk.1.ffn_up.weight")
    with pytest.raises(MissingTensorError, match=r"no tensor 'blk\.1\.ffn_up\.weight'.* 'blk\.1\.ffn_upp\.weight'"):
        build(from_gguf(), given)
    with pytest.raises(MissingTensorError, match="no tensors at all"):
        build(from_gguf(), {})


def test_tensors_that_contradict_the_configuration() -> None:
    with pytest.raises(TensorShapeError, match=r"'blk\.0\.ffn_gate.* has the shape \[12, 8\].* asks for \[16, 8\]"):
        build(from_gguf({"llama.feed_forward_length": 16}), tensors())
    integers: dict[str, Any] = tensors()
    integers["output_norm.weight"] = Matrix.from_array(np.ones(8, np.int64))
    with pytest.raises(UnsupportedTensorTypeError, match="I64"):
        build(from_gguf(), integers)


def test_tensors_without_a_place_are_refused() -> None:
    given: dict[str, Any] = tensors()
    given |= {f"blk.{i}.attn_q_norm.weight": given["output_norm.weight"] for i in range(6)}
    with pytest.raises(UnsupportedModelError, match=r"'blk\.0\.attn_q_norm\.weight'.* and 2 more"):
        build(from_gguf(), given)
    old_buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": given["output_norm.weight"]}
    build(from_json(), {NAMES["llama"].in_checkpoint(name): m for name, m in tensors().items()} | old_buffer)


# Rotary scaling


def inv_freq(config: ModelConfig, extra: Mapping[str, Matrix] = {}) -> list[float]:
    names = NAMES["llama"].in_checkpoint if not config.rope_interleaved else (lambda name: name)
    given = {names(name): matrix for name, matrix in tensors().items()}
    _, graph = build(config, {**given, **extra})
    return list(next(node for node in graph.nodes if node.op == "rope").attrs["inv_freq"])  # type: ignore[call-overload]


PLAIN = [1.0, 5000.0**-0.5]


def test_linear_scaling_from_either_file() -> None:
    expected = [frequency / 2 for frequency in PLAIN]
    assert inv_freq(from_json(rope_scaling={"type": "linear", "factor": 2.0})) == expected
    assert inv_freq(from_gguf({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0})) == expected
    assert inv_freq(from_gguf({"llama.rope.scale_linear": 2.0})) == expected


def test_llama3_scaling_from_json_and_as_gguf_stores_it() -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 32}  # fmt: skip
    stretched = inv_freq(from_json(rope_scaling=scaling))
    assert stretched[0] == 1.0 and stretched[1] == PLAIN[1] / 8
    stored = Matrix.from_array(np.array([1.0, 8.0], np.float32))
    np.testing.assert_allclose(inv_freq(from_gguf(), {"rope_freqs.weight": stored}), stretched, rtol=1e-6)
    with pytest.raises(TensorShapeError, match="2 rotary pairs"):
        inv_freq(from_gguf(), {"rope_freqs.weight": Matrix.from_array(np.ones(8, np.float32))})
    for divisor in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(MalformedHeaderError, match=r"rope_freqs\.weight holds numbers that are not finite and pos"):
            inv_freq(from_gguf(), {"rope_freqs.weight": Matrix.from_array(np.array([1.0, divisor], np.float32))})


def test_yarn_and_partial_rotation() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    _, graph = build(from_json(rope_parameters={**scaling, "rope_theta": 5000.0}), {
        NAMES["llama"].in_checkpoint(name): matrix for name, matrix in tensors().items()
    })  # fmt: skip
    rope = next(node for node in graph.nodes if node.op == "rope")
    assert rope.attrs["attention_factor"] == pytest.approx(0.1 * np.log(4) + 1)
    partial = ARCHITECTURES["phi3"].from_json({**JSON, "head_dim": 8, "partial_rotary_factor": 0.5}, None, "x")
    assert partial.rotary_dim == 4 and from_gguf({"llama.rope.dimension_count": 2}).rotary_dim == 2
    with pytest.raises(MalformedHeaderError, match="cannot be rotated in pairs"):
        ARCHITECTURES["phi3"].from_json({**JSON, "partial_rotary_factor": 0.25}, None, "x")
    with pytest.raises(UnsupportedModelError, match="llama turns whole heads"):
        from_json(head_dim=8, partial_rotary_factor=0.5)


def test_yarn_with_weights_on_the_logarithm() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    found = from_json(rope_parameters={**scaling, "mscale": 1.0, "mscale_all_dim": 0.5}).rope_scaling
    assert found is not None and found.attention_factor == pytest.approx((0.1 * np.log(4) + 1) / (0.05 * np.log(4) + 1))
    for unused in ({"mscale": 1.0}, {"mscale": 0, "mscale_all_dim": 1.0}):
        found = from_json(rope_parameters={**scaling, **unused}).rope_scaling
        assert found is not None and found.attention_factor is None


@pytest.mark.parametrize(
    "change",
    [
        {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1.0}},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 1e300}},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}, "head_dim": 2},
        {"rope_parameters": {"rope_type": "longrope", "short_factor": [1, 1], "original_max_position_embeddings": 1}},
        {"rope_scaling": {"rope_type": "linear", "factor": 5e-324}},
    ],
)
def test_rotary_settings_that_do_not_fit_together(change: dict[str, object]) -> None:
    with pytest.raises(MalformedHeaderError, match="no usable frequencies"):
        from_json(**change)


@pytest.mark.parametrize("change", [{"rms_norm_eps": 10**400}, {"rope_theta": -(10**400)}])
def test_integers_that_no_float_holds(change: dict[str, object]) -> None:
    with pytest.raises(MalformedHeaderError, match="finite positive number"):
        from_json(**change)


@pytest.mark.parametrize(
    ("family", "key"),
    [("phi3", "partial_rotary_factor"), ("llama", "partial_rotary_factor"), ("gptneox", "rotary_pct")],
)
def test_more_than_a_whole_head_cannot_turn(family: str, key: str) -> None:
    for share in (1.5, 1e308):
        with pytest.raises(MalformedHeaderError, match=f"{key} is .* at most 1"):
            ARCHITECTURES[family].from_json({**JSON, key: share}, None, "x")


def test_longrope_serves_the_trained_length_in_any_family() -> None:
    scaling = {"rope_type": "longrope", "short_factor": [1.0, 1.5], "original_max_position_embeddings": 32}
    config = from_json(rope_parameters={**scaling, "factor": 3.0})
    assert config.rope_scaling is not None
    assert (config.max_position_embeddings, config.rope_scaling.factor) == (32, 3.0)
    assert from_json(rope_parameters=scaling).rope_scaling.factor == 2.0  # type: ignore[union-attr]


def test_defaults_that_only_a_family_has() -> None:
    def read(family: str, **changes: object) -> ModelConfig:
        return ARCHITECTURES[family].from_json({**JSON, **changes}, None, "x")

    for family in ("gemma2", "gemma3"):
        config = read(family, head_dim=None, attn_logit_softcapping=1.5)
        assert (config.head_dim, config.attention_scale) == (256, 1 / 16)
    assert config.attention_softcap is None  # the reference of Gemma 3 does not look at it
    assert read("qwen3").head_dim == 128
    assert read("phi3", rms_norm_eps=None).norm_eps == 1e-5


def test_a_head_of_its_own_counts_though_the_configuration_ties() -> None:
    """As the reference has it since version 5: what is in the file and differs is not a copy."""
    given = {NAMES["llama"].in_checkpoint(name): matrix for name, matrix in tensors().items()}
    config, graph = build(from_json(tie_word_embeddings=True), given)
    assert config.tie_word_embeddings and "output.weight" not in graph.weights
    given["lm_head.weight"] = Matrix.from_array(np.full((10, 8), 2, np.float32))
    config, graph = build(from_json(tie_word_embeddings=True), given)
    assert not config.tie_word_embeddings
    assert graph.weights["output.weight"].dequantize()[0, 0] == 2


@pytest.mark.parametrize(
    ("family", "parts"),
    [
        ("gpt2", ("ln_1", "ln_2", "attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")),
        ("gptneox", ("input_layernorm", "attention.query_key_value", "attention.dense", "mlp.dense_h_to_4h")),
        ("llama", ("self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")),
    ],
)
def test_a_missing_bias_is_missed(family: str, parts: tuple[str, ...]) -> None:
    """Where the family or the configuration says that there is one; the error has the name that the file would have."""
    golden = {"gpt2": "gpt2", "gptneox": "gpt_neox", "llama": "llama_biased"}[family]
    record = json.loads((GOLDEN / f"{golden}.json").read_text())
    given = {name: Matrix.from_array(np.ones(shape, np.float32)) for name, shape in record["tensors"].items()}
    config = ARCHITECTURES[family].from_json(record["config"], None, "x")
    for part in parts:
        name = next(name for name in given if name.endswith(f".1.{part}.bias"))
        few = {each: matrix for each, matrix in given.items() if each != name}
        with pytest.raises(MissingTensorError, match=re.escape(f"no tensor {name.removeprefix('transformer.')!r}")):
            ARCHITECTURES[family].build(config, few, "x", is_gguf=False)
