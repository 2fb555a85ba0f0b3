"""The parts of the benchmark of predictors that need no other library: models, traffic, ways of batching."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from aie_engine.executors import StatelessExecutor
from aie_loader import load_predictor

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name in ("predictor_ways", "predictor_models"):
        sys.modules.pop(name, None)


def test_the_models_load_run_and_come_from_their_seed(tmp_path: Path) -> None:
    from predictor_models import write_mlp, write_resnet

    mlp = load_predictor(write_mlp(tmp_path / "mlp"))
    assert mlp.graph.shapes["logits"] == ("B", 10) and mlp.output in ("embedding", "logits")
    rows = np.random.default_rng(0).random((3, 784), dtype=np.float32)
    logits = StatelessExecutor(mlp.graph).run({"pixels": rows})["logits"]
    assert logits.shape == (3, 10) and np.ptp(logits) > 0
    resnet = load_predictor(write_resnet(tmp_path / "resnet"))
    assert (resnet.output, len(resnet.labels)) == ("image_logits", 10)
    assert resnet.image is not None and (resnet.image.height, resnet.image.width) == (64, 64)
    pixels = np.random.default_rng(0).random((1, 3, 64, 64), dtype=np.float32)
    (out,) = StatelessExecutor(resnet.graph).run({resnet.graph.inputs[0]: pixels}).values()
    assert out.shape == (1, 10) and np.isfinite(out).all()
    files = [
        (write_mlp(tmp_path / str(seed) / str(number), seed) / "model.safetensors").read_bytes()
        for seed, number in ((0, 0), (0, 1), (1, 0))
    ]
    assert files[0] == files[1] != files[2]


def test_both_kinds_of_traffic_have_nearly_the_same_number_of_tokens() -> None:
    from predictor_ways import SENTENCES, traffic

    found = traffic(64, seed=1)
    assert found == traffic(64, seed=1) != traffic(64, seed=2)
    lengths = {kind: [len(one) for one in sequences] for kind, sequences in found.items()}
    assert len(set(lengths["equal"])) == 1 and len(set(lengths["lognormal"])) > 10
    assert abs(sum(lengths["equal"]) - sum(lengths["lognormal"])) <= 32
    assert all(SENTENCES[0] <= size <= SENTENCES[1] for size in lengths["lognormal"])


def test_every_sequence_comes_back_at_its_own_place() -> None:
    from predictor_ways import own_ways

    class Graph:
        inputs, outputs = ("token_ids",), ("sum",)

    class Predictor:
        graph = Graph()

    class Executor:
        """Gives the first and the second token of each sequence, which padding behind them does not change."""

        def run(self, inputs: dict[str, np.ndarray], starts: np.ndarray) -> dict[str, np.ndarray]:
            ids = inputs["token_ids"]
            return {"sum": np.stack([ids[starts[:-1]], ids[starts[:-1] + 1]], axis=1).astype(np.float32)}

    sequences = [[101, 2000 + index, *[7] * (index * 37 % 90)] for index in range(70)]
    expected = [[101, 2000 + index] for index in range(70)]
    for name, way in own_ways(Predictor(), Executor()).items():
        assert way(sequences).tolist() == expected, name
