"""From logits to tokens: what moves logits, what leaves the draw, the draw itself, and what a token's chance was.

Reading order: `rows` (what goes in and out), `steering` (mask, allowed tokens, bad words, min_tokens, bias, penalties),
`filters` (min_p, top_k, top_p, typical_p), `draws`, `logprobs`, `sampler` (all of it in order).
"""

from aie_engine.sampling.logprobs import score_prompt
from aie_engine.sampling.rows import ArgmaxRows, SampleOutput, SampleRow, UInt32Array, numpy_argmax
from aie_engine.sampling.sampler import sample

__all__ = [
    "ArgmaxRows",
    "SampleOutput",
    "SampleRow",
    "UInt32Array",
    "numpy_argmax",
    "sample",
    "score_prompt",
]
