"""DistilBERT: Sanh et al. 2019, arXiv:1910.01108. BERT without token types, with half the layers and other names."""

from aie_loader.architectures.encoders.family import EncoderConfig, EncoderFamily, sizes
from aie_loader.architectures.naming import Names
from aie_loader.config import Fields

__all__ = ["DISTILBERT"]

_KEYS = {
    "hidden_size": "dim",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
}


def _read(fields: Fields, family: str) -> EncoderConfig:
    return sizes(fields, family, _KEYS, eps=1e-12, first=0)  # its configuration has no eps: the code fixes it


DISTILBERT = EncoderFamily(
    class_prefix="DistilBert",
    tensor_prefix="distilbert.",
    names=Names(
        "transformer.layer",
        {
            "token_embd": "embeddings.word_embeddings",
            "position_embd": "embeddings.position_embeddings",
            "token_embd_norm": "embeddings.LayerNorm",
        },
        {
            "attn_q": "attention.q_lin",
            "attn_k": "attention.k_lin",
            "attn_v": "attention.v_lin",
            "attn_output": "attention.out_lin",
            "attn_output_norm": "sa_layer_norm",
            "ffn_up": "ffn.lin1",
            "ffn_down": "ffn.lin2",
            "layer_output_norm": "output_layer_norm",
        },
    ),
    heads={"cls": "pre_classifier", "cls.output": "classifier", "token": "classifier"},
    dense="cls",
    dense_activation="relu",
    training_heads=("vocab_transform.", "vocab_layer_norm.", "vocab_projector."),
    read=_read,
)
