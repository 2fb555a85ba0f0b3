"""BERT: Devlin et al. 2018, arXiv:1810.04805; the sentence encoders called MiniLM are BERTs of other sizes."""

from aie_loader.architectures.encoders.family import EncoderConfig, EncoderFamily, sizes
from aie_loader.architectures.naming import Names
from aie_loader.config import Fields

__all__ = ["BERT", "BERT_PARTS", "BERT_TOP"]

BERT_TOP = {
    "token_embd": "embeddings.word_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
}
BERT_PARTS = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}


def _read(fields: Fields, family: str) -> EncoderConfig:
    return sizes(fields, family, {}, eps=None, first=0)


BERT = EncoderFamily(
    class_prefix="Bert",
    tensor_prefix="bert.",
    names=Names("encoder.layer", {**BERT_TOP, "pooler": "pooler.dense"}, BERT_PARTS),
    heads={"cls.output": "classifier", "token": "classifier"},
    dense="pooler",
    dense_activation="tanh",
    training_heads=("cls.",),
    read=_read,
)
