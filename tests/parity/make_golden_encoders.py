"""Writes `tests/golden/parity/encoders/*.json`: small encoders and image models of the reference libraries, with what
they compute, and `minilm_l6.npz`: the embeddings of 200 sentences by the real MiniLM.

    pip install torch torchvision transformers    # in an environment of its own; the test suite needs none of them
    aie pull minilm-l6
    python tests/parity/make_golden_encoders.py [NAME …]

As in `make_golden.py`, weights are not kept: `made_up.py` makes them again from names and shapes. Texts go through the
reference in one padded batch, so that ours, which has no padding, is compared with the usual way.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torchvision
import transformers
from made_up import made_up
from safetensors.torch import load_file, save_file
from sentences import sentences
from torch import nn

GOLDEN = Path(__file__).parent.parent / "golden" / "parity" / "encoders"
MINILM = Path.home() / ".cache" / "aie" / "models" / "minilm-l6"
MAX_LENGTH = 512
TEXTS = [[3, 17, 60, 5, 5, 41, 2, 33, 58], [9], [12, 27, 44, 63, 8, 19, 30, 50, 7, 21, 22, 23, 35, 6]]
TYPES = [[0, 0, 0, 0, 1, 1, 1, 1, 1], [0], [0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]]
SIZES = {"vocab_size": 64, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
         "num_attention_heads": 3, "max_position_embeddings": 32}  # fmt: skip
DISTIL = {"vocab_size": 64, "dim": 24, "hidden_dim": 40, "n_layers": 2, "n_heads": 3, "max_position_embeddings": 32}
THREE = {"id2label": {0: "bad", 1: "middling", 2: "good"}, "label2id": {"bad": 0, "middling": 1, "good": 2}}
ENCODERS = {
    "bert": (transformers.BertModel, {**SIZES, "type_vocab_size": 2}),
    "bert_masked": (transformers.BertForMaskedLM, {**SIZES, "hidden_act": "gelu_new"}),
    "bert_sequence": (transformers.BertForSequenceClassification, {**SIZES, **THREE}),
    "bert_token": (transformers.BertForTokenClassification, {**SIZES, "num_labels": 5, "layer_norm_eps": 1e-5}),
    "roberta": (transformers.RobertaModel, {**SIZES, "type_vocab_size": 1}),
    "roberta_sequence": (transformers.RobertaForSequenceClassification, {**SIZES, **THREE, "type_vocab_size": 1}),
    "roberta_token": (transformers.RobertaForTokenClassification, {**SIZES, "num_labels": 4, "type_vocab_size": 1}),
    "xlm_roberta": (transformers.XLMRobertaForSequenceClassification, {**SIZES, "num_labels": 1, "type_vocab_size": 1}),
    "distilbert": (transformers.DistilBertModel, DISTIL),
    "distilbert_sequence": (transformers.DistilBertForSequenceClassification, {**DISTIL, **THREE}),
    "distilbert_token": (transformers.DistilBertForTokenClassification, {**DISTIL, "num_labels": 4}),
}
SMALL_STAGES = {"embedding_size": 8, "hidden_sizes": [8, 16, 24], "depths": [1, 2, 1]}
RESNETS = {
    "resnet_basic": (transformers.ResNetForImageClassification, {**SMALL_STAGES, "layer_type": "basic", **THREE}),
    "resnet_bottleneck": (transformers.ResNetForImageClassification, {**SMALL_STAGES, **THREE}),
    "resnet_strides_first": (
        transformers.ResNetModel,
        {**SMALL_STAGES, "downsample_in_bottleneck": True, "downsample_in_first_stage": True, "num_channels": 1},
    ),
}


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(20, 16), nn.Linear(16, 12), nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


class LeNet(nn.Module):
    """LeNet-5 (LeCun et al. 1998) with ReLU and maxima, as it is written today."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 40), nn.Linear(40, 20), nn.Linear(20, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = nn.functional.max_pool2d(torch.relu(self.conv2(x)), 2).flatten(1)
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


def resnet18() -> nn.Module:
    """torchvision's, with narrow stages: the layout of ResNet-18."""
    model = torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [2, 2, 2, 2], num_classes=7)
    return narrowed(model)


def resnext() -> nn.Module:
    """torchvision's, with narrow stages and bottlenecks in two groups."""
    model = torchvision.models.ResNet(
        torchvision.models.resnet.Bottleneck, [1, 2, 1, 1], num_classes=5, groups=2, width_per_group=32
    )
    return narrowed(model)


def narrowed(model: nn.Module) -> nn.Module:
    """The same modules with an eighth of the channels."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            inputs = module.in_channels if module.in_channels == 3 else module.in_channels // 8
            module.in_channels, module.out_channels = inputs, module.out_channels // 8
            module.weight = nn.Parameter(torch.empty(module.out_channels, inputs // module.groups, *module.kernel_size))
        elif isinstance(module, nn.BatchNorm2d):
            size = module.num_features // 8
            module.num_features = size
            for name in ("weight", "bias"):
                setattr(module, name, nn.Parameter(torch.empty(size)))
            for name in ("running_mean", "running_var"):
                setattr(module, name, torch.empty(size))
        elif isinstance(module, nn.Linear):
            module.in_features //= 8
            module.weight = nn.Parameter(torch.empty(module.out_features, module.in_features))
    return model


NETWORKS = {"mlp": (MLP, (3, 20)), "lenet": (LeNet, (2, 1, 28, 28)), "torchvision_resnet18": (resnet18, (2, 3, 40, 40)),
            "torchvision_resnext": (resnext, (2, 3, 40, 40))}  # fmt: skip


def filled(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Made-up numbers for every tensor of floats; counters stay."""
    return {
        name: torch.from_numpy(made_up(name, tuple(tensor.shape))) if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }


def shapes_of(tensors: dict[str, torch.Tensor]) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in tensors.items() if tensor.is_floating_point()}


def refilled(model: transformers.PreTrainedModel) -> tuple[transformers.PreTrainedModel, dict[str, object]]:
    """The model with made-up weights as its own checkpoint names them, and what is kept of it."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        path = Path(folder) / "model.safetensors"
        tensors = load_file(path)
        save_file(filled(tensors), path, metadata={"format": "pt"})
        again = type(model).from_pretrained(folder, dtype=torch.float32).eval()
        config = json.loads((Path(folder) / "config.json").read_text())
    return again, {"config": config, "tensors": shapes_of(tensors)}


def encoder(name: str) -> dict[str, object]:
    kind, settings = ENCODERS[name]
    model, record = refilled(kind(kind.config_class(**settings)))
    longest, pad = max(map(len, TEXTS)), model.config.pad_token_id
    ids = torch.tensor([text + [pad] * (longest - len(text)) for text in TEXTS])
    mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in TEXTS])
    given = {"input_ids": ids, "attention_mask": mask}
    if name.startswith("bert"):
        given["token_type_ids"] = torch.tensor([types + [0] * (longest - len(types)) for types in TYPES])
        record["token_types"] = TYPES
    with torch.no_grad():
        out = (getattr(model, "bert", model) if name == "bert_masked" else model)(**given)
    record["texts"] = TEXTS
    if "sequence" in name or name == "xlm_roberta":
        record["output"] = plain(out.logits)
    else:
        per_token = out.logits if "token" in name else out.last_hidden_state
        record["output"] = [plain(rows[: len(text)]) for rows, text in zip(per_token, TEXTS, strict=True)]
    if getattr(out, "pooler_output", None) is not None:
        record["pooler"] = plain(out.pooler_output)
    return record


def resnet(name: str) -> dict[str, object]:
    kind, settings = RESNETS[name]
    model, record = refilled(kind(kind.config_class(**settings)))
    shape = (2, model.config.num_channels, 37, 44)
    with torch.no_grad():
        out = model(image(shape))
    values = out.logits if hasattr(out, "logits") else out.pooler_output.flatten(1)
    return {**record, "input_shape": shape, "output": plain(values)}


def network(name: str) -> dict[str, object]:
    kind, shape = NETWORKS[name]
    model = kind().eval()
    tensors = filled(model.state_dict())
    model.load_state_dict(tensors)
    with torch.no_grad():
        out = model(image(shape))
    return {"tensors": shapes_of(tensors), "input_shape": shape, "output": plain(out)}


def image(shape: tuple[int, ...]) -> torch.Tensor:
    """Numbers around 1 in size, also made up."""
    return torch.from_numpy(made_up("input", shape) * np.float32(np.prod(shape[1:]) ** 0.5))


def minilm() -> None:
    """transformers alone: tokens, mean over those that the mask keeps, length 1."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(MINILM)
    model = transformers.AutoModel.from_pretrained(MINILM, dtype=torch.float32).eval()
    vectors, lengths = [], []
    for text in sentences():
        given = tokenizer([text], truncation=True, max_length=MAX_LENGTH, return_tensors="pt")
        with torch.no_grad():
            states = model(**given).last_hidden_state[0]
        vectors.append(nn.functional.normalize(states.mean(0), dim=0).numpy())
        lengths.append(len(states))
    np.savez(GOLDEN / "minilm_l6.npz", vectors=np.stack(vectors), lengths=np.array(lengths, dtype=np.int32))
    print("minilm_l6", len(vectors), "sentences of", min(lengths), "to", max(lengths), "tokens")


def plain(values: torch.Tensor) -> list[object]:
    def number(value: object) -> object:
        if isinstance(value, list):
            return [number(item) for item in value]
        return float(np.format_float_positional(np.float32(value), unique=True))

    return [number(row) for row in values.tolist()]


def main() -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    makers = [(ENCODERS, encoder), (RESNETS, resnet), (NETWORKS, network)]
    wanted = sys.argv[1:] or [*(name for group, _ in makers for name in group), "minilm_l6"]
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    for name in wanted:
        if name == "minilm_l6":
            minilm()
            continue
        record = next(make(name) for group, make in makers if name in group)
        (GOLDEN / f"{name}.json").write_text(json.dumps({"library": versions, **record}) + "\n")
        print(name, len(record["tensors"]), "tensors")


if __name__ == "__main__":
    main()
