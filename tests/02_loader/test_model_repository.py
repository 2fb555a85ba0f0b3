"""A folder of models with versions: what counts as one, which is the newest, what is passed over."""

import os
import sys
from pathlib import Path

import pytest

from aie_loader import FixedModels, MissingFileError, ModelNotFoundError, ModelRepository


def put(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(folder: Path) -> dict[str, list[str]]:
    models = ModelRepository(folder).scan()
    return {name: [version.version for version in versions] for name, versions in models.items()}


def test_layouts(tmp_path: Path) -> None:
    put(tmp_path / "single.gguf")
    put(tmp_path / "split-00001-of-00002.gguf"), put(tmp_path / "split-00002-of-00002.gguf")
    put(tmp_path / "plain" / "config.json"), put(tmp_path / "plain" / "onnx" / "model.txt")
    put(tmp_path / "many" / "1" / "model.gguf"), put(tmp_path / "many" / "2" / "config.json")
    put(tmp_path / "nested" / "7" / "org--model" / "config.json")
    put(tmp_path / "README.md")
    (tmp_path / "empty").mkdir()
    assert names(tmp_path) == {
        "single": ["1"], "split": ["1"], "plain": ["1"], "many": ["1", "2"], "nested": ["7"], "empty": [],
    }  # fmt: skip
    repository = ModelRepository(tmp_path)
    assert repository.find("single").path == tmp_path / "single.gguf"
    assert repository.find("single").golden == tmp_path / "single.golden.json"
    assert repository.find("split").path == tmp_path / "split-00001-of-00002.gguf"
    assert len(repository.find("split").stamp) == 2 and repository.find("split").nbytes == 2
    assert repository.find("plain").path == tmp_path / "plain"
    assert repository.find("many", "1").path == tmp_path / "many" / "1" / "model.gguf"
    assert repository.find("many", "1").golden == tmp_path / "many" / "1" / "golden.json"
    assert repository.find("many").path == tmp_path / "many" / "2"
    assert repository.find("nested").path == tmp_path / "nested" / "7" / "org--model"


def test_the_newest_is_the_last_in_natural_order(tmp_path: Path) -> None:
    for version in ("10", "9", "v1.10", "v1.9", "2026-01-05", "1"):
        put(tmp_path / "m" / version / "model.gguf")
    assert names(tmp_path)["m"] == ["1", "9", "10", "2026-01-05", "v1.9", "v1.10"]
    assert ModelRepository(tmp_path).find("m").version == "v1.10"


@pytest.mark.parametrize("name", [".2", "_2", "~2", "2.tmp", "2.part", "2.partial", "2.incomplete", "2~"])
def test_what_is_being_copied_is_passed_over_until_it_is_renamed(tmp_path: Path, name: str) -> None:
    put(tmp_path / "m" / "1" / "model.gguf")
    put(tmp_path / "m" / name / "model.gguf")
    assert names(tmp_path)["m"] == ["1"]
    os.rename(tmp_path / "m" / name, tmp_path / "m" / "2")
    assert names(tmp_path)["m"] == ["1", "2"]


def test_a_version_without_a_model_says_so(tmp_path: Path) -> None:
    put(tmp_path / "m" / "1" / "notes.txt")
    put(tmp_path / "m" / "2" / "a.gguf"), put(tmp_path / "m" / "2" / "b.gguf")
    for version in ("1", "2"):
        assert "holds no model" in str(ModelRepository(tmp_path).find("m", version).problem)


def test_a_change_changes_the_stamp(tmp_path: Path) -> None:
    file = put(tmp_path / "m" / "1" / "model.gguf")
    repository = ModelRepository(tmp_path)
    first = repository.find("m")
    assert first == repository.find("m")
    os.utime(file, ns=(1, 1))
    touched = repository.find("m")
    file.write_text("longer")
    grown = repository.find("m")
    put(tmp_path / "m" / "1" / "golden.json")
    assert len({first.stamp, touched.stamp, grown.stamp, repository.find("m").stamp}) == 4
    assert grown.nbytes == 6


def test_names_that_mean_nothing(tmp_path: Path) -> None:
    put(tmp_path / "alpha" / "1" / "model.gguf")
    (tmp_path / "empty").mkdir()
    repository = ModelRepository(tmp_path)
    with pytest.raises(ModelNotFoundError, match="did you mean alpha"):
        repository.find("alfa")
    with pytest.raises(ModelNotFoundError, match=r"no version '2'; there is 1"):
        repository.find("alpha", "2")
    with pytest.raises(ModelNotFoundError, match="no version yet"):
        repository.find("empty")
    for name in ("../alpha", "alpha/1", str(tmp_path / "alpha"), "", "a\0b", "x" * 5000):
        with pytest.raises(ModelNotFoundError):
            repository.find(name)


def test_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="cannot be read as a model repository"):
        ModelRepository(tmp_path / "nowhere")
    with pytest.raises(MissingFileError):
        ModelRepository(put(tmp_path / "file"))


def test_a_dead_link_is_a_problem_of_its_version_only(tmp_path: Path) -> None:
    put(tmp_path / "m" / "1" / "model.gguf")
    put(tmp_path / "m" / "2" / "model.gguf")
    (tmp_path / "m" / "2" / "more").symlink_to(tmp_path / "nowhere")
    assert ModelRepository(tmp_path).find("m", "1").problem is None
    assert "cannot be read" in str(ModelRepository(tmp_path).find("m").problem)


def test_fixed_models_are_looked_at_anew(tmp_path: Path) -> None:
    file = put(tmp_path / "model.gguf")
    models = FixedModels({"mine": file})
    before = models.find("mine")
    put(tmp_path / "new", "another")
    os.replace(tmp_path / "new", file)
    assert models.find("mine").stamp != before.stamp
    with pytest.raises(ModelNotFoundError, match="this server has no model 'other'; there is mine"):
        models.find("other")
    file.unlink()
    assert models.find("mine", "1").problem is not None


def test_what_is_no_file_is_never_opened(tmp_path: Path) -> None:
    for version in ("1", "2", "3"):
        put(tmp_path / "m" / version / "config.json")
    os.mkfifo(tmp_path / "m" / "2" / "README.md")
    os.mkfifo(tmp_path / "m" / "3" / "tokenizer.json")
    repository = ModelRepository(tmp_path)
    assert repository.find("m", "1").problem is None
    for version, name in (("2", "README.md"), ("3", "tokenizer.json")):
        assert repository.find("m", version).problem == f"{tmp_path}/m/{version}/{name} is no regular file"
    folder = FixedModels({"mine": tmp_path / "m" / "3"})
    assert "is no regular file" in str(folder.find("mine").problem)


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems have no such names")
def test_a_name_that_is_no_utf8_is_shown_and_refused(tmp_path: Path) -> None:
    strange = os.fsdecode(b"\xff")
    put(tmp_path / "m" / "1" / "config.json"), put(tmp_path / "m" / strange / "config.json")
    put(tmp_path / strange / "1" / "config.json"), put(tmp_path / f"file{strange}.gguf")
    assert names(tmp_path) == {"m": ["1", "\ufffd"], "\ufffd": ["1"], "file\ufffd": ["1"]}
    repository = ModelRepository(tmp_path)
    assert repository.find("m", "1").problem is None
    for name, version in (("m", "\ufffd"), ("\ufffd", "1"), ("file\ufffd", "1")):
        assert "is not UTF-8; rename it" in str(repository.find(name, version).problem)
