"""Ways of batching sequences for an encoder, and the traffic to try them on."""

import random
from collections.abc import Callable, Sequence

import numpy as np

from aie.bench.workload import length_draw
from aie_loader import Predictor, pack_texts

__all__ = ["SENTENCES", "Sequences", "Way", "own_ways", "traffic"]

SENTENCES = (3, 176)  # tokens; lognormal around 23
EDGES = (16, 32, 64, 128, 256)  # tokens: the buckets' longest sequences
CLS, SEP, PAD, FIRST_WORD = 101, 102, 0, 1000  # of BERT's uncased vocabulary

Sequences = list[list[int]]
Way = Callable[[Sequences], np.ndarray]


def traffic(count: int, seed: int) -> dict[str, Sequences]:
    """The same number of sequences, and nearly of tokens, twice."""
    draw = random.Random(seed)
    length = length_draw("lognormal", SENTENCES)
    lengths = [length(draw) for _ in range(count)]
    equal = [round(sum(lengths) / count)] * count

    def ids(size: int) -> list[int]:
        return [CLS, *(draw.randrange(FIRST_WORD, FIRST_WORD + 20_000) for _ in range(size - 2)), SEP]

    return {"lognormal": [ids(size) for size in lengths], "equal": [ids(size) for size in equal]}


def own_ways(predictor: Predictor, executor) -> dict[str, Way]:
    """Ours. Each gives all vectors in the order in which the sequences came."""

    def run(sequences: Sequences) -> np.ndarray:
        packed = pack_texts(predictor.graph, sequences)
        return executor.run(packed.inputs, packed.seq_starts)[predictor.graph.outputs[0]]

    def in_batches(sequences: Sequences, order: Sequence[int], size: int) -> np.ndarray:
        batches = [list(order[begin : begin + size]) for begin in range(0, len(order), size)]
        vectors = np.concatenate([run([sequences[index] for index in batch]) for batch in batches])
        found = np.empty_like(vectors)
        found[list(order)] = vectors
        return found

    def packed(size: int) -> Way:
        return lambda sequences: in_batches(sequences, range(len(sequences)), size)

    def padded(size: int) -> Way:
        def way(sequences: Sequences) -> np.ndarray:
            parts = []
            for begin in range(0, len(sequences), size):
                batch = sequences[begin : begin + size]
                longest = max(map(len, batch))
                parts.append(run([one + [PAD] * (longest - len(one)) for one in batch]))
            return np.concatenate(parts)

        return way

    def bucketed(sequences: Sequences) -> np.ndarray:
        """Each batch of one bucket, padded to its own longest: buckets choose the company."""
        buckets: dict[int, list[int]] = {}
        for index, one in enumerate(sequences):
            buckets.setdefault(next(edge for edge in EDGES if len(one) <= edge), []).append(index)
        found = None
        for edge in sorted(buckets):
            mine = [sequences[index] for index in buckets[edge]]
            vectors = padded(32)(mine)
            found = np.empty((len(sequences), vectors.shape[1]), np.float32) if found is None else found
            found[buckets[edge]] = vectors
        assert found is not None
        return found

    return {
        "ours, packed, 32": packed(32),
        "ours, packed, 8": packed(8),
        "ours, one by one": packed(1),
        "ours, buckets, padded, 32": bucketed,
        "ours, padded, 32": padded(32),
        "ours, padded, 8": padded(8),
    }
