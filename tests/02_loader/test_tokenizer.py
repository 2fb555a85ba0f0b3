"""The tokenizer against the golden records, and incremental decoding against decoding at once."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_loader import MalformedHeaderError, Tokenizer, TokenizerError, load_tokenizer
from aie_loader.text.byte_level import byte_level_bpe, byte_to_char, char_to_byte
from aie_tensor import InvalidInputError

REPLACEMENT = "\ufffd"


def gguf_metadata(**changes: object) -> dict[str, object]:
    """A vocabulary of two special tokens, one user-defined token, and the 256 bytes; id 3 + b is byte b."""
    tokens = ["<s>", "</s>", "<tool>", *byte_to_char(), "he"]
    keys = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "merges": ["h e"],
        "token_type": [3, 3, 4] + [1] * 257,
        "bos_token_id": 0,
        "eos_token_id": 1,
        **changes,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in keys.items() if value is not None}


@pytest.fixture(scope="module")
def byte_tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(gguf_metadata())


@pytest.fixture(scope="module")
def llama2_tokenizer() -> Tokenizer:
    """SentencePiece in the way of Llama 2: `▁` for the space, tokens for bytes, one leading space that is not text."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256)), "▁", "▁hi", "a", "é", "▁▁"]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE({piece: index for index, piece in enumerate(pieces)}, [], byte_fallback=True)
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    steps = tokenizers.decoders
    backend.decoder = steps.Sequence(
        [
            steps.Replace("▁", " "),
            steps.ByteFallback(),
            steps.Fuse(),
            steps.Strip(content=" ", left=1, right=0),
        ]
    )
    return Tokenizer(backend)


@pytest.mark.real_model
def test_golden_prompts_and_answers(real_model: Path, golden: list[dict[str, Any]]) -> None:
    tokenizer, _, _ = load_tokenizer(real_model)
    assert tokenizer.eos_token_ids == (2,)
    assert tokenizer.vocab_size == 49152
    for record in golden:
        assert tokenizer.encode(record["prompt"]) == record["prompt_ids"], record["name"]
        assert tokenizer.decode(record["greedy_ids"]) == record["greedy_text"], record["name"]
        decoder = tokenizer.incremental()
        pushed = "".join(decoder.push([token_id]) for token_id in record["greedy_ids"])
        assert pushed + decoder.finish() == record["greedy_text"], record["name"]


@pytest.mark.real_model
def test_the_chat_template_of_the_real_model(real_model: Path, golden: list[dict[str, Any]]) -> None:
    _, template, _ = load_tokenizer(real_model)
    assert template is not None
    record = next(record for record in golden if record["name"] == "chat-capital")
    assert template.render([{"role": "user", "content": "What is the capital of France?"}]) == record["prompt"]


def test_byte_alphabet() -> None:
    assert len(set(byte_to_char())) == 256
    assert byte_to_char()[ord("A")] == "A"
    assert byte_to_char()[ord(" ")] == "Ġ"
    assert all(char_to_byte()[char] == value for value, char in enumerate(byte_to_char()))


def test_smollm_splits_single_digits(byte_tokenizer: Tokenizer) -> None:
    merges = [("1", "2"), ("h", "e")]
    backend = byte_level_bpe([*byte_to_char(), "12", "he"], merges, {}, pre="smollm")
    assert backend.encode("12he").tokens == ["1", "2", "he"]
    backend = byte_level_bpe([*byte_to_char(), "12", "he"], merges, {}, pre="gpt-2")
    assert backend.encode("12he").tokens == ["12", "he"]


def test_special_tokens_in_text(byte_tokenizer: Tokenizer) -> None:
    assert byte_tokenizer.special_ids == {0, 1}
    assert byte_tokenizer.encode("<s>he</s>") == [0, 259, 1]
    plain = byte_tokenizer.encode("<s>he</s>", parse_special=False)
    assert not byte_tokenizer.special_ids & set(plain)
    assert byte_tokenizer.decode(plain) == "<s>he</s>"
    assert byte_tokenizer.encode("<s>") == [0], "parse_special=False must not stick"
    assert byte_tokenizer.encode("<tool>") == [2]


def test_decode_skips_special_tokens_unless_told(byte_tokenizer: Tokenizer) -> None:
    ids = [0, 259, 2, 1]
    assert byte_tokenizer.decode(ids) == "he<tool>"
    assert byte_tokenizer.decode(ids, skip_special_tokens=False) == "<s>he<tool></s>"
    assert byte_tokenizer.decode([259, 99999]) == "he", "ids without a token give nothing"


def test_bos_is_added_where_the_file_says_so() -> None:
    tokenizer = Tokenizer.from_gguf(gguf_metadata(add_bos_token=True))
    assert tokenizer.encode("he", add_special_tokens=True) == [0, 259]
    assert tokenizer.encode("he") == [259]
    assert Tokenizer.from_gguf(gguf_metadata()).encode("he", add_special_tokens=True) == [259]


def test_every_id_that_ends_an_answer() -> None:
    assert Tokenizer.from_gguf(gguf_metadata(eot_token_id=0, eom_token_id=1)).eos_token_ids == (1, 0)
    assert Tokenizer.from_gguf(gguf_metadata(eos_token_id=None)).eos_token_ids == ()


def test_tokens_as_bytes_and_text(byte_tokenizer: Tokenizer) -> None:
    assert byte_tokenizer.token_bytes(3 + 0xE2) == b"\xe2"
    assert byte_tokenizer.token_text(3 + 0xE2) == REPLACEMENT
    assert byte_tokenizer.token_text(1) == "</s>"
    for wrong in (-1, 260, 1 << 40):
        with pytest.raises(InvalidInputError, match="no token"):
            byte_tokenizer.token_bytes(wrong)
    with pytest.raises(InvalidInputError):
        byte_tokenizer.decode([-1])


def test_text_that_is_no_unicode(byte_tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidInputError, match="surrogate"):
        byte_tokenizer.encode("a\ud800b")


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_round_trip(byte_tokenizer: Tokenizer, text: str) -> None:
    ids = byte_tokenizer.encode(text, parse_special=False)
    assert byte_tokenizer.decode(ids, skip_special_tokens=False) == text


def check_incremental(tokenizer: Tokenizer, chunks: list[list[int]], skip: bool) -> None:
    decoder = tokenizer.incremental(skip_special_tokens=skip)
    expected = tokenizer.decode([token_id for chunk in chunks for token_id in chunk], skip_special_tokens=skip)
    for _ in range(2):  # the decoder is as new after finish()
        assert "".join([*(decoder.push(chunk) for chunk in chunks), decoder.finish()]) == expected


# Ids around whole characters, so that valid, cut and broken sequences all come up; 300 has no token.
pieces = st.one_of(
    st.integers(0, 259).map(lambda token_id: [token_id]),
    st.sampled_from("aé你😀\u0800\U0010ffff").map(lambda char: [3 + byte for byte in char.encode()]),
    st.sampled_from("你😀").map(lambda char: [3 + byte for byte in char.encode()[:-1]]),
    st.just([300]),
)


@settings(max_examples=300)
@given(chunks=st.lists(pieces, max_size=8), skip=st.booleans())
def test_incremental_equals_decode(byte_tokenizer: Tokenizer, chunks: list[list[int]], skip: bool) -> None:
    check_incremental(byte_tokenizer, chunks, skip)
    check_incremental(byte_tokenizer, [[token_id] for chunk in chunks for token_id in chunk], skip)


@settings(max_examples=300)
@given(chunks=st.lists(st.one_of(pieces, st.integers(259, 263).map(lambda i: [i])), max_size=8), skip=st.booleans())
def test_incremental_equals_decode_for_byte_fallback(
    llama2_tokenizer: Tokenizer, chunks: list[list[int]], skip: bool
) -> None:
    check_incremental(llama2_tokenizer, chunks, skip)


def test_incremental_never_shows_half_a_character(byte_tokenizer: Tokenizer) -> None:
    decoder = byte_tokenizer.incremental()
    smile = [3 + byte for byte in "😀".encode()]
    assert [decoder.push([token_id]) for token_id in smile] == ["", "", "", "😀"]
    assert decoder.push(smile[:2]) == ""
    assert decoder.push([259]) == REPLACEMENT + "he", "certain as soon as the next byte cannot continue it"
    assert decoder.push(smile[:3]) == ""
    assert decoder.finish() == REPLACEMENT


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": None}, "no tokenizer"),
        ({"model": "rwkv"}, r"supported are gpt2 .*llama .*t5 .*bert"),
        ({"pre": None}, "does not say how"),
        ({"pre": "kimi-k2"}, r"supported: .*gpt-2, .*llama-bpe, .*qwen2, .*smollm"),
        ({"tokens": None}, r"tokenizer\.ggml\.tokens"),
        ({"tokens": [1, 2]}, r"tokenizer\.ggml\.tokens"),
        ({"tokens": ["a", "a"], "token_type": None, "merges": ["a a"]}, "twice"),
        ({"merges": ["he"]}, "not two tokens"),
        ({"merges": ["h e f"]}, "not two tokens"),
        ({"merges": ["h x"]}, "do not fit"),
        ({"token_type": [1]}, "one number per token"),
        ({"eos_token_id": 5000}, "5000"),
        ({"eos_token_id": "1"}, "vocabulary has 260"),
        ({"bos_token_id": -1}, "-1"),
    ],
)
def test_broken_metadata(changes: dict[str, object], says: str) -> None:
    with pytest.raises(TokenizerError, match=says):
        Tokenizer.from_gguf(gguf_metadata(**changes))


def test_from_folder(tiny_model: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(tiny_model)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.vocab_size) == (1, (2,), 512)
    (tmp_path / "tokenizer.json").write_bytes((tiny_model / "tokenizer.json").read_bytes())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 2], "bos_token_id": 1}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<|im_start|>"}}')
    assert Tokenizer.from_folder(tmp_path).eos_token_ids == (0, 2, 7, 1)


@pytest.mark.parametrize(
    ("name", "content", "kind", "says"),
    [
        ("tokenizer.json", None, TokenizerError, "no tokenizer.json"),
        ("tokenizer.json", "{}", TokenizerError, "cannot|not a tokenizer"),
        ("tokenizer.json", "\x00", TokenizerError, "not a tokenizer"),
        ("config.json", "[1]", MalformedHeaderError, "JSON object"),
        ("config.json", "{", MalformedHeaderError, "not valid JSON"),
    ],
)
def test_broken_folder(
    tiny_model: Path, tmp_path: Path, name: str, content: str | None, kind: type[Exception], says: str
) -> None:
    (tmp_path / "tokenizer.json").write_bytes((tiny_model / "tokenizer.json").read_bytes())
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(kind, match=says):
        Tokenizer.from_folder(tmp_path)


def test_a_tokenizer_that_generates_no_text(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.decoder = tokenizers.decoders.WordPiece()
    (tmp_path / "tokenizer.json").write_text(backend.to_str())
    with pytest.raises(TokenizerError, match="WordPiece"):
        Tokenizer.from_folder(tmp_path).incremental()


def test_padding_and_truncation_of_the_file_are_off(tiny_model: Path, tmp_path: Path) -> None:
    stored = json.loads((tiny_model / "tokenizer.json").read_text("utf-8"))
    stored["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    assert len(Tokenizer.from_folder(tmp_path).encode("a b c d")) > 2
