"""What a model's name means, and what is said when it means nothing."""

from pathlib import Path

import pytest

from aie_loader import KNOWN_MODELS, ModelNotFoundError, list_models, resolve, served_name


def place(alias: str, cache: Path) -> Path:
    """Files of the right sizes, sparse, as if the model had been pulled."""
    model = KNOWN_MODELS[alias]
    for file in model.files:
        path = cache / "models" / alias / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as sink:
            sink.truncate(file.size_bytes)
    return model.path_in(cache / "models" / alias)


def test_alias_that_is_here(tmp_path: Path) -> None:
    path = place("smollm2-135m", tmp_path)
    assert path.suffix == ".gguf"
    assert resolve("smollm2-135m", cache=tmp_path) == path
    assert place("minilm-l6", tmp_path).is_dir(), "several files: the loader is given the folder"


def test_alias_that_is_not_here_or_incomplete(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"`aie pull smollm2-135m` fetches it \(93 MB\)"):
        resolve("smollm2-135m", cache=tmp_path)
    place("smollm2-135m", tmp_path).write_bytes(b"cut short")
    with pytest.raises(ModelNotFoundError, match="aie pull"):
        resolve("smollm2-135m", cache=tmp_path)


def test_paths(tmp_path: Path) -> None:
    file = tmp_path / "My-Model.Q8_0.gguf"
    file.write_bytes(b"")
    assert resolve(str(file), cache=tmp_path) == file
    assert resolve(tmp_path, cache=tmp_path) == tmp_path
    assert served_name(file, cache=tmp_path) == "My-Model.Q8_0"
    assert served_name(tmp_path, cache=tmp_path) == tmp_path.name


@pytest.mark.parametrize("name", ["", "nothing/here.gguf", "x" * 5000, "a\0b", "~nobody-of-this-name/model"])
def test_names_that_mean_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="there is no model") as caught:
        resolve(name, cache=tmp_path)
    assert (caught.value.param, caught.value.exit_code, caught.value.status) == ("model", 2, 404)


def test_a_misspelt_alias_is_recognised(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"did you mean smollm2-135m\?"):
        resolve("smolm2-135m", cache=tmp_path)


def test_an_alias_is_served_under_its_name(tmp_path: Path) -> None:
    path = place("smollm2-135m", tmp_path)
    assert served_name("smollm2-135m", cache=tmp_path) == "smollm2-135m"
    assert served_name(path, cache=tmp_path) == "smollm2-135m", "its path in the cache is the same model"


def test_list(tmp_path: Path) -> None:
    path = place("smollm2-135m", tmp_path)
    entries = {entry.alias: entry for entry in list_models(cache=tmp_path)}
    assert set(entries) == {"smollm2-135m", "minilm-l6"}
    assert entries["smollm2-135m"].is_present
    assert entries["smollm2-135m"].path == path
    assert entries["smollm2-135m"].size_bytes == 98_362_432
    assert not entries["minilm-l6"].is_present
