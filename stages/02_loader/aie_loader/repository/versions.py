"""A folder of models with versions, as a server watches it:

    DIR/<model>/<version>/…      a .gguf file, or a folder with config.json and safetensors
    DIR/<model>/…                such files without versions: version 1
    DIR/<model>.gguf             the same

The newest version is the last in natural order, in which 10 comes after 9 and v1.10 after v1.9. What is still being
copied does not count: names that begin with `.`, `_` or `~` or end with `.tmp`, `.part`, `.partial`, `.incomplete` or
`~` are passed over, so whoever adds a version writes it under such a name beside its place and renames it when it is
complete. A rename is one step; a copy is not.

Looking costs a `stat` per file and reads none. Nothing that a client says becomes part of a path: names are compared
with what the folder holds.
"""

import difflib
from collections.abc import Mapping
from pathlib import Path

from aie_loader.errors import MissingFileError, ModelNotFoundError
from aie_loader.repository.layout import ModelVersion, file_version, name_of_file, shown, versions_of, visible

__all__ = ["FixedModels", "ModelRepository"]


class ModelRepository:
    """Raises `MissingFileError` where `folder` is none that can be read."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.scan()

    def scan(self) -> Mapping[str, tuple[ModelVersion, ...]]:
        """Every model by name; its versions, oldest first. A model's folder without any version has none."""
        try:
            entries = sorted(visible(self.folder))
        except OSError as error:
            raise MissingFileError(
                f"{self.folder} cannot be read as a model repository: {error.strerror or error}"
            ) from None
        models: dict[str, tuple[ModelVersion, ...]] = {}
        for path in entries:
            if path.is_dir():
                models[shown(path.name)] = tuple(versions_of(path))
        for path in entries:  # a folder has more to say than a file of its name
            if (name := name_of_file(path)) is not None:
                models.setdefault(shown(name), (file_version(name, path),))
        return models

    def find(self, model: str, version: str | None = None) -> ModelVersion:
        """The newest version, or the one asked for. Raises `ModelNotFoundError`, which says what there is."""
        return _find(self.scan(), model, version, str(self.folder))


class FixedModels:
    """The same for models that lie anywhere: name → path of the only version. A file that was replaced since is found
    as it is now."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths = dict(paths)

    def scan(self) -> Mapping[str, tuple[ModelVersion, ...]]:
        return {name: (file_version(name, path),) for name, path in self._paths.items()}

    def find(self, model: str, version: str | None = None) -> ModelVersion:
        return _find(self.scan(), model, version, "this server")


def _find(models: Mapping[str, tuple[ModelVersion, ...]], model: str, version: str | None, where: str) -> ModelVersion:
    if model not in models:
        close = difflib.get_close_matches(model, models, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there is {', '.join(models) or 'none at all'}"
        raise ModelNotFoundError(f"{where} has no model {model[:200]!r}; {hint}", param="model")
    versions = models[model]
    if not versions:
        raise ModelNotFoundError(f"{where}: the model {model!r} has no version yet", param="model")
    if version is None:
        return versions[-1]
    for candidate in versions:
        if candidate.version == version:
            return candidate
    names = ", ".join(candidate.version for candidate in versions[-20:])
    raise ModelNotFoundError(
        f"{where}: the model {model!r} has no version {version[:200]!r}; there is {names}", param="version"
    )
