"""ResNet (He et al. 2015, arXiv:1512.03385) as a graph of convolutions, batch normalisations and sums.

    x = maxpool(relu(norm(conv7×7(pixels, stride 2))))
    x = relu(x' + norm(conv(relu(norm(conv(x))))))          blocks; x' is x, or norm(conv1×1(x)) where the shape changes
    logits = linear(mean of x over height and width)

A bottleneck block has three convolutions, 1×1, 3×3 and 1×1, of which the middle one is narrow. The graph keeps the
normalisations; the pass `fold_batch_norm` puts them into the convolutions.

Axes: B images, C channels, H and W height and width.
"""

from collections.abc import Callable, Mapping

from aie_loader.architectures.vision.image import ImageInput
from aie_loader.architectures.vision.resnet_config import ResNetConfig, Stage
from aie_loader.architectures.weights import WeightTaker
from aie_loader.graph import Graph, Node
from aie_loader.shapes import infer_shapes
from aie_tensor import Matrix

__all__ = ["build_resnet"]


def build_resnet(
    config: ResNetConfig,
    image: ImageInput,
    tensors: Mapping[str, Matrix],
    where: str,
    in_file: Callable[[str], str],
) -> Graph:
    """pixels [B, C, H, W] → logits [B, labels], or features [B, C'] where there is no classifier.

    Errors name the tensor that is missing, misshapen, of a type that weights cannot have, or left over.
    """
    take = WeightTaker(tensors, where, in_file, config.architecture)
    graph = _Builder(config, take).build()
    take.check_all_used(lambda name: name.endswith(".num_batches_tracked"))
    return infer_shapes(graph, {"pixels": ("B", image.channels, image.height, image.width)})


class _Builder:
    """Appends nodes; each method returns the name of the value that it made, or of its last one."""

    def __init__(self, config: ResNetConfig, take: WeightTaker) -> None:
        self._config = config
        self._take = take
        self._nodes: list[Node] = []

    def build(self) -> Graph:
        config = self._config
        x = self._conv("stem.conv", "stem.norm", "pixels", config.channels, config.stem_width, 7, stride=2)
        x = self._add("stem.act", "relu", x)
        x = self._add("stem.pool", "max_pool2d", x, kernel=(3, 3), stride=(2, 2), padding=(1, 1))
        inputs = config.stem_width
        for index, stage in enumerate(config.stages):
            for block in range(stage.depth):
                x = self._block(f"stage.{index}.{block}", x, inputs, stage, stage.stride if block == 0 else 1)
                inputs = stage.outputs
        x = self._add("features", "global_avg_pool", x)
        if config.labels is not None:
            weight = self._take.take("classifier.weight", len(config.labels), inputs)
            x = self._add("logits", "linear", x, weight, self._take.take("classifier.bias", len(config.labels)))
        return Graph(("pixels",), self._nodes, (x,), self._take.taken)

    def _block(self, name: str, x: str, inputs: int, stage: Stage, stride: int) -> str:
        config, width, outputs = self._config, stage.width, stage.outputs
        if config.is_bottleneck:
            first, second = (stride, 1) if config.strides_first else (1, stride)
            h = self._step(name, 1, x, inputs, width, 1, stride=first)
            h = self._step(name, 2, h, width, width, 3, stride=second, groups=config.groups)
            h = self._conv(f"{name}.conv3", f"{name}.norm3", h, width, outputs, 1)
        else:
            h = self._step(name, 1, x, inputs, width, 3, stride=stride)
            h = self._conv(f"{name}.conv2", f"{name}.norm2", h, width, outputs, 3)
        if inputs != outputs or stride != 1:
            x = self._conv(f"{name}.shortcut.conv", f"{name}.shortcut.norm", x, inputs, outputs, 1, stride=stride)
        return self._add(f"{name}.act", "relu", self._add(f"{name}.residual", "add", h, x))

    def _step(self, name: str, number: int, x: str, inputs: int, outputs: int, kernel: int, **settings: int) -> str:
        normed = self._conv(f"{name}.conv{number}", f"{name}.norm{number}", x, inputs, outputs, kernel, **settings)
        return self._add(f"{name}.act{number}", "relu", normed)

    def _conv(
        self, name: str, norm: str, x: str, inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1
    ) -> str:
        """A convolution that keeps height and width but for its stride, without bias, and its normalisation."""
        weight = self._take.take(f"{name}.weight", outputs, inputs // groups, kernel, kernel)
        half = kernel // 2
        x = self._add(name, "conv2d", x, weight, stride=(stride, stride), padding=(half, half), groups=groups)
        kinds = ("weight", "bias", "running_mean", "running_var")
        statistics = [self._take.take(f"{norm}.{kind}", outputs) for kind in kinds]
        return self._add(norm, "batch_norm", x, *statistics, eps=self._config.norm_eps)

    def _add(self, name: str, op: str, *inputs: str, **attrs: object) -> str:
        self._nodes.append(Node(name, op, inputs, attrs))
        return name
