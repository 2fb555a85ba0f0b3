"""Every file of the corpus ends as it must: a typed error with these words, or a checkpoint; in little memory."""

import json
import time
import tracemalloc
from pathlib import Path

import pytest

from aie_loader import ModelFileError
from aie_loader.formats import open_checkpoint

CORPUS = Path(__file__).parent / "corpus"
EXPECTED: dict[str, dict[str, str | None]] = json.loads((CORPUS / "expected.json").read_text(encoding="utf-8"))


def test_every_file_is_expected_and_small() -> None:
    files = {path.name: path.stat().st_size for path in CORPUS.iterdir() if path.suffix not in {".py", ".json"}}
    assert files.keys() == EXPECTED.keys()
    assert all(size < 10_000 for size in files.values())


@pytest.mark.parametrize("name", EXPECTED)
def test_each_file_ends_as_it_must(name: str) -> None:
    path, error, words = CORPUS / name, EXPECTED[name]["error"], EXPECTED[name]["words"]
    tracemalloc.start()
    start = time.process_time()
    try:
        if error is None:
            open_checkpoint(path)
        else:
            with pytest.raises(ModelFileError) as caught:
                open_checkpoint(path)
            assert type(caught.value).__name__ == error
            assert words is not None and words in str(caught.value) and str(path) in str(caught.value)
        assert tracemalloc.get_traced_memory()[1] < 6 << 20  # a file of 2 MB is expanded; nothing else comes near
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < 2, "far more than a file of 10 KB can take"
