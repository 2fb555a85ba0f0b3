"""File formats: strict parsers that validate a header completely before they map a file."""

from aie_loader.formats.checkpoint import Checkpoint, CheckpointFormat, TensorInfo
from aie_loader.formats.gguf import GGUFHeader, open_gguf, read_gguf_header
from aie_loader.formats.leniency import STRICT, Leniency, find_leniency
from aie_loader.formats.numpy_files import open_npy, open_npz
from aie_loader.formats.opening import open_checkpoint
from aie_loader.formats.safetensors import SafetensorsHeader, open_safetensors, read_safetensors_header
from aie_loader.formats.strict_json import optional_json_object, parse_json, read_json_object
from aie_loader.formats.torch_files import open_torch

__all__ = [
    "STRICT",
    "Checkpoint",
    "CheckpointFormat",
    "GGUFHeader",
    "Leniency",
    "SafetensorsHeader",
    "TensorInfo",
    "find_leniency",
    "open_checkpoint",
    "open_gguf",
    "open_npy",
    "open_npz",
    "open_safetensors",
    "open_torch",
    "optional_json_object",
    "parse_json",
    "read_gguf_header",
    "read_json_object",
    "read_safetensors_header",
]
