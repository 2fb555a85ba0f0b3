"""File formats: strict parsers that validate a header completely before they map a file."""

from aie_loader.formats.checkpoint import Checkpoint, TensorInfo
from aie_loader.formats.folder import open_folder
from aie_loader.formats.gguf import GGUFCheckpoint, GGUFHeader, open_gguf, read_gguf_header
from aie_loader.formats.safetensors import (
    SafetensorsCheckpoint,
    SafetensorsHeader,
    open_safetensors,
    read_safetensors_header,
)
from aie_loader.formats.strict_json import optional_json_object, parse_json, read_json_object

__all__ = [
    "Checkpoint",
    "GGUFCheckpoint",
    "GGUFHeader",
    "SafetensorsCheckpoint",
    "SafetensorsHeader",
    "TensorInfo",
    "open_folder",
    "open_gguf",
    "open_safetensors",
    "optional_json_object",
    "parse_json",
    "read_gguf_header",
    "read_json_object",
    "read_safetensors_header",
]
