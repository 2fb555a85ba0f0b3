"""Families of encoders. A new one is a row here, a reader of its configuration and its names."""

from collections.abc import Mapping

from aie_loader.architectures.encoders.bert import BERT
from aie_loader.architectures.encoders.builder import build_encoder
from aie_loader.architectures.encoders.distilbert import DISTILBERT
from aie_loader.architectures.encoders.family import EncoderConfig, EncoderFamily
from aie_loader.architectures.encoders.gguf_bert import encoder_from_gguf, gguf_head
from aie_loader.architectures.encoders.heads import HEAD_NAMES, Head, head_of_class, named_head
from aie_loader.architectures.encoders.roberta import ROBERTA, XLM_ROBERTA
from aie_loader.architectures.encoders.sentence import sentence_head

__all__ = [
    "ENCODERS",
    "HEAD_NAMES",
    "EncoderConfig",
    "EncoderFamily",
    "Head",
    "build_encoder",
    "encoder_from_gguf",
    "gguf_head",
    "head_of_class",
    "named_head",
    "sentence_head",
]

ENCODERS: Mapping[str, EncoderFamily] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": XLM_ROBERTA,
    "distilbert": DISTILBERT,
}
"""By `model_type` of `config.json`."""
