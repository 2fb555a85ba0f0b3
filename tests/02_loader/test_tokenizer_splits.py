"""How text is cut before BPE merges it, and the reader of SentencePiece's files."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_loader import MalformedHeaderError, TokenizerError
from aie_loader.text.sentencepiece_file import read_sentencepiece
from aie_loader.text.splits import SUPPORTED_PRE_TOKENIZERS, pre_tokenizer

FILES = Path(__file__).parent / "tokenizer_files"


# Expected pieces follow from the published patterns by hand; Ġ is the space, Ċ the end of a line.
@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("gpt-2", "it's 12345 x\n\ny", "it 's Ġ12345 Ġx Ċ Ċ y"),
        ("smollm", "a 123", "a Ġ 1 2 3"),
        ("llama-bpe", "IT'S 12345!\n\n y", "IT 'S Ġ 123 45 !ĊĊ Ġy"),
        ("qwen2", "a 12", "a Ġ 1 2"),
        ("qwen35", "e\u0301x", "eÌģx"),
        ("default", "a, 1234", "a , Ġ 123 4"),
        ("falcon", "a`` 1234", "a `` Ġ 123 4"),
        ("tekken", "HelloWorld ab12 c/\n", "Hello World Ġab 1 2 Ġc /Ċ"),
        ("gpt-4o", "HelloWorld's 1234", "Hello World's Ġ 123 4"),
        ("deepseek-llm", "ab 12 c!\n", "ab Ġ 12 Ġc ! Ċ"),
        ("deepseek-coder", "ab 12!", "ab Ġ 1 2 !"),
        ("deepseek-v3", "x_y 1234", "x _y Ġ 123 4"),
        ("bloom", "a b, c", "a Ġb , Ġc"),
        ("viking", "a1b", "a 1 b"),
        ("jais-2", "a   b", "a ĠĠ Ġb"),
        ("exaone-moe", "a b, cd", "aĠb , Ġcd"),
        ("tiny_aya", "1234567", "1 234 567"),
        ("bailingmoe", "a\n\nb!\n", "a ĊĊ b !Ċ"),
    ],
)
def test_how_text_is_split(name: str, text: str, pieces: str) -> None:
    assert [piece for piece, _ in pre_tokenizer(name).pre_tokenize_str(text)] == pieces.split(" ")


@pytest.mark.parametrize("name", SUPPORTED_PRE_TOKENIZERS)
def test_every_splitter_loses_nothing(name: str) -> None:
    text = "Hello, World's  x12345 ABc\r\n\n\t你好ありがとう가나 éÀ 😀 ½ <sentinel:3> "
    pieces = pre_tokenizer(name).pre_tokenize_str(text)
    assert "".join(text[start:end] for _, (start, end) in pieces) == text


def test_every_cut_of_a_sentencepiece_file_is_a_sentence(tmp_path: Path) -> None:
    raw = (FILES / "unigram.model").read_bytes()
    path = tmp_path / "tokenizer.model"
    for size in range(0, len(raw), 61):
        path.write_bytes(raw[:size])
        try:
            read_sentencepiece(path)
        except (MalformedHeaderError, TokenizerError) as error:
            assert "tokenizer.model" in str(error)


@given(raw=st.binary(max_size=64))
def test_any_bytes_as_a_sentencepiece_file(raw: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.model"
    path.write_bytes(raw)
    with pytest.raises((MalformedHeaderError, TokenizerError)):
        read_sentencepiece(path)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"\x0a\xff\xff\xff\xff\x0f", "does not fit"),
        (b"\x0b", "wire type 3"),
        (b"\x00\x00", "number 0"),
        (b"\xff" * 11, "more than 10 bytes"),
        (b"\x0a", "inside a number"),
        (b"\x0a\x03\x0a\x01\xff", "utf-8"),
        (b"", "no pieces"),
        (b"\x0a\x08\x0a\x01a\x15\x00\x00\x80\x7f", "no finite number"),
        (b"\x0a\x03\x0a\x01a\x12\x02\x18\x03", "word or character model"),
        (b"\x0a\x03\x0a\x01a\x12\x03\xc0\x01\x01", "spaces after words"),
        (b"\x0a\x03\x0a\x01a\x12\x03\xc0\x02\x05", "unknown piece has id 5 of 1"),
    ],
)
def test_broken_sentencepiece_files(tmp_path: Path, raw: bytes, says: str) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(raw)
    with pytest.raises((MalformedHeaderError, TokenizerError), match=says):
        read_sentencepiece(path)
