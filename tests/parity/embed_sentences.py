"""The 200 sentences through the real MiniLM, alone and in batches, into a file: a process of its own for the test.

    OPENBLAS_NUM_THREADS=1 python tests/parity/embed_sentences.py OUT.npz

Of its own, because NumPy's threads are counted when NumPy is imported, and on products as small as one sentence's
threads that wait for each other cost many times the work wherever the cores are shared.
"""

import sys
from pathlib import Path

import numpy as np
from sentences import sentences

from aie_engine import embed_texts, predict_ids
from aie_engine.executors import StatelessExecutor
from aie_loader import load_predictor, resolve


def main(out: Path) -> None:
    minilm = load_predictor(resolve("minilm-l6"))
    texts = sentences()
    ids = minilm.encode(texts).ids
    runner = StatelessExecutor(minilm.graph)
    alone = np.stack(predict_ids(minilm, ids, runner=runner, batch_tokens=1))
    order = np.random.default_rng(0).permutation(len(texts))  # other neighbours than those of the list
    batched = np.empty_like(alone)
    batched[order] = embed_texts(minilm, [texts[index] for index in order], runner=runner, batch_tokens=700)
    np.savez(out, alone=alone, batched=batched, lengths=[len(text) for text in ids])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
