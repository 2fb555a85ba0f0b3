"""The text side of a model from one version to the next: kept where nothing of it changed.

Most new versions bring new weights and the same words. Reading a large vocabulary again takes a while, and of every
tokenizer that was ever used the `tokenizers` library keeps some kilobytes, which would add up over a thousand reloads.
"""

import hashlib
import os
from collections.abc import Collection

from aie_engine import ModelVersion, TextModel, load_text_model

__all__ = ["TextModels"]

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".npz", ".gguf", ".onnx", ".h5", ".msgpack")


class TextModels:
    """For one thread at a time. lenient: differences from the formats' rules to let through."""

    def __init__(self, lenient: Collection[str] = ()) -> None:
        self._lenient = lenient
        self._last: dict[str, tuple[bytes, TextModel]] = {}  # by model: digest of its files, and what they gave

    def of(self, version: ModelVersion) -> TextModel:
        """Read anew unless every file but the weights is, to the byte, what the version before had. A GGUF file has its
        vocabulary among its weights and is always read."""
        if not version.path.is_dir():
            return load_text_model(version.path, lenient=self._lenient)
        digest = _digest(version)
        known = self._last.get(version.model)
        if known is None or known[0] != digest:
            known = self._last[version.model] = digest, load_text_model(version.path, lenient=self._lenient)
        return known[1]


def _digest(version: ModelVersion) -> bytes:
    """Raises `OSError`."""
    whole = hashlib.sha256()
    for name, _, size, _ in version.stamp:
        if name.endswith(_WEIGHTS) or name == str(version.golden):
            continue
        with open(name, "rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
        whole.update(f"{os.path.relpath(name, version.path)}\0{size}\0".encode(errors="surrogateescape") + content)
    return whole.digest()
