"""Small models from a seed, for benchmarks: what they answer means nothing, what they cost is real."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from aie_loader.formats.safetensors_writer import PendingTensor, write_safetensors

__all__ = ["write_mlp", "write_resnet"]

_MLP = (784, 256, 10)  # images of 28 × 28 pixels, ten digits
_SIDE = 64  # pixels
_STEM = 16
_STAGES = (16, 32, 64)  # channels; one basic block each
_LABELS = 10

Weights = dict[str, np.ndarray]


def write_mlp(folder: Path, seed: int = 0) -> Path:
    """784-256-10 with a ReLU between: graph.json and model.safetensors."""
    draw = np.random.default_rng(seed)
    weights: Weights = {}
    for number, (inputs, outputs) in enumerate(pairwise(_MLP), 1):
        weights[f"fc{number}.weight"] = _uniform(draw, (outputs, inputs))
        weights[f"fc{number}.bias"] = _uniform(draw, (outputs,))
    nodes = [
        {"name": "hidden", "op": "linear", "inputs": ["pixels", "fc1.weight", "fc1.bias"]},
        {"name": "active", "op": "relu", "inputs": ["hidden"]},
        {"name": "logits", "op": "linear", "inputs": ["active", "fc2.weight", "fc2.bias"]},
    ]
    graph = {"aie_graph": 1, "inputs": {"pixels": ["B", _MLP[0]]}, "nodes": nodes, "outputs": ["logits"]}
    return _write(folder, weights, {"graph.json": graph})


def write_resnet(folder: Path, seed: int = 0) -> Path:
    """Seven convolutions and two shortcuts on images of 64 × 64 pixels, in the layout of the Hugging Face libraries."""
    draw = np.random.default_rng(seed)
    weights: Weights = {}
    _convolution(weights, draw, "resnet.embedder.embedder", _STEM, 3, 7)
    width = _STEM
    for stage, outputs in enumerate(_STAGES):
        block = f"resnet.encoder.stages.{stage}.layers.0"
        _convolution(weights, draw, f"{block}.layer.0", outputs, width, 3)
        _convolution(weights, draw, f"{block}.layer.1", outputs, outputs, 3)
        if stage:  # the first keeps height, width and channels
            _convolution(weights, draw, f"{block}.shortcut", outputs, width, 1)
        width = outputs
    weights["classifier.1.weight"] = _uniform(draw, (_LABELS, width))
    weights["classifier.1.bias"] = _uniform(draw, (_LABELS,))
    config = {
        "model_type": "resnet", "architectures": ["ResNetForImageClassification"], "layer_type": "basic",
        "embedding_size": _STEM, "hidden_sizes": list(_STAGES), "depths": [1] * len(_STAGES),
        "id2label": {str(index): f"label {index}" for index in range(_LABELS)},
    }  # fmt: skip
    size = {"height": _SIDE, "width": _SIDE}
    return _write(folder, weights, {"config.json": config, "preprocessor_config.json": {"size": size}})


def _convolution(weights: Weights, draw: np.random.Generator, name: str, outputs: int, inputs: int, side: int) -> None:
    """And the batch normalisation behind it."""
    weights[f"{name}.convolution.weight"] = _uniform(draw, (outputs, inputs, side, side))
    norm = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
    for part, value in norm.items():
        weights[f"{name}.normalization.{part}"] = np.full(outputs, value, np.float32)


def _uniform(draw: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """Within one over the root of the number of inputs, as layers are commonly begun."""
    bound = 1 / np.sqrt(np.prod(shape[1:]) if len(shape) > 1 else shape[0])
    return draw.uniform(-bound, bound, shape).astype(np.float32)


def _write(folder: Path, weights: Weights, documents: dict[str, dict]) -> Path:
    folder.mkdir(parents=True)
    tensors = {
        name: PendingTensor(array.shape, lambda array=array: array)  # type: ignore[misc]
        for name, array in weights.items()
    }
    write_safetensors(folder / "model.safetensors", tensors)
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=2))
    return folder
