"""Families of image classifiers."""

from aie_loader.architectures.vision.image import ImageInput, read_image_input
from aie_loader.architectures.vision.resnet import build_resnet
from aie_loader.architectures.vision.resnet_config import ResNetConfig, resnet_from_json, resnet_from_tensors
from aie_loader.architectures.vision.resnet_names import hf_names, is_torchvision_resnet, torchvision_names

__all__ = [
    "ImageInput",
    "ResNetConfig",
    "build_resnet",
    "hf_names",
    "is_torchvision_resnet",
    "read_image_input",
    "resnet_from_json",
    "resnet_from_tensors",
    "torchvision_names",
]
