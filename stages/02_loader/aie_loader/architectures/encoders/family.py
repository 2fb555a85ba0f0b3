"""What an encoder is, in numbers, and what one family says differently from the next.

An encoder reads a text at once: every token sees every other, nothing is generated, no cache is kept. BERT (Devlin et
al. 2018, arXiv:1810.04805) is the ancestor; RoBERTa, DistilBERT and the sentence encoders called MiniLM are its
children, and differ in names, in where positions begin and in their heads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from aie_loader.architectures.checks import MAX_LAYERS
from aie_loader.architectures.labels import Problem, read_labels, read_problem
from aie_loader.architectures.naming import Names
from aie_loader.config import Fields
from aie_loader.errors import UnsupportedModelError

__all__ = ["EncoderConfig", "EncoderFamily", "refuse_decoders", "sizes"]

_ACTIVATIONS = {"gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
                "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Sizes and constants of an encoder."""

    architecture: str  # "bert"
    num_layers: int  # L
    hidden_size: int  # C
    intermediate_size: int  # F
    num_heads: int  # H
    head_dim: int  # D
    vocab_size: int  # V
    num_positions: int  # longest text in tokens, special ones included
    first_position: int  # rows of the position table before the first token's: RoBERTa's begins at pad_token_id + 1
    num_token_types: int  # 0: there is no such table
    norm_eps: float
    activation: str
    labels: tuple[str, ...]  # of a classification head
    problem: Problem


@dataclass(frozen=True, slots=True)
class EncoderFamily:
    """How to read one family's configuration and tensors."""

    class_prefix: str  # of the reference library's classes: "Bert" + "ForSequenceClassification"
    tensor_prefix: str  # before the encoder's tensors where the checkpoint also holds a head
    names: Names
    heads: Mapping[str, str]  # as `names.top`, for tensors that never have the prefix
    dense: str  # first layer of a sequence classifier; BERT's is the pooler, which belongs to the encoder
    dense_activation: Literal["tanh", "relu"]  # between it and the second
    training_heads: tuple[str, ...]  # tensors that only the pre-training needed begin so
    read: Callable[[Fields, str], EncoderConfig]  # second: the family's name


def sizes(fields: Fields, family: str, keys: Mapping[str, str], *, eps: float | None, first: int) -> EncoderConfig:
    """The configuration; `keys` says where a family calls a size by another name. eps None: the file must say it."""

    def size(name: str, high: int = 1 << 31) -> int:
        return fields.integer(keys.get(name, name), high=high)

    refuse_decoders(fields)
    hidden, heads = size("hidden_size"), size("num_attention_heads")
    if hidden % heads:
        raise fields.wrong(keys.get("hidden_size", "hidden_size"), f"a multiple of the {heads} attention heads")
    name = fields.get(keys.get("hidden_act", "hidden_act")) or "gelu"
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"{fields.where}: the activation {name!r} is not supported yet; known are {', '.join(_ACTIVATIONS)}"
        )
    positions = size("max_position_embeddings")
    if positions <= first:
        raise fields.wrong("max_position_embeddings", f"more than {first}, where positions begin")
    labels = read_labels(fields)
    return EncoderConfig(
        architecture=family,
        num_layers=size("num_hidden_layers", MAX_LAYERS),
        hidden_size=hidden,
        intermediate_size=size("intermediate_size"),
        num_heads=heads,
        head_dim=hidden // heads,
        vocab_size=size("vocab_size"),
        num_positions=positions - first,
        first_position=first,
        num_token_types=0 if family == "distilbert" else fields.integer("type_vocab_size", 2, low=0),
        norm_eps=fields.number("layer_norm_eps", 1e-12) if eps is None else eps,
        activation=_ACTIVATIONS[name],
        labels=labels,
        problem=read_problem(fields, len(labels)),
    )


def refuse_decoders(fields: Fields) -> None:
    """What would make the graph wrong though every tensor has its place."""
    if fields.get("quantization_config") is not None:
        raise UnsupportedModelError(f"{fields.where}: quantized safetensors checkpoints are not supported yet")
    for key in ("is_decoder", "add_cross_attention"):
        if fields.flag(key, False):
            raise UnsupportedModelError(f"{fields.where}: {key} = true makes a decoder of an encoder: not supported")
    kind = fields.text("position_embedding_type", "absolute")
    if kind != "absolute":
        raise UnsupportedModelError(f"{fields.where}: positions of the kind {kind!r} are not supported yet")
