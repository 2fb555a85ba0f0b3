"""The compiled kernels as Python functions.

`NativeLibrary` wraps the shared object: argument types are declared once, and the C structures' sizes are compared with
their mirrors here before anything runs. ctypes releases the interpreter lock during every call.
"""

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aie_tensor.errors import NativeUnavailableError, OutOfMemoryError
from aie_tensor.native.build import REMEDY, Compiler, build, is_cut
from aie_tensor.native.structs import MIRRORED, OP_NAMES, PlanSpecC, StepC

__all__ = ["NativeLibrary", "load", "pointer"]

F32Array = npt.NDArray[np.float32]


def pointer(array: npt.NDArray[np.generic]) -> int:
    """Address of an array that C may walk: it must be C-contiguous, and the caller keeps it alive."""
    assert array.flags.c_contiguous, f"array of shape {array.shape} and strides {array.strides} is not contiguous"
    return array.ctypes.data


class NativeLibrary:
    """The loaded kernels. Obtain one by `load`; it is stateless and may be shared between threads."""

    def __init__(self, path: Path) -> None:
        try:
            if is_cut(path):
                raise OSError("file is cut short")
            library = ctypes.CDLL(str(path))
        except OSError as error:
            reason = (error.strerror or str(error)).removeprefix(f"{path}: ")
            raise NativeUnavailableError(f"The compiled kernels {path} cannot be loaded: {reason}.") from error
        address, int32, int64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
        signatures: dict[str, tuple[type | None, list[type]]] = {
            "aie_struct_sizes": (None, [address]),
            "aie_isa": (ctypes.c_char_p, []),
            "aie_panel_bytes": (int64, [int32, int32]),
            "aie_pack": (None, [int32, int32, int32, address, address]),
            "aie_argmax_rows": (None, [address, int32, int32, address]),
            "aie_map": (None, [int32, ctypes.c_float, address, int32, address]),
            "aie_nms": (int32, [address, address, int32, ctypes.c_float, int32, address]),
            "aie_plan_create": (address, [ctypes.POINTER(PlanSpecC)]),
            "aie_plan_scratch_bytes": (int64, [ctypes.POINTER(PlanSpecC)]),
            "aie_plan_run": (None, [address, ctypes.POINTER(StepC)]),
            "aie_plan_profile": (int64, [address, address, address]),
            "aie_plan_free": (None, [address]),
            "aie_peak_flops": (ctypes.c_double, [int32, ctypes.c_double]),
            "aie_peak_read": (ctypes.c_double, [int32, int64, ctypes.c_double]),
        }
        for name, (result, arguments) in signatures.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self.path = path
        self.c = library
        sizes = np.zeros(len(MIRRORED), np.int64)
        library.aie_struct_sizes(pointer(sizes))
        assert sizes.tolist() == [ctypes.sizeof(s) for s in MIRRORED], f"C's structures differ from ours: {sizes}"

    @property
    def isa(self) -> str:
        """Which vector instructions the kernels use: avx512, avx2, neon or portable."""
        return str(self.c.aie_isa().decode())

    def argmax_rows(self, x: F32Array) -> npt.NDArray[np.int32]:
        """x [R, V] -> [R]: index of each row's first greatest value, or of its first NaN, as np.argmax."""
        assert x.dtype == np.float32 and x.ndim == 2 and x.shape[1] > 0, (x.dtype, x.shape)
        out = np.empty(x.shape[0], np.int32)
        self.c.aie_argmax_rows(pointer(x), x.shape[0], x.shape[1], pointer(out))
        return out

    def nms(self, boxes: F32Array, scores: F32Array, iou: float, max_output: int | None) -> npt.NDArray[np.int64]:
        """boxes [N, 4], scores [N] -> the boxes that stay, best first, as `ops.nms`."""
        assert boxes.dtype == scores.dtype == np.float32 and boxes.shape == (len(scores), 4), (
            boxes.shape,
            scores.shape,
        )
        kept, most = np.empty(len(scores), np.int64), len(scores) if max_output is None else max_output
        count = self.c.aie_nms(pointer(boxes), pointer(scores), len(scores), iou, min(most, 2**31 - 1), pointer(kept))
        if count < 0:
            raise OutOfMemoryError(f"The machine refuses memory for {len(scores)} boxes.")
        return kept[:count]

    def map(self, name: str, x: F32Array, constant: float = 1.0) -> F32Array:
        """An operator of one element ("exp", "gelu", …) of every element; for tests of its accuracy."""
        assert x.dtype == np.float32, x.dtype
        out = np.empty_like(x)
        self.c.aie_map(OP_NAMES.index(name), constant, pointer(x), x.size, pointer(out))
        return out

    def peak_flops(self, num_threads: int, seconds: float = 0.3) -> float:
        """fp32 operations per second of this machine at best, a fused multiply-add counting as two: the shortest of
        the runs that fit into `seconds`. Nothing else should run meanwhile."""
        return self._measured(self.c.aie_peak_flops(num_threads, seconds))

    def peak_read(self, num_threads: int, nbytes: int, seconds: float = 0.3) -> float:
        """Bytes per second that `num_threads` read from `nbytes` of memory, at best."""
        return self._measured(self.c.aie_peak_read(num_threads, nbytes, seconds))

    def _measured(self, figure: float) -> float:
        if figure < 0:
            raise OutOfMemoryError("The machine refuses memory or threads for a measurement.")
        return float(figure)


def load(
    *,
    report: Callable[[str], None] | None = None,
    compiler: Compiler | None = None,
    flags: Sequence[str] | None = None,
    cache: Path | None = None,
) -> NativeLibrary:
    """The kernels for this CPU, compiled now if they were not before (a few seconds). Arguments: see `build`.

    Raises NativeUnavailableError when this machine cannot build them; the message names the remedy.
    """
    path = build(report=report, compiler=compiler, flags=flags, cache=cache)
    try:
        return NativeLibrary(path)
    except NativeUnavailableError:
        # A file in the cache may have been damaged since it was built (a full disk, a cut copy): once more, afresh.
        _discard(path)
    path = build(report=report, compiler=compiler, flags=flags, cache=cache)
    try:
        return NativeLibrary(path)
    except NativeUnavailableError as error:
        _discard(path)
        raise NativeUnavailableError(f"{error} {REMEDY}") from error


def _discard(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise NativeUnavailableError(
            f"{path} is no library and cannot be removed ({error.strerror or error}). Remove it by hand."
        ) from error
