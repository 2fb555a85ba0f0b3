"""`processing.toml` beside a model: what happens before and after it, as lists of steps.

    text = [{step = "strip"}, {step = "unicode", form = "NFC"}, {step = "collapse"}]
    image = [{step = "resize", shortest = 256}, {step = "crop", height = 224, width = 224}, {step = "scale"}]
    row = [{step = "fill", with = [0]}, {step = "standardise", mean = [2.5], std = [1.2]}]
    output = [{step = "softmax"}, {step = "top_k", k = 3}]

    [batching]
    max_batch_size = 16
    max_wait_ms = 2.0

Each list replaces what follows from the model's own files (`steps_of`); one that is left out does not. Steps run in the
order of the list. An unknown key, step or value is an error that names it.
"""

import tomllib
from pathlib import Path
from typing import Any, Final

import msgspec

from aie_engine.processing.errors import ProcessingError
from aie_engine.processing.image import ImageStep, Mode, Resize, Scale
from aie_engine.processing.image import Normalise as NormaliseImage
from aie_engine.processing.outputs import Normalise, OutputStep, Pool, Sigmoid, Softmax, TopK
from aie_engine.processing.preprocessor import image_steps
from aie_engine.processing.rows import RowStep
from aie_engine.processing.text import TextStep
from aie_loader import Predictor

__all__ = ["PROCESSING_FILE", "Batching", "Steps", "read_steps", "steps_of"]

PROCESSING_FILE: Final = "processing.toml"
_MAX_BYTES: Final = 1 << 20
_TOP_K: Final = 5  # as classifiers of images are usually judged


class Batching(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model's own values for fields of `PredictorConfig`, which checks them."""

    max_batch_size: int | None = None
    max_batch_tokens: int | None = None
    max_wait_ms: float | None = None
    max_queue: int | None = None
    queue_policy: str | None = None
    block_timeout_s: float | None = None
    waiting: str | None = None
    policy: str | None = None
    preferred_sizes: tuple[int, ...] | None = None
    adaptive_wait: bool | None = None
    buckets: str | None = None
    bucket_edges: tuple[int, ...] | None = None
    num_buckets: int | None = None
    batch_timeout_s: float | None = None

    def given(self) -> dict[str, Any]:
        """Those that were."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


class Steps(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    text: tuple[TextStep, ...] = ()
    image: tuple[ImageStep, ...] = ()
    row: tuple[RowStep, ...] = ()
    output: tuple[OutputStep, ...] = ()
    mode: Mode = "RGB"  # of images, after decoding: colours, grey, or colours and transparency
    labels: tuple[str, ...] = ()  # in the order of the scores
    batching: Batching = Batching()  # read by whoever starts the predictor


def read_steps(folder: Path, defaults: Steps) -> Steps:
    """`defaults`, and in their place what `processing.toml` in `folder` says, if there is one. Raises
    `ProcessingError`."""
    path = folder / PROCESSING_FILE
    try:
        if not path.is_file():
            return defaults
        if path.stat().st_size > _MAX_BYTES:
            raise ProcessingError(f"{path} has more than {_MAX_BYTES} bytes")
        given = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ProcessingError(f"{path} cannot be read: {error}") from None
    try:
        steps = msgspec.convert(given, Steps)
    except msgspec.ValidationError as error:
        raise ProcessingError(f"{path}: {error}") from None
    _check_order(steps, path)
    return msgspec.structs.replace(defaults, **{name: getattr(steps, name) for name in given})


def steps_of(predictor: Predictor) -> Steps:
    """What follows from the model's files alone.

    Texts go to the tokenizer as they are. Images: as `preprocessor_config.json` says (`image_steps`). Outputs: softmax
    or sigmoid as the model's problem says, the best five labels; a vector per token becomes their normalised mean.
    """
    channels = 3 if predictor.image is None else predictor.image.channels
    modes: dict[int, Mode] = {1: "L", 4: "RGBA"}
    outputs: dict[str | None, tuple[OutputStep, ...]] = {
        "single_label": (Softmax(), TopK(_TOP_K)),
        "multi_label": (Sigmoid(), TopK(_TOP_K)),
    }
    output = outputs.get(predictor.problem, ())
    if predictor.output == "token_states":
        output = (Pool(), Normalise())
    mode = modes.get(channels, "RGB")
    return Steps(image=image_steps(predictor), mode=mode, output=output, labels=predictor.labels)


def _check_order(steps: Steps, path: Path) -> None:
    """Pillow resizes bytes, not floats; and there is one answer."""
    kinds = [type(step) for step in steps.image]
    floats = [index for index, kind in enumerate(kinds) if kind in (Scale, NormaliseImage)]
    if Resize in kinds and floats and len(kinds) - 1 - kinds[::-1].index(Resize) > floats[0]:
        raise ProcessingError(f"{path}: in image, resize must come before scale and normalise")
