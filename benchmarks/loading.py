"""What loading costs against reading: `python benchmarks/loading.py [MODEL] [--json PATH]`.

The model is written as a bfloat16 safetensors folder into a temporary place, and then, each time in a process of its
own, its weights are brought into memory in three ways:

    plain      the bytes of model.safetensors read into one buffer: what the disk and the copy cost, and no more
    loaded     load_model (header, configuration, graph; the tokenizer's time is taken out and told apart), and every
               weight touched once
    packed     the same, and every matrix repacked into the order that the kernels read: ready to compute

Times are medians; memory is the peak of resident bytes above what the process had with its imports and a tokenizer.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

WAYS = ("plain", "loaded", "packed")
ROUNDS = 5


def bring_in(way: str, folder: Path) -> dict[str, float]:
    """One measurement, in this process."""
    import time

    import numpy as np

    from aie_engine.executors.mapped import drop_pages
    from aie_loader import load_model, load_tokenizer
    from aie_tensor import Matrix, native
    from aie_tensor.native import PackedMatrix

    library = native.load() if way == "packed" else None
    load_tokenizer(folder)  # its memory is no business of the weights: what it leaves is there before we begin
    before = resident()
    began = time.perf_counter()
    tokenizer_s = 0.0
    if way == "plain":
        path = folder / "model.safetensors"
        buffer = bytearray(path.stat().st_size)
        with path.open("rb", buffering=0) as file:
            view = memoryview(buffer)
            while view:
                view = view[file.readinto(view) :]
    else:
        model = load_model(folder)
        tokenizer_s = model.load_phases["tokenizer"]

        def take(matrix: Matrix) -> object:
            if library is None or len(matrix.shape) != 2:
                return np.add.reduce(matrix.data[::4096], dtype=np.int64)
            packed = PackedMatrix.pack(library, matrix)
            drop_pages(matrix)
            return packed

        with ThreadPoolExecutor(os.cpu_count()) as threads:  # as the engine does it
            kept = list(threads.map(take, model.graph.weights.values()))
        assert len(kept) == len(model.graph.weights)
    seconds = time.perf_counter() - began - tokenizer_s
    return {"seconds": seconds, "tokenizer_s": tokenizer_s, "peak_bytes": peak_resident() - before}


def resident() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)


def peak_resident() -> int:
    """Of this program alone: `ru_maxrss` begins, on Linux, with what the parent had when it started us."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) << 10 for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--measure", nargs=2, metavar=("WAY", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(bring_in(options.measure[0], Path(options.measure[1]))))
        return
    import numpy

    from aie_loader import load_model, resolve
    from aie_loader.export.to_path import export_model
    from aie_loader.precision import find_precision

    with tempfile.TemporaryDirectory(prefix="aie-loading-") as scratch:
        folder = Path(scratch) / "bf16"
        model = load_model(resolve(options.model))
        export_model(model, folder, find_precision("bf16"))
        model.close()
        size = (folder / "model.safetensors").stat().st_size
        rounds: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for _ in range(ROUNDS):  # in turns, so that a change in the machine's mood meets all of them
            for way in WAYS:
                command = [sys.executable, __file__, "--measure", way, str(folder)]
                done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
                rounds[way].append(json.loads(done.stdout))
    print(
        f"python {platform.python_version()}, numpy {numpy.__version__}, {os.cpu_count()} cpus, file in the page cache"
    )
    print(f"model.safetensors, bfloat16: {size:,} bytes; medians of {ROUNDS} rounds\n")
    figures = {
        way: {key: statistics.median(one[key] for one in all_of) for key in all_of[0]} for way, all_of in rounds.items()
    }
    plain = figures["plain"]["seconds"]
    print(f"  {'':<10}{'seconds':>10}{'of plain':>10}{'peak MB':>10}{'of file':>10}{'tokenizer s':>13}")
    for way, row in figures.items():
        print(
            f"  {way:<10}{row['seconds']:>10.3f}{row['seconds'] / plain:>9.2f}×{row['peak_bytes'] / 1e6:>10.0f}"
            f"{row['peak_bytes'] / size:>9.2f}×{row['tokenizer_s']:>13.3f}"
        )
    if options.json:
        options.json.write_text(json.dumps({"file_bytes": size, **figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
