"""What a precision costs: the same model in two of them, side by side on the same text.

texts.py       prose in several registers, ours, a few hundred tokens each
comparing.py   Kullback-Leibler divergence and perplexity from logits
running.py     a model in one precision, run over given tokens by either executor
pricing.py     the table of `aie quantize --check`
"""

from aie_engine.evaluation.comparing import Comparison, Tally, compare_logits
from aie_engine.evaluation.pricing import Price, price_precisions
from aie_engine.evaluation.running import TextRunner
from aie_engine.evaluation.texts import builtin_texts

__all__ = ["Comparison", "Price", "Tally", "TextRunner", "builtin_texts", "compare_logits", "price_precisions"]
