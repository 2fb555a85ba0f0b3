"""File formats: strict parsers that validate a header completely before they map a file."""

from aie_loader.formats.checkpoint import Checkpoint, CheckpointFormat, TensorInfo
from aie_loader.formats.folder import open_folder
from aie_loader.formats.gguf import GGUFHeader, open_gguf, read_gguf_header
from aie_loader.formats.leniency import STRICT, Leniency
from aie_loader.formats.safetensors import SafetensorsHeader, open_safetensors, read_safetensors_header
from aie_loader.formats.strict_json import optional_json_object, parse_json, read_json_object

__all__ = [
    "STRICT",
    "Checkpoint",
    "CheckpointFormat",
    "GGUFHeader",
    "Leniency",
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
