"""What stands before and after a predictor: declared steps, vectorised NumPy.

text, image, rows, outputs  the steps of each kind
preprocessor                what Hugging Face's files say of images
config                      `processing.toml`, and what follows without one
tensors                     the open inference protocol's datatypes
pipeline                    what a client sends → items to batch
reading                     outputs → what a client reads
"""

from aie_engine.processing.config import PROCESSING_FILE, Batching, Steps, read_steps, steps_of
from aie_engine.processing.errors import ImageError, ProcessingError
from aie_engine.processing.pipeline import Item, Pipeline, TensorFacts, load_pipeline
from aie_engine.processing.reading import Label, Reader, stacked, vector_base64
from aie_engine.processing.tensors import Tensor, datatype_of, tensor_from_bytes, tensor_from_json, tensor_to_bytes

__all__ = [
    "PROCESSING_FILE",
    "Batching",
    "ImageError",
    "Item",
    "Label",
    "Pipeline",
    "ProcessingError",
    "Reader",
    "Steps",
    "Tensor",
    "TensorFacts",
    "datatype_of",
    "load_pipeline",
    "read_steps",
    "stacked",
    "steps_of",
    "tensor_from_bytes",
    "tensor_from_json",
    "tensor_to_bytes",
    "vector_base64",
]
