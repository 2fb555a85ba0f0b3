"""Which models are here: the known ones by alias (names.py), and a folder of named and numbered ones (versions.py), as
layout.py finds them on the disk."""

from aie_loader.repository.layout import ModelVersion
from aie_loader.repository.names import ModelEntry, list_models, resolve, served_name
from aie_loader.repository.versions import FixedModels, ModelRepository

__all__ = ["FixedModels", "ModelEntry", "ModelRepository", "ModelVersion", "list_models", "resolve", "served_name"]
