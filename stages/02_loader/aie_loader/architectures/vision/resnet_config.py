"""The sizes of a ResNet, from its `config.json` or, where there is none, from its tensors alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count, takewhile

from aie_loader.architectures.labels import read_labels
from aie_loader.config import Fields
from aie_loader.errors import MalformedHeaderError, MissingTensorError, TensorShapeError, UnsupportedModelError
from aie_tensor import Matrix

__all__ = ["ResNetConfig", "Stage", "resnet_from_json", "resnet_from_tensors"]

_EPS = 1e-5  # of every batch normalisation; no file says it
_MAX_BLOCKS = 1000
_REDUCTION = 4  # a bottleneck's inner convolution has a quarter of its outputs


@dataclass(frozen=True, slots=True)
class Stage:
    """A run of equal blocks, of which the first may halve height and width."""

    depth: int
    width: int  # channels inside a block
    outputs: int  # channels behind it
    stride: int


@dataclass(frozen=True, slots=True)
class ResNetConfig:
    """Sizes and constants of a ResNet."""

    channels: int
    stem_width: int
    stages: tuple[Stage, ...]
    is_bottleneck: bool  # 1×1, 3×3, 1×1 instead of 3×3, 3×3
    groups: int  # of a bottleneck's 3×3: ResNeXt has more than one
    strides_first: bool  # a bottleneck's stride is in its first convolution (as first published) or its second
    labels: tuple[str, ...] | None  # None: there is no classifier
    norm_eps: float = _EPS
    architecture: str = "resnet"


def resnet_from_json(config: Mapping[str, object], where: str, *, has_classifier: bool) -> ResNetConfig:
    """From the `config.json` of a model of the type `resnet`. MalformedHeaderError names file and key."""
    fields = Fields(config, where)
    if fields.text("hidden_act", "relu") != "relu":
        raise UnsupportedModelError(
            f"{where}: the activation {fields.get('hidden_act')!r} is not supported in a ResNet"
        )
    sizes = _integers(fields, "hidden_sizes", [256, 512, 1024, 2048])
    depths = _integers(fields, "depths", [3, 4, 6, 3])
    if len(sizes) != len(depths):
        raise fields.wrong("depths", f"as many integers as the {len(sizes)} hidden_sizes")
    is_bottleneck = fields.text("layer_type", "bottleneck", ("bottleneck", "basic")) == "bottleneck"
    if is_bottleneck and any(size % _REDUCTION for size in sizes):
        raise fields.wrong("hidden_sizes", f"multiples of {_REDUCTION}")
    first_stride = 2 if fields.flag("downsample_in_first_stage", False) else 1
    return ResNetConfig(
        channels=fields.integer("num_channels", 3),
        stem_width=fields.integer("embedding_size", 64),
        stages=tuple(
            Stage(depth, size // _REDUCTION if is_bottleneck else size, size, first_stride if index == 0 else 2)
            for index, (size, depth) in enumerate(zip(sizes, depths, strict=True))
        ),
        is_bottleneck=is_bottleneck,
        groups=1,
        strides_first=fields.flag("downsample_in_bottleneck", False),
        labels=read_labels(fields) if has_classifier else None,
    )


def resnet_from_tensors(tensors: Mapping[str, Matrix], where: str) -> ResNetConfig:
    """From the names and shapes of torchvision's checkpoints, which have no configuration.

    Kinds: basic blocks (ResNet-18, -34) and bottlenecks (ResNet-50 and deeper, wide ones, ResNeXt), with the stride in
    the 3×3.
    """

    def shape(name: str, rank: int) -> tuple[int, ...]:
        if name not in tensors:
            raise MissingTensorError(f"{where} has no tensor {name!r}, without which it is no ResNet")
        found = tensors[name].shape
        if len(found) != rank or 0 in found:
            raise TensorShapeError(f"{where}: tensor {name!r} has the shape {list(found)}; it must have {rank} axes")
        return found

    is_bottleneck = "layer1.0.conv3.weight" in tensors
    last = "conv3" if is_bottleneck else "conv2"
    stages = []
    for stage in takewhile(lambda index: f"layer{index}.0.conv1.weight" in tensors, count(1)):
        depth = sum(1 for _ in takewhile(lambda block: f"layer{stage}.{block}.conv1.weight" in tensors, count()))  # noqa: B023
        width, outputs = shape(f"layer{stage}.0.conv1.weight", 4)[0], shape(f"layer{stage}.0.{last}.weight", 4)[0]
        stages.append(Stage(depth, width, outputs, 1 if stage == 1 else 2))
    stem_width, channels = shape("conv1.weight", 4)[:2]
    groups = stages[0].width // shape("layer1.0.conv2.weight", 4)[1] if is_bottleneck else 1
    has_classifier = "fc.weight" in tensors
    num_labels = shape("fc.weight", 2)[0] if has_classifier else 0
    return ResNetConfig(
        channels=channels,
        stem_width=stem_width,
        stages=tuple(stages),
        is_bottleneck=is_bottleneck,
        groups=max(groups, 1),
        strides_first=False,
        labels=tuple(f"LABEL_{index}" for index in range(num_labels)) if has_classifier else None,
    )


def _integers(fields: Fields, key: str, default: list[int]) -> list[int]:
    value = default if fields.get(key) is None else fields.get(key)
    if not isinstance(value, list) or not value or not all(type(item) is int and 0 < item < 1 << 20 for item in value):
        raise fields.wrong(key, "a list of positive integers")
    if key == "depths" and sum(value) > _MAX_BLOCKS:
        raise MalformedHeaderError(f"{fields.where}: depths add up to {sum(value):,} blocks; at most {_MAX_BLOCKS:,}")
    return value
