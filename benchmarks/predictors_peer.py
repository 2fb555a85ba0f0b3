"""MiniLM by other libraries, for `predictors.py`, which starts this file with the Python that has them.

First line out: {"versions": {…}, "ways": [[library, order, batch size], …]}. Then for every line in, one of the ways as
JSON, a line out: {"seconds": …}; the vectors of the last way lie in OUT. Sequences come as token ids, so nobody's
tokenizer is measured; pooling and normalising are measured with everybody.
"""

import argparse
import importlib
import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np

# The libraries look for optional packages by name, and would take this folder's files for them.
sys.path[:] = [place for place in sys.path if Path(place).resolve() != Path(__file__).resolve().parent]

SIZES = (1, 8, 32)


def versions() -> dict[str, str]:
    """Of what can be imported here."""
    found = {}
    for name in ("torch", "transformers", "onnxruntime", "onnx"):
        try:
            found[name] = str(importlib.import_module(name).__version__)
        except ImportError:
            continue
    return found


def sentence_encoder(model: Path):
    """transformers' model with the pooling of sentence-transformers behind it: [S, T] ids and mask → [S, C]."""
    import torch
    from transformers import AutoModel
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()

    class SentenceEncoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = AutoModel.from_pretrained(str(model), dtype=torch.float32).eval()

        def forward(self, ids, mask):
            states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
            weights = mask.unsqueeze(-1).to(states.dtype)
            return torch.nn.functional.normalize((states * weights).sum(1) / weights.sum(1), dim=1)

    return SentenceEncoder().eval()


def export(model: Path, path: Path) -> None:
    """The same, as ONNX with free axes."""
    import torch

    example = torch.ones((2, 9), dtype=torch.int64)
    axes = {0: "sequences", 1: "tokens"}
    torch.onnx.export(
        sentence_encoder(model), (example, example), str(path), input_names=["ids", "mask"], output_names=["vectors"],
        dynamic_axes={"ids": axes, "mask": axes, "vectors": {0: "sequences"}}, opset_version=17, dynamo=False,
    )  # fmt: skip


def torch_runner(model: Path, threads: int):
    import torch

    torch.set_num_threads(threads)
    encoder = sentence_encoder(model)

    def run(ids, mask):
        with torch.inference_mode():
            return encoder(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()

    return run


def onnx_runner(path: Path, threads: int):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda ids, mask: session.run(None, {"ids": ids, "mask": mask})[0]


def encode(run, sequences: list[list[int]], order: str, size: int) -> np.ndarray:
    """Every batch padded to its longest. order: as they came, or sorted by length."""
    indices = list(range(len(sequences)))
    if order == "sorted":
        indices.sort(key=lambda index: len(sequences[index]))
    vectors = None
    for begin in range(0, len(indices), size):
        batch = indices[begin : begin + size]
        longest = max(len(sequences[index]) for index in batch)
        ids = np.zeros((len(batch), longest), np.int64)
        mask = np.zeros_like(ids)
        for line, index in enumerate(batch):
            ids[line, : len(sequences[index])] = sequences[index]
            mask[line, : len(sequences[index])] = 1
        found = run(ids, mask)
        vectors = np.empty((len(sequences), found.shape[1]), np.float32) if vectors is None else vectors
        vectors[batch] = found
    return vectors


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("--model", "--onnx", "--sequences", "--out"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # the exporter warns of what is meant here
    found = versions()
    talk = sys.stdout
    sys.stdout = sys.stderr  # libraries print; what is read must be ours
    runners = {}
    if {"torch", "transformers"} <= found.keys():
        runners["transformers"] = torch_runner(options.model, options.threads)
        if "onnx" in found and not options.onnx.exists():
            export(options.model, options.onnx)
    if "onnxruntime" in found and options.onnx.exists():
        runners["onnxruntime"] = onnx_runner(options.onnx, options.threads)
    ways = [
        (library, order, size)
        for library in runners
        for order in ("arrival", "sorted")
        for size in SIZES
        if size > 1 or order == "arrival"
    ]
    print(json.dumps({"versions": found, "ways": ways}), file=talk, flush=True)
    traffic = json.loads(options.sequences.read_text())
    for line in sys.stdin:
        library, order, size, name = json.loads(line)
        began = time.perf_counter()
        vectors = encode(runners[library], traffic[name], order, size)
        seconds = time.perf_counter() - began
        np.save(options.out, vectors)
        print(json.dumps({"seconds": seconds}), file=talk, flush=True)


if __name__ == "__main__":
    main()
