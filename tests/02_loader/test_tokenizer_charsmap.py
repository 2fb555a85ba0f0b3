"""Broken normalization maps: refused when they are read, and never a panic when they are used."""

import base64
import json
import random
import struct
from pathlib import Path

import pytest
import tokenizers

from aie_loader import Tokenizer, TokenizerError
from aie_loader.text.charsmap import check_charsmap
from aie_loader.text.sentencepiece_file import read_sentencepiece

FILES = Path(__file__).parent / "tokenizer_files"
TEXT = "\uff21\uff22\uff23 \ufb01ne \u2122 na\u00efve hello \u65e5\u672c"


@pytest.fixture(scope="module")
def charsmap() -> bytes:
    raw = read_sentencepiece(FILES / "unigram.model").charsmap
    assert raw is not None
    return raw


def test_a_real_one_is_accepted(charsmap: bytes) -> None:
    check_charsmap(charsmap)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "cut short"),
        (struct.pack("<I", 8) + bytes(4), "says 8 bytes of trie, of 4"),
        (struct.pack("<I", 3) + bytes(8), "says 3 bytes"),
        (struct.pack("<I", 0) + bytes(8), "says 0 bytes"),
        (struct.pack("<I", 4) + bytes(4), "points out of itself"),
        (struct.pack("<I", 1024) + bytes(1024) + b"\xff", "not UTF-8"),
        (struct.pack("<I", 1024) + struct.pack("<I", 300 << 10) + bytes(1020), "points out of itself"),
        (struct.pack("<III", 1024, 1 << 10 | 1 << 8, 1 << 31 | 9) + bytes(1016) + b"a\0", "behind its texts"),
        (
            struct.pack("<III", 1024, 1 << 10 | 1 << 8, 1 << 31 | 1) + bytes(1016) + "\u00e9".encode(),
            "middle of a char",
        ),
    ],
)
def test_each_rule(raw: bytes, says: str) -> None:
    with pytest.raises(TokenizerError, match=says):
        check_charsmap(raw)


def test_what_is_accepted_does_not_panic(charsmap: bytes) -> None:
    rng = random.Random(3)
    (size,) = struct.unpack("<I", charsmap[:4])
    accepted = 0
    for damage in range(200):
        broken = bytearray(charsmap)
        for _ in range(1 + damage % 3):
            broken[rng.randrange(4, 4 + size)] = rng.randrange(256)
        try:
            check_charsmap(bytes(broken))
        except TokenizerError:
            continue
        accepted += 1
        tokenizers.normalizers.Precompiled(bytes(broken)).normalize_str(TEXT)
    assert 0 < accepted < 200


def test_a_panic_of_the_library_is_an_error_of_ours(charsmap: bytes, tmp_path: Path) -> None:
    """A tokenizer.json carries the map too, and the library reads that itself."""
    backend = tokenizers.Tokenizer(tokenizers.models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0))
    backend.normalizer = tokenizers.normalizers.Precompiled(charsmap)
    document = json.loads(backend.to_str())
    broken = charsmap[:4] + struct.pack("<I", 0x7FFFFF << 8 & 0x7FFFFC00) + charsmap[8:]
    document["normalizer"]["precompiled_charsmap"] = base64.b64encode(broken).decode()
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    tokenizer = Tokenizer.from_folder(tmp_path)
    with pytest.raises(TokenizerError, match="fails on this text"):
        tokenizer.encode(TEXT)
    with pytest.raises(TokenizerError, match="fails on these texts"):
        tokenizer.encode_batch([TEXT])


def test_a_model_without_a_token_for_unknown_text(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.Unigram([("a", -1.0)]))
    (tmp_path / "tokenizer.json").write_text(backend.to_str())
    with pytest.raises(TokenizerError, match="fails on this text"):
        Tokenizer.from_folder(tmp_path).encode("b")


def test_other_panics_of_the_library(tmp_path: Path) -> None:
    """A step of the decoder that cuts more than there is, a template of a token that it does not describe."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))
    backend.decoder = tokenizers.decoders.Strip(content=" ", left=1, right=0)
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A", pair="$A <s> $B", special_tokens=[("<s>", 0)]
    )
    document = json.loads(backend.to_str())
    document["post_processor"]["pair"][1]["SpecialToken"]["id"] = "<other>"
    document["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": 1.5}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(document))
    with pytest.raises(TokenizerError, match="not a tokenizer that can be read"):
        Tokenizer.from_folder(tmp_path)
    document["normalizer"] = None
    path.write_text(json.dumps(document))
    with pytest.raises(TokenizerError, match="fails on th"):
        Tokenizer.from_folder(tmp_path).encode_batch([("a", "a")])
