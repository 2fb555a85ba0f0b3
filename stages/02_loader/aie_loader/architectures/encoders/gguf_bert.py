"""A BERT in a GGUF file: keys `bert.*`. The tensors are called there as in the graph.

The file says which pooling the model was trained with, and nothing of a length of 1, so none is imposed. RoBERTa comes
under the same name: whoever wrote the file cut the rows from its table of positions that no token ever has.
"""

from collections.abc import Mapping

from aie_loader.architectures.checks import MAX_LAYERS
from aie_loader.architectures.encoders.family import EncoderConfig
from aie_loader.architectures.encoders.heads import Head, named_head
from aie_loader.config import Fields
from aie_loader.errors import UnsupportedModelError
from aie_tensor import Matrix

__all__ = ["encoder_from_gguf", "gguf_head"]

_POOLINGS = {0: Head("states"), 1: Head("pool", ("mean",)), 2: Head("pool", ("cls",)), 3: Head("pool", ("last",))}


def encoder_from_gguf(
    metadata: Mapping[str, object], tensors: Mapping[str, Matrix], where: str
) -> tuple[EncoderConfig, Head]:
    """Configuration, and what is done with the states of the tokens. MalformedHeaderError names file and key."""
    fields = Fields(metadata, where)
    if fields.flag("bert.attention.causal", False):
        raise UnsupportedModelError(f"{where}: bert.attention.causal = true makes a decoder of an encoder")
    hidden, heads = fields.integer("bert.embedding_length"), fields.integer("bert.attention.head_count")
    if hidden % heads:
        raise fields.wrong("bert.embedding_length", f"a multiple of the {heads} attention heads")
    types = tensors.get("token_types.weight")
    tokens = metadata.get("tokenizer.ggml.tokens")
    config = EncoderConfig(
        architecture="bert",
        num_layers=fields.integer("bert.block_count", high=MAX_LAYERS),
        hidden_size=hidden,
        intermediate_size=fields.integer("bert.feed_forward_length"),
        num_heads=heads,
        head_dim=hidden // heads,
        vocab_size=fields.integer("bert.vocab_size", len(tokens) if isinstance(tokens, list | tuple) else None),
        num_positions=fields.integer("bert.context_length"),
        first_position=0,
        num_token_types=types.shape[0] if types is not None and types.shape else 0,
        norm_eps=fields.number("bert.attention.layer_norm_epsilon", 1e-12),
        activation="gelu",
        labels=(),
        problem="single_label",
    )
    pooling = fields.integer("bert.pooling_type", 0, low=0)
    if pooling not in _POOLINGS:
        raise UnsupportedModelError(
            f"{where}: bert.pooling_type {pooling} is not supported yet; known are 0 none, 1 mean, 2 cls, 3 last"
        )
    return config, _POOLINGS[pooling]


def gguf_head(name: str) -> Head:
    """The head that a caller names; the file has no tensors of classifiers. UnsupportedModelError for those."""
    head = named_head(name)
    if head.kind not in ("states", "pool"):
        raise UnsupportedModelError(f"a BERT in a GGUF file has no head {name!r}; states, mean, cls and max need none")
    return head
