"""The model that demonstrations run on: the default one where it is cached, else a tiny one made on the spot."""

from pathlib import Path

from aie_loader import resolve, write_tiny_llama
from aie_tensor import InvalidInputError

__all__ = ["demo_model"]

_DEFAULT = "smollm2-135m"


def demo_model(folder: Path) -> tuple[Path, str]:
    """(path, what it is, in words). Never uses the network; `folder` takes the generated model."""
    try:
        return resolve(_DEFAULT), f"{_DEFAULT}, from the cache"
    except InvalidInputError:
        path = write_tiny_llama(folder / "tiny-llama")
        return path, f"a tiny random Llama, since {_DEFAULT} is not in the cache (`aie pull {_DEFAULT}` gets it)"
