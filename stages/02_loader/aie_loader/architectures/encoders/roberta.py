"""RoBERTa: Liu et al. 2019, arXiv:1907.11692, and XLM-RoBERTa, the same with another vocabulary (arXiv:1911.02116).

BERT's graph. The first token has the position pad_token_id + 1, because the code that trained it numbered padding, too;
and the classifier brings its own dense layer.
"""

from dataclasses import replace

from aie_loader.architectures.encoders.bert import BERT_PARTS, BERT_TOP
from aie_loader.architectures.encoders.family import EncoderConfig, EncoderFamily, sizes
from aie_loader.architectures.naming import Names
from aie_loader.config import Fields

__all__ = ["ROBERTA", "XLM_ROBERTA"]


def _read(fields: Fields, family: str) -> EncoderConfig:
    return sizes(fields, family, {}, eps=None, first=fields.integer("pad_token_id", 1, low=0) + 1)


ROBERTA = EncoderFamily(
    class_prefix="Roberta",
    tensor_prefix="roberta.",
    names=Names("encoder.layer", {**BERT_TOP, "pooler": "pooler.dense"}, BERT_PARTS),
    heads={"cls": "classifier.dense", "cls.output": "classifier.out_proj", "token": "classifier"},
    dense="cls",
    dense_activation="tanh",
    training_heads=("lm_head.",),
    read=_read,
)
XLM_ROBERTA = replace(ROBERTA, class_prefix="XLMRoberta")
