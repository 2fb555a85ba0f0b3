"""Texts through a predictor: tokens, packed batches, one run of the graph for each.

Packed texts do not see each other, so a text's result does not depend on the batch that it is in: the numbers are the
same up to the rounding of a matrix product, whose order of additions may depend on its number of rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from aie_engine.executors.stateless import StatelessExecutor
from aie_loader import Predictor, pack_texts
from aie_tensor import InvalidInputError

__all__ = ["GraphRunner", "embed_texts", "predict_ids", "predict_texts"]

Float32Array = npt.NDArray[np.float32]
BATCH_TOKENS = 1024  # tokens of one run: enough to keep matrix products busy, few enough to keep activations small


class GraphRunner(Protocol):
    """Runs a graph without a cache; `StatelessExecutor` in NumPy."""

    def run(self, inputs: Mapping[str, Any], seq_starts: npt.ArrayLike | None = None) -> dict[str, Any]: ...


def predict_texts(
    predictor: Predictor,
    texts: Sequence[str | tuple[str, str]],
    *,
    runner: GraphRunner | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> list[Float32Array]:
    """For each text what the predictor's `output` says: [C] or [labels]; for outputs per token [t, C] or [t, labels].

    A pair of texts is one input. What is longer than the model can read is truncated. batch_tokens: a batch holds at
    most so many, and at least one text. InvalidInputError for a predictor that does not read text.
    """
    encoded = predictor.encode(texts)
    types = encoded.type_ids if "token_types" in predictor.graph.inputs else None
    return predict_ids(predictor, encoded.ids, token_types=types, runner=runner, batch_tokens=batch_tokens)


def predict_ids(
    predictor: Predictor,
    texts: Sequence[Sequence[int]],
    *,
    token_types: Sequence[Sequence[int]] | None = None,
    runner: GraphRunner | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> list[Float32Array]:
    """As `predict_texts` for token ids; token_types for pairs of texts in one. What is too long is refused, not cut."""
    most = predictor.max_length
    if most is not None and any(len(text) > most for text in texts):
        longest = max(map(len, texts))
        raise InvalidInputError(f"a text has {longest} tokens; {predictor.name} reads at most {most}")
    own = runner is None
    runner = StatelessExecutor(predictor.graph) if runner is None else runner
    results: list[Float32Array] = []
    for begin, end in _batches([len(text) for text in texts], batch_tokens):
        packed = pack_texts(predictor.graph, texts[begin:end], None if token_types is None else token_types[begin:end])
        output = runner.run(packed.inputs, packed.seq_starts)[predictor.graph.outputs[0]]
        if predictor.output in ("token_states", "token_logits"):
            results += np.split(output, packed.seq_starts[1:-1])
        else:
            results += list(output)
    if own and isinstance(runner, StatelessExecutor):
        runner.close()
    return results


def embed_texts(
    predictor: Predictor, texts: Sequence[str], *, runner: GraphRunner | None = None, batch_tokens: int = BATCH_TOKENS
) -> Float32Array:
    """One vector per text: [S, C]. InvalidInputError for a predictor that gives none."""
    if predictor.output != "embedding":
        raise InvalidInputError(
            f"{predictor.name} gives {predictor.output}, not one vector per text; load it with a head such as mean"
        )
    if not texts:
        raise InvalidInputError("there are no texts to embed")
    return np.stack(predict_texts(predictor, texts, runner=runner, batch_tokens=batch_tokens))


def _batches(lengths: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Runs of neighbours that fit into `most` tokens together."""
    begin, total = 0, 0
    for index, length in enumerate(lengths):
        if index > begin and total + length > most:
            yield begin, index
            begin, total = index, 0
        total += length
    if begin < len(lengths):
        yield begin, len(lengths)
