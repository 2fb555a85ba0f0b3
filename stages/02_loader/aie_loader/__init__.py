"""Stage 2: a model file into an executable graph.

Layers, lowest first; each imports only those above it in this list:

    errors.py            the tree of errors
    formats/             safetensors, GGUF, NumPy, PyTorch: strict parsers, mapped tensors
    text/                text to token ids and back; chat/: messages to a prompt
    graph.py, shapes/    nodes, Kahn's algorithm, shapes
    precision.py         what weights can be loaded and written as
    passes/              rewrites of the graph: fusion, folding, other precisions
    architectures/       families of models: configuration and graph
    repository/ …        which models are here, and how to get them; tiny.py: one made on the spot
    model.py             a path into all of this; export/: back into files
    predictor.py         a path into a model that does not generate; packing.py: texts as its graph takes them

It knows nothing of requests and batches, and imports stage 1 only. Axes of shapes: see ARCHITECTURE.md.
"""

from aie_loader.chat.template import ChatTemplate
from aie_loader.config import ModelConfig
from aie_loader.errors import (
    ChatTemplateError,
    DuplicateNodeError,
    GraphCycleError,
    GraphError,
    GraphShapeError,
    MalformedHeaderError,
    MissingFileError,
    MissingInputError,
    MissingTensorError,
    ModelFileError,
    ModelNotFoundError,
    PullError,
    TensorShapeError,
    TokenizerError,
    TruncatedFileError,
    UnknownArchitectureError,
    UnsafePickleError,
    UnsupportedModelError,
    UnsupportedTensorTypeError,
)
from aie_loader.evaluation import EVALUATORS, rotate
from aie_loader.export.to_path import export_model
from aie_loader.export.writing import export_gguf, export_safetensors
from aie_loader.fetching.known_models import KNOWN_MODELS, KnownModel
from aie_loader.fetching.pulling import PullProgress, pull
from aie_loader.formats import STRICT, Checkpoint, Leniency, TensorInfo, find_leniency, open_checkpoint
from aie_loader.graph import Graph, Node, Shape
from aie_loader.liveness import Lifetime, MemoryPlan, bound_nbytes, lifetimes, plan_memory
from aie_loader.model import Model, load_model, load_tokenizer
from aie_loader.packing import PackedTexts, pack_texts, without_padding
from aie_loader.passes import WeightConverter, convert_weights, fuse, fuse_qkv, fuse_residual, fuse_swiglu
from aie_loader.precision import PRECISIONS, Precision, find_precision
from aie_loader.predictor import Predictor, is_predictor, load_predictor
from aie_loader.rendering import render_dot, render_json, render_mermaid, render_svg, render_text
from aie_loader.repository import (
    FixedModels,
    ModelEntry,
    ModelRepository,
    ModelVersion,
    list_models,
    resolve,
    served_name,
)
from aie_loader.shapes import infer_shapes
from aie_loader.text.batch import BatchRules, EncodedBatch
from aie_loader.text.incremental import IncrementalDecoder
from aie_loader.text.tokenizer import Tokenizer
from aie_loader.tiny import write_tiny_gguf, write_tiny_llama

__all__ = [
    "EVALUATORS",
    "KNOWN_MODELS",
    "PRECISIONS",
    "STRICT",
    "BatchRules",
    "ChatTemplate",
    "ChatTemplateError",
    "Checkpoint",
    "DuplicateNodeError",
    "EncodedBatch",
    "FixedModels",
    "Graph",
    "GraphCycleError",
    "GraphError",
    "GraphShapeError",
    "IncrementalDecoder",
    "KnownModel",
    "Leniency",
    "Lifetime",
    "MalformedHeaderError",
    "MemoryPlan",
    "MissingFileError",
    "MissingInputError",
    "MissingTensorError",
    "Model",
    "ModelConfig",
    "ModelEntry",
    "ModelFileError",
    "ModelNotFoundError",
    "ModelRepository",
    "ModelVersion",
    "Node",
    "PackedTexts",
    "Precision",
    "Predictor",
    "PullError",
    "PullProgress",
    "Shape",
    "TensorInfo",
    "TensorShapeError",
    "Tokenizer",
    "TokenizerError",
    "TruncatedFileError",
    "UnknownArchitectureError",
    "UnsafePickleError",
    "UnsupportedModelError",
    "UnsupportedTensorTypeError",
    "WeightConverter",
    "bound_nbytes",
    "convert_weights",
    "export_gguf",
    "export_model",
    "export_safetensors",
    "find_leniency",
    "find_precision",
    "fuse",
    "fuse_qkv",
    "fuse_residual",
    "fuse_swiglu",
    "infer_shapes",
    "is_predictor",
    "lifetimes",
    "list_models",
    "load_model",
    "load_predictor",
    "load_tokenizer",
    "open_checkpoint",
    "pack_texts",
    "plan_memory",
    "pull",
    "render_dot",
    "render_json",
    "render_mermaid",
    "render_svg",
    "render_text",
    "resolve",
    "rotate",
    "served_name",
    "without_padding",
    "write_tiny_gguf",
    "write_tiny_llama",
]
