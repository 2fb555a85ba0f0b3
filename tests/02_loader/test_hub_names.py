"""Names on a hub, and which files they mean; all without a hub."""

import pytest

from aie_loader import ModelNotFoundError
from aie_loader.fetching.hub_files import HubFile, choose_files, is_safe_path
from aie_loader.fetching.hub_names import HubName, gguf_models, pick_gguf


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", HubName("org/name")),
        ("Org-1/name.v2_x@main", HubName("Org-1/name.v2_x", "main")),
        ("org/name@refs/pr/1:Q4_K_M", HubName("org/name", "refs/pr/1", "Q4_K_M")),
        ("org/name-GGUF:sub/model.gguf", HubName("org/name-GGUF", None, "sub/model.gguf")),
    ],
)
def test_names(text: str, expected: HubName) -> None:
    assert HubName.parse(text) == expected
    assert str(expected) == text
    bare = HubName(expected.repo, expected.revision)
    assert "/" not in bare.folder_name
    assert HubName.from_folder_name(bare.folder_name) == bare


@pytest.mark.parametrize(
    "text",
    [
        "", "name", "/name", "org/", "a/b/c", "../name", "org/..", "org/na..me", "-org/name", "org/name.", "org/a--b",
        "org/name.gguf", "./model", "~/model", "org/name@", "org/name:", "org/nämé", "org/name\n", "C:/x", "org\\name",
        "org/" + "x" * 97, "org/name@..", "models/file.safetensors",
    ],
)  # fmt: skip
def test_what_is_no_name(text: str) -> None:
    assert HubName.parse(text) is None


def chosen(name: str, *files: str) -> list[str]:
    parsed = HubName.parse(name)
    assert parsed is not None
    return [file.name for file in choose_files([HubFile(file, 1, sha256="0") for file in files], parsed)]


def test_which_files() -> None:
    assert chosen("a/b", "config.json", "pytorch_model.bin", "x.py") == ["config.json", "pytorch_model.bin"]
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
    assert chosen("a/b", *shards, "pytorch_model.bin", "consolidated.safetensors") == sorted(shards)
    assert chosen("a/b", "weights.safetensors", "adapter_model.safetensors") == ["weights.safetensors"]
    assert chosen("a/b", *shards[:2], "pytorch_model.bin") == ["pytorch_model.bin"], "shards without their index"
    assert chosen("a/b", "only.gguf", "config.json") == ["only.gguf"]
    assert chosen(
        "a/b", "model.safetensors", "2_Dense/model.safetensors", "2_Dense/config.json", "onnx/config.json"
    ) == [
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "model.safetensors",
    ]
    assert chosen("a/b:F16", "model.safetensors", "x-F16.gguf") == ["x-F16.gguf"]
    assert chosen("a/b", "model.safetensors", "../tokenizer.json") == ["model.safetensors"]


def test_gguf_names() -> None:
    files = ["m.Q4_0.gguf", "m-IQ2_XS.gguf", "UD-Q4_K_XL/m-00001-of-00002.gguf", "UD-Q4_K_XL/m-00002-of-00002.gguf"]
    assert list(map(len, gguf_models(files).values())) == [2, 1, 1]
    assert pick_gguf(files, HubName("a/b", None, "q4_0")) == ["m.Q4_0.gguf"]
    assert pick_gguf(files, HubName("a/b", None, "UD-Q4_K_XL")) == files[2:]
    assert pick_gguf(files, HubName("a/b", None, "m-IQ2_XS.gguf")) == ["m-IQ2_XS.gguf"]
    with pytest.raises(ModelNotFoundError, match="no GGUF model for 'XS'"):
        pick_gguf(files, HubName("a/b", None, "XS"))
    with pytest.raises(ModelNotFoundError, match="several GGUF models for 'Q8_0'"):
        pick_gguf(["a-Q8_0.gguf", "b-Q8_0.gguf"], HubName("a/b", None, "Q8_0"))


@pytest.mark.parametrize("path", ["/a", "a/../b", "..", "a\\b", "C:x", "a//b", ".hidden", "a/.git/b", "", "a\0", "./a"])
def test_paths_that_could_leave_the_folder(path: str) -> None:
    assert not is_safe_path(path)


def test_ordinary_paths() -> None:
    assert all(map(is_safe_path, ["a", "a/b-1.c", "1_Pooling/config.json"]))
