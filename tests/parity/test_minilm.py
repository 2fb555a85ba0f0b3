"""The real MiniLM against the reference library, on 200 sentences of mixed length: alone, in any batch and padding."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aie_engine.executors import StatelessExecutor
from aie_loader import Predictor, load_predictor, pack_texts, resolve, without_padding
from aie_tensor import AieError

sys.path.insert(0, str(Path(__file__).parent))
from sentences import sentences

GOLDEN = Path(__file__).parent.parent / "golden" / "parity" / "encoders" / "minilm_l6.npz"


@pytest.fixture(scope="module")
def minilm() -> Predictor:
    try:
        return load_predictor(resolve("minilm-l6"))
    except AieError as error:
        pytest.skip(str(error))


def cosines(ours: Any, reference: Any) -> Any:
    return np.sum(ours * reference, axis=1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(reference, axis=1)


@pytest.mark.real_model
def test_minilm_embeds_200_sentences_as_the_reference_does(minilm: Predictor, tmp_path: Path) -> None:
    """Alone, and in batches of chance neighbours: each within 1e-5 of cosine, and in fact much closer."""
    script, out = Path(__file__).parent / "embed_sentences.py", tmp_path / "ours.npz"
    one_thread = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, str(script), str(out)], env=one_thread, check=True)
    golden, ours = np.load(GOLDEN), np.load(out)
    assert ours["lengths"].tolist() == golden["lengths"].tolist()
    for way in ("alone", "batched"):
        assert cosines(ours[way], golden["vectors"]).min() >= 1 - 1e-5
        np.testing.assert_allclose(ours[way], golden["vectors"], atol=2e-6)
    # The order of additions in a matrix product depends on its number of rows: equal but for rounding.
    np.testing.assert_allclose(ours["batched"], ours["alone"], atol=1e-6)


@pytest.mark.real_model
def test_minilm_takes_a_padded_batch_and_its_mask(minilm: Predictor) -> None:
    texts, vectors = sentences()[2:12], np.load(GOLDEN)["vectors"][2:12]
    ids = minilm.encode(texts).ids
    runner = StatelessExecutor(minilm.graph)
    for longest, left in ((max(map(len, ids)), False), (400, True)):
        pads = [[0] * (longest - len(text)) for text in ids]
        padded = [pad + text if left else text + pad for pad, text in zip(pads, ids, strict=True)]
        ones = [[1] * len(text) for text in ids]
        mask = [pad + one if left else one + pad for pad, one in zip(pads, ones, strict=True)]
        packed = pack_texts(minilm.graph, without_padding(padded, mask))
        out = runner.run(packed.inputs, packed.seq_starts)[minilm.graph.outputs[0]]
        assert cosines(out, vectors).min() >= 1 - 1e-5
