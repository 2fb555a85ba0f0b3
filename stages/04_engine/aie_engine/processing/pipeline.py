"""From what a client sends to the items that a predictor batches, and from its outputs to what a client reads.

Nothing here runs the model. The calls run in the thread of whoever asks, so a slow image costs its sender and not the
batches of others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from aie_engine.processing.config import Steps, read_steps, steps_of
from aie_engine.processing.errors import ImageError
from aie_engine.processing.fitting import check_image_steps, check_lists, check_output_steps, check_row_steps
from aie_engine.processing.image import decode_image
from aie_engine.processing.tensors import Tensor, numbers
from aie_loader import Predictor, load_predictor
from aie_tensor import InvalidInputError

__all__ = ["Item", "Pipeline", "Reads", "TensorFacts", "load_pipeline"]

Array = npt.NDArray[Any]
Reads = Literal["text", "tokens", "image", "row", "tensors"]
_ITEM_AXES = ("B", "S")
_HIDDEN = ("positions",)  # of texts: follow from their lengths


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One input of the model, without the batch axis, and its length: tokens of a text, 1 for all else."""

    inputs: Mapping[str, Array]
    length: int = 1


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """An input or output as the open inference protocol names it; -1 for an axis that differs."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class Pipeline:
    """Of one model; never changed, thread-safe.

    predictor: its tokenizer, shapes and labels are kept, its weights are not.
    """

    def __init__(self, predictor: Predictor, steps: Steps, *, max_tokens: int | None = None) -> None:
        graph = predictor.graph
        self.name, self.output, self.problem, self.steps = predictor.name, predictor.output, predictor.problem, steps
        self.labels = steps.labels or predictor.labels
        limits = [limit for limit in (predictor.max_length, max_tokens) if limit is not None]
        self.max_length = min(limits, default=None)
        self._tokenizer = predictor.tokenizer
        self._shapes = {name: graph.shapes[name] for name in graph.inputs if name not in _HIDDEN}
        self._batch_shapes = {name: _facts(shape) for name, shape in self._shapes.items()}
        self._output_shapes = {name: graph.shapes[name] for name in graph.outputs}
        self._first = graph.outputs[0]
        width = self._output_shapes[self._first][-1]
        self.width = width if isinstance(width, int) else None  # of a vector, or number of labels
        if self.labels and self.width is not None and len(self.labels) != self.width:
            raise InvalidInputError(
                f"{self.name} has {len(self.labels)} labels for {self.width} outputs; give as many in processing.toml.",
                param="labels",
            )
        self.reads: Reads = self._kind(predictor)
        check_lists(self.name, steps, self.reads)
        if self.reads in ("image", "row"):
            check = check_image_steps if self.reads == "image" else check_row_steps
            check(self.name, steps, *next(iter(self._shapes.items())))
        check_output_steps(self.name, steps, self._output_shapes)

    # Before the model

    def texts(self, texts: Sequence[str | tuple[str, str]]) -> tuple[list[Item], int]:
        """Cleaned, cut into tokens, truncated to `max_length`; and how many texts lost something by that.

        InvalidInputError for a model that does not read text, and for a text of which no token is left.
        """
        if self._tokenizer is None:
            raise InvalidInputError(f"{self.name} does not read text.", param="input")
        cleaned = [self._clean(text) if isinstance(text, str) else tuple(map(self._clean, text)) for text in texts]
        batch = self._tokenizer.encode_batch(cleaned, max_length=self.max_length)  # type: ignore[arg-type]
        if 0 in batch.lengths:
            raise InvalidInputError(f"input {batch.lengths.index(0)} is a text without tokens.", param="input")
        has_types = "token_types" in self._shapes
        items = []
        for ids, types in zip(batch.ids, batch.type_ids, strict=True):
            inputs = {"token_ids": np.asarray(ids, np.int32)}
            if has_types:
                inputs["token_types"] = np.asarray(types, np.int32)
            items.append(Item(inputs, len(ids)))
        return items, batch.num_truncated

    def tokens(self, rows: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None) -> list[Item]:
        """Token ids as they are; too many are refused, not cut."""
        if "token_ids" not in self._shapes:
            raise InvalidInputError(f"{self.name} does not read tokens.", param="input")
        items = []
        for index, ids in enumerate(rows):
            if not 1 <= len(ids) <= (self.max_length or len(ids)):
                raise InvalidInputError(
                    f"input {index} has {len(ids)} tokens; {self.name} reads 1 to {self.max_length or 'any number'}.",
                    param="input",
                )
            inputs = {"token_ids": _int32(ids, "token_ids")}
            if "token_types" in self._shapes:
                given = types[index] if types is not None else [0] * len(ids)
                inputs["token_types"] = _int32(given, "token_types")
            items.append(Item(inputs, len(ids)))
        return items

    def image(self, data: bytes, *, max_pixels: int, param: str = "input") -> Item:
        """The bytes of an image file. InvalidInputError for a model that looks at none; ImageError for what is none."""
        if self.reads != "image":
            raise InvalidInputError(
                f"{self.name} does not take image files; for one that looks at images, processing.toml must say how.",
                param=param,
            )
        pixels = decode_image(data, self.steps.mode, max_pixels=max_pixels, param=param)
        try:
            for step in self.steps.image:
                pixels = step(pixels)
        except ImageError as error:  # a step does not know which of several images it has
            raise ImageError(f"{param}: {error}", param=param) from None
        array = np.ascontiguousarray(pixels.transpose(2, 0, 1), dtype=np.float32)
        return self._items({next(iter(self._shapes)): array[None]})[0]

    def arrays(self, values: Mapping[str, object]) -> list[Item]:
        """Lists in lists by the model's names, the first axis counts the items; may be left out for one. Rows of a
        table run through the steps for rows."""
        arrays = {}
        for name, value in values.items():
            shape = self._batch_shapes.get(name, ())
            array = numbers(name, value, missing=self.reads == "row")
            if array.dtype.kind == "b":
                raise InvalidInputError(f"{name} must hold numbers, not true and false.", param=name)
            array = array[None] if array.ndim == len(shape) - 1 else array
            arrays[name] = self._row_steps(array, name) if self.reads == "row" and array.ndim == 2 else array
        return self._items(arrays)

    def tensors(self, tensors: Sequence[Tensor]) -> list[Item]:
        """What came by the open inference protocol: `text`, `token_ids` (with `attention_mask` and `token_types`), or
        the graph's own inputs, as they are: no step touches them."""
        by_name = {tensor.name: tensor for tensor in tensors}
        if len(by_name) != len(tensors):
            raise InvalidInputError("Two inputs have the same name.", param="inputs")
        if "text" in by_name and self._tokenizer is not None:
            return self._texts_of(by_name)
        for tensor in tensors:
            self._check_datatype(tensor)
        if "token_ids" in self._shapes:
            return self._tokens_of(by_name)
        return self._items({name: tensor.array for name, tensor in by_name.items()})

    # What the model takes and gives

    @property
    def inputs(self) -> list[TensorFacts]:
        """For a model with a tokenizer, `text`; its token ids are understood, too."""
        if self._tokenizer is not None:
            return [TensorFacts("text", "BYTES", (-1,))]
        if "token_ids" in self._shapes:
            return [TensorFacts(name, "INT32", (-1, -1)) for name in self._shapes]
        return [TensorFacts(name, "FP32", _facts(shape)) for name, shape in self._shapes.items()]

    @property
    def outputs(self) -> list[TensorFacts]:
        return [TensorFacts(name, "FP32", _facts(shape)) for name, shape in self._output_shapes.items()]

    def _kind(self, predictor: Predictor) -> Reads:
        if self._tokenizer is not None:
            return "text"
        if "token_ids" in self._shapes:
            return "tokens"
        shapes = list(self._shapes.values())
        if len(shapes) == 1 and len(shapes[0]) == 4 and (predictor.image is not None or self.steps.image):
            return "image"
        return "row" if len(shapes) == 1 and len(shapes[0]) == 2 else "tensors"

    def _clean(self, text: str) -> str:
        for step in self.steps.text:
            text = step(text)
        return text

    def _row_steps(self, table: Array, name: str) -> Array:
        table = table.astype(np.float64)
        for step in self.steps.row:
            table = step(table)
        return table

    def _items(self, arrays: Mapping[str, Array]) -> list[Item]:
        """[items, …] each: the shapes of the model, finite, and as many of one as of the other."""
        if arrays.keys() != self._shapes.keys():
            raise InvalidInputError(
                f"{self.name} takes {', '.join(self._shapes)}; {', '.join(arrays) or 'nothing'} came.", param="inputs"
            )
        counts = {len(array) if array.ndim else 0 for array in arrays.values()}
        if len(counts) != 1 or counts == {0}:
            raise InvalidInputError(
                "Inputs must have one item or more, and all of them as many.", param=next(iter(arrays))
            )
        ready = {}
        for name, array in arrays.items():
            want = self._batch_shapes[name]
            if array.ndim != len(want) or any(w not in (-1, h) for w, h in zip(want[1:], array.shape[1:], strict=True)):
                raise InvalidInputError(
                    f"{name} must have the shape {list(want)}; {list(array.shape)} came.", param=name
                )
            ready[name] = array
            if array.dtype != np.float32:
                with np.errstate(over="ignore"):
                    ready[name] = array.astype(np.float32)
            if not np.isfinite(ready[name]).all():
                raise InvalidInputError(f"{name} holds NaN, or what is infinite in 32 bits.", param=name)
        return [Item({name: array[index] for name, array in ready.items()}) for index in range(counts.pop())]

    def _check_datatype(self, tensor: Tensor) -> None:
        wants = ("INT32", "INT64") if "token_ids" in self._shapes else ("FP32",)
        if tensor.datatype not in wants:
            raise InvalidInputError(
                f"{tensor.name} must be {' or '.join(wants)}, not {tensor.datatype}.", param=tensor.name
            )

    def _texts_of(self, by_name: Mapping[str, Tensor]) -> list[Item]:
        tensor = by_name["text"]
        if len(by_name) > 1 or tensor.datatype != "BYTES":
            raise InvalidInputError("text must be of type BYTES and the only input.", param="text")
        if not tensor.array.size or tensor.array.size != len(tensor.array):
            raise InvalidInputError("text must have the shape [texts] or [texts, 1], with one at least.", param="text")
        try:
            return self.texts([element.decode() for element in tensor.array.ravel().tolist()])[0]
        except UnicodeDecodeError:
            raise InvalidInputError("text is not UTF-8.", param="text") from None

    def _tokens_of(self, by_name: Mapping[str, Tensor]) -> list[Item]:
        known = {"token_ids", "attention_mask", *self._shapes}
        if "token_ids" not in by_name or not set(by_name) <= known:
            raise InvalidInputError(f"{self.name} takes {', '.join(sorted(known))}, or text.", param="inputs")
        shape = by_name["token_ids"].array.shape
        if len(shape) != 2 or 0 in shape or any(tensor.array.shape != shape for tensor in by_name.values()):
            raise InvalidInputError("token_ids and all beside it must be [texts, tokens].", param="token_ids")
        kept = by_name["attention_mask"].array != 0 if "attention_mask" in by_name else np.ones(shape, bool)
        rows = {
            name: [row[mask].tolist() for row, mask in zip(tensor.array, kept, strict=True)]
            for name, tensor in by_name.items()
        }
        return self.tokens(rows["token_ids"], rows.get("token_types"))


def load_pipeline(
    path: Path | str,
    *,
    head: str | None = None,
    input_shape: tuple[int, ...] | None = None,
    max_tokens: int | None = None,
) -> Pipeline:
    """What stands around the predictor in `path`: its tokenizer, its labels, and `processing.toml` beside it.

    head, input_shape: as `aie_loader.load_predictor` takes them. max_tokens: longer texts are cut, whatever the model
    could read. Raises what that raises, and `ProcessingError`.
    """
    predictor = load_predictor(path, head=head, input_shape=input_shape)
    try:
        folder = predictor.path if predictor.path.is_dir() else predictor.path.parent
        return Pipeline(predictor, read_steps(folder, steps_of(predictor)), max_tokens=max_tokens)
    finally:
        predictor.close()


def _facts(shape: Sequence[int | str]) -> tuple[int, ...]:
    """[B, 784] → (-1, 784); [T, 384] → (-1, -1, 384): texts, and tokens of each."""
    sizes = tuple(size if isinstance(size, int) else -1 for size in shape)
    return sizes if shape[0] in _ITEM_AXES else (-1, *sizes)


def _int32(values: Sequence[int], name: str) -> Array:
    try:
        return np.asarray(values, np.int32)
    except (OverflowError, ValueError, TypeError):
        raise InvalidInputError(f"{name} must be token ids.", param=name) from None
