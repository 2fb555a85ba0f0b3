"""How two libraries call a ResNet's tensors.

graph                          Hugging Face                                        torchvision
stem.conv, stem.norm           embedder.embedder.convolution, …normalization       conv1, bn1
stage.1.0.conv2, .norm2        encoder.stages.1.layers.0.layer.1.convolution, …    layer2.0.conv2, layer2.0.bn2
stage.1.0.shortcut.conv, .norm encoder.stages.1.layers.0.shortcut.convolution, …   layer2.0.downsample.0, .1
classifier                     classifier.1                                        fc
"""

from collections.abc import Callable, Mapping

from aie_tensor import Matrix

__all__ = ["hf_names", "is_torchvision_resnet", "torchvision_names"]

Naming = Callable[[str], str]


def hf_names(tensors: Mapping[str, Matrix]) -> Naming:
    """For checkpoints with a classifier, whose other tensors begin with `resnet.`, and for those without."""
    prefix = "resnet." if any(name.startswith("resnet.") for name in tensors) else ""
    kinds = {"conv": "convolution", "norm": "normalization"}

    def in_file(name: str) -> str:
        stem, _, kind = name.rpartition(".")
        match stem.split("."):
            case ["classifier"]:
                return f"classifier.1.{kind}"
            case ["stem", part]:
                return f"{prefix}embedder.embedder.{kinds[part]}.{kind}"
            case ["stage", stage, block, "shortcut", part]:
                return f"{prefix}encoder.stages.{stage}.layers.{block}.shortcut.{kinds[part]}.{kind}"
            case ["stage", stage, block, part]:
                index = int(part[4:]) - 1  # conv1 is layer 0
                return f"{prefix}encoder.stages.{stage}.layers.{block}.layer.{index}.{kinds[part[:4]]}.{kind}"
        raise AssertionError(name)

    return in_file


def torchvision_names(tensors: Mapping[str, Matrix]) -> Naming:
    """For checkpoints of torchvision's models."""
    top = {"classifier": "fc", "stem.conv": "conv1", "stem.norm": "bn1"}

    def in_file(name: str) -> str:
        stem, _, kind = name.rpartition(".")
        if stem in top:
            return f"{top[stem]}.{kind}"
        _, stage, block, *rest = stem.split(".")
        parts = {"conv": "downsample.0", "norm": "downsample.1"}
        part = parts[rest[1]] if rest[0] == "shortcut" else rest[0].replace("norm", "bn")
        return f"layer{int(stage) + 1}.{block}.{part}.{kind}"

    return in_file


def is_torchvision_resnet(tensors: Mapping[str, Matrix]) -> bool:
    """Whether the names are those of torchvision's ResNets."""
    return all(name in tensors for name in ("conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight"))
