"""Each kind of vocabulary, from each place where it is kept, against what the reference libraries say.

golden.json is written by tokenizer_files/make.py with sentencepiece and transformers.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_loader import Tokenizer, TokenizerError
from aie_loader.text.batch import BatchRules
from aie_loader.text.sentencepiece_file import read_sentencepiece
from aie_tensor import InvalidInputError

FILES = Path(__file__).parent / "tokenizer_files"
GOLDEN: dict[str, Any] = json.loads((FILES / "golden.json").read_text("utf-8"))


def folder_of(tmp_path: Path, files: dict[str, str], **config: object) -> Path:
    """A model folder with copies of `files` (name there → name here) and a tokenizer_config.json."""
    for name, source in files.items():
        shutil.copy(FILES / source, tmp_path / name)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def sentencepiece_metadata(name: str, **changes: object) -> dict[str, object]:
    """The keys of a GGUF file made from a SentencePiece model."""
    file = read_sentencepiece(FILES / name)
    keys = {
        "model": "llama" if file.kind == "bpe" else "t5",
        "tokens": file.pieces,
        "scores": file.scores,
        "token_type": file.types,
        "unknown_token_id": file.unknown_id,
        "add_space_prefix": file.adds_space_prefix,
        "remove_extra_whitespaces": file.removes_extra_spaces,
        "precompiled_charsmap": None
        if file.charsmap is None
        else [*(b - 256 if b > 127 else b for b in file.charsmap)],
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


def bert_metadata(**changes: object) -> dict[str, object]:
    """As llama.cpp's converter writes it: ▁ before what begins a word, nothing before what continues one."""
    words = (FILES / "vocab.txt").read_text("utf-8").splitlines()
    special = [word.startswith("[") and len(word) > 1 for word in words]
    tokens = [
        word if mark else word[2:] if word.startswith("##") else f"▁{word}"
        for word, mark in zip(words, special, strict=True)
    ]
    keys = {"model": "bert", "tokens": tokens, "token_type": [3 if mark else 1 for mark in special]}
    ids = {"bos": "[CLS]", "seperator": "[SEP]", "padding": "[PAD]", "unknown": "[UNK]"}
    keys |= {f"{name}_token_id": words.index(text) for name, text in ids.items()}
    return {f"tokenizer.ggml.{key}": value for key, value in {**keys, **changes}.items()}


def fused(ids: list[int], unknown: int) -> list[int]:
    """Neighbouring unknown tokens as one: where the text of a special token is cut, SentencePiece fuses across."""
    return [index for at, index in enumerate(ids) if index != unknown or ids[at - 1 : at] != [unknown]]


@pytest.mark.parametrize("name", ["bpe.model", "no_prefix.model", "unigram.model"])
def test_sentencepiece_in_gguf(name: str) -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata(name))
    for text, ids, decoded in GOLDEN["sentencepiece"][name]:
        unknown = read_sentencepiece(FILES / name).unknown_id
        assert fused(tokenizer.encode(text, parse_special=False), unknown) == ids, text
        if tokenizer.special_ids.isdisjoint(ids):
            assert tokenizer.decode(ids) == decoded
        stream = tokenizer.incremental()
        assert "".join([*(stream.push([index]) for index in ids), stream.finish()]) == tokenizer.decode(ids)


def test_ids_around_a_text_in_gguf() -> None:
    llama = Tokenizer.from_gguf(sentencepiece_metadata("bpe.model"))
    assert llama.encode("a", add_special_tokens=True) == [1, *llama.encode("a")]
    assert llama.encode("a", "b", add_special_tokens=True) == [1, *llama.encode("a"), 1, *llama.encode("b")]
    assert (llama.bos_token_id, llama.eos_token_ids) == (1, (2,))
    both = Tokenizer.from_gguf(sentencepiece_metadata("bpe.model", add_bos_token=False, add_eos_token=True))
    assert both.encode("a", add_special_tokens=True) == [*llama.encode("a"), 2]
    t5 = Tokenizer.from_gguf(sentencepiece_metadata("unigram.model"))
    assert t5.encode("a", add_special_tokens=True) == [*t5.encode("a"), 1]
    assert t5.batch_rules.pad_token_id == 0


def test_a_marker_that_ends_a_turn_ends_an_answer() -> None:
    file = read_sentencepiece(FILES / "bpe.model")
    changes = {"tokens": [*file.pieces, "<end_of_turn>"], "scores": [*file.scores, 0.0], "token_type": [*file.types, 3]}
    assert Tokenizer.from_gguf(sentencepiece_metadata("bpe.model", **changes)).eos_token_ids == (2, len(file.pieces))


def test_control_pieces_cannot_be_spelled() -> None:
    """Without `parse_special` no text gives a control token, not even where the model could put it together."""
    for name in ("bpe.model", "unigram.model"):
        tokenizer = Tokenizer.from_gguf(sentencepiece_metadata(name))
        for text in ("</s>", "a</s>b", "<s>", " </s> "):
            assert not tokenizer.special_ids - {0, 2} & set(tokenizer.encode(text, parse_special=False)), (name, text)
            assert tokenizer.special_ids & set(tokenizer.encode(f"{text}</s>"))


def test_user_defined_pieces_are_taken_whole() -> None:
    file = read_sentencepiece(FILES / "bpe.model")
    changes = {"tokens": [*file.pieces, "\n\n", "[INST]"], "scores": [*file.scores, 0.0, 0.0]}
    tokenizer = Tokenizer.from_gguf(
        sentencepiece_metadata("bpe.model", **changes, token_type=[*file.types, 4, 4], add_space_prefix=False)
    )
    size = len(file.pieces)
    assert tokenizer.encode("\n\n[INST]") == [size, size + 1]
    assert tokenizer.decode([size, size + 1]) == "\n\n[INST]", "they are text, not control"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"scores": None}, "scores is missing"),
        ({"scores": [0.0]}, "not one finite number per token"),
        ({"scores": [float("nan")] * 300}, "not one finite number per token"),
        ({"token_type": [[1]] * 300}, "one number per token"),
        ({"token_type": [1]}, "one number per token"),
        ({"precompiled_charsmap": ["x"]}, "not a list of bytes"),
        ({"precompiled_charsmap": [1, 2, 3]}, "cut short"),
        ({"tokens": ["a"] * 3, "scores": [0.0] * 3, "token_type": [1] * 3}, "twice"),
        ({"unknown_token_id": 10**6}, "1000000"),
    ],
)
def test_broken_sentencepiece_metadata(changes: dict[str, object], says: str) -> None:
    with pytest.raises(TokenizerError, match=says):
        Tokenizer.from_gguf(sentencepiece_metadata("unigram.model", **changes))


@pytest.mark.parametrize("kind", ["bert", "cased"])
@pytest.mark.parametrize("place", ["folder", "gguf"])
def test_wordpiece(tmp_path: Path, kind: str, place: str) -> None:
    lowercase = kind == "bert"
    if place == "folder":
        config = {"tokenizer_class": "BertTokenizer", "do_lower_case": lowercase}
        tokenizer = Tokenizer.from_folder(folder_of(tmp_path, {"vocab.txt": "vocab.txt"}, **config))
    else:
        tokenizer = Tokenizer.from_gguf(bert_metadata(**{"normalizer.lowercase": lowercase}))
    check_texts(tokenizer, GOLDEN["transformers"][kind])
    check_cuts(tokenizer, GOLDEN["transformers"][kind], place)
    with pytest.raises(TokenizerError, match="WordPiece"):
        tokenizer.incremental()


def test_where_bert_files_say_what_begins_a_text() -> None:
    keys = bert_metadata()
    start = keys.pop("tokenizer.ggml.bos_token_id")
    older = Tokenizer.from_gguf({**keys, "tokenizer.ggml.cls_token_id": start})
    assert older.encode("the", add_special_tokens=True)[0] == start
    assert Tokenizer.from_gguf(keys).encode("the", add_special_tokens=True)[0] == 101, "as llama.cpp has it"


@pytest.mark.parametrize("kind", ["roberta", "prefixed"])
def test_byte_level_of_a_folder(tmp_path: Path, kind: str) -> None:
    files = {"vocab.json": "vocab.json", "merges.txt": "merges.txt"}
    config = {"tokenizer_class": "RobertaTokenizerFast", "add_prefix_space": kind == "prefixed"}
    tokenizer = Tokenizer.from_folder(folder_of(tmp_path, files, **config))
    check_texts(tokenizer, GOLDEN["transformers"][kind])
    check_cuts(tokenizer, GOLDEN["transformers"][kind], "folder")


def test_byte_level_of_gguf() -> None:
    vocab = json.loads((FILES / "vocab.json").read_text("utf-8"))
    keys = {
        "model": "gpt2", "pre": "roberta-bpe", "tokens": list(vocab), "token_type": [3] * 5 + [1] * (len(vocab) - 5),
        "merges": (FILES / "merges.txt").read_text("utf-8").splitlines()[1:], "bos_token_id": 0, "eos_token_id": 2,
        "padding_token_id": 1, "add_bos_token": True, "add_eos_token": True,
    }  # fmt: skip
    tokenizer = Tokenizer.from_gguf({f"tokenizer.ggml.{key}": value for key, value in keys.items()})
    records = GOLDEN["transformers"]["roberta"]
    # What is no control token for the file is text: RoBERTa's <mask> eats the space before it.
    check_texts(tokenizer, {**records, "texts": [record for record in records["texts"] if "<mask>" not in record[0]]})


def check_texts(tokenizer: Tokenizer, records: dict[str, Any]) -> None:
    for text, ids in records["texts"]:
        assert tokenizer.encode(text, add_special_tokens=True) == ids, text
    for first, second, ids in records["pairs"]:
        assert tokenizer.encode(first, second, add_special_tokens=True) == ids, (first, second)


def check_cuts(tokenizer: Tokenizer, records: dict[str, Any], place: str) -> None:
    pairs, cuts = records["cut"]
    for side, length, ids, type_ids, lengths in cuts:
        pad = tokenizer.batch_rules.pad_token_id
        tokenizer.batch_rules = BatchRules(pad_token_id=pad, padding_side=side, truncation_side=side)
        batch = tokenizer.encode_batch([tuple(pair) for pair in pairs], max_length=length, pad_to=length)
        assert (batch.ids, batch.lengths, batch.padding_side) == (ids, lengths, side)
        assert batch.type_ids == type_ids, place


def test_batches(tmp_path: Path) -> None:
    config = {"tokenizer_class": "BertTokenizer", "model_max_length": 6, "padding_side": "left"}
    tokenizer = Tokenizer.from_folder(folder_of(tmp_path, {"vocab.txt": "vocab.txt"}, **config))
    assert tokenizer.batch_rules == BatchRules(pad_token_id=0, padding_side="left", max_length=6)
    batch = tokenizer.encode_batch(["the model", "water " * 30, ""])
    start, end = (tokenizer.encode("", add_special_tokens=True)[index] for index in (0, 1))
    assert [len(row) for row in batch.ids] == batch.lengths
    assert batch.lengths[1:] == [6, 2]
    assert batch.num_truncated == 1
    assert all((row[0], row[-1]) == (start, end) for row in batch.ids), "cutting keeps what goes around a text"
    assert tokenizer.encode_batch(["the model"], pad_to="longest").ids == [batch.ids[0]]
    padded = tokenizer.encode_batch(["the model", ""], pad_to="longest")
    assert padded.ids[1] == [0] * (batch.lengths[0] - 2) + batch.ids[2]
    assert tokenizer.encode_batch([]).ids == []
    assert tokenizer.encode_batch(["the"], add_special_tokens=False).ids == [tokenizer.encode("the")]
    assert end in tokenizer.encode_batch(["[SEP]"]).ids[0][1:-1]
    assert end not in tokenizer.encode_batch(["[SEP]"], parse_special=False).ids[0][1:-1]


@pytest.mark.parametrize(
    ("texts", "options", "says"),
    [
        (["water " * 30], {"truncate": False}, r"text 0 has \d+ tokens, but there is room for 4; shorten it, or allow"),
        (["the"], {"max_length": 1}, "no room"),
        (["the model"], {"pad_to": 2}, "more than the 2 to pad to"),
        (["\ud800"], {}, "surrogate"),
    ],
)
def test_batches_that_do_not_fit(
    tmp_path: Path, texts: list[str | tuple[str, str]], options: dict[str, Any], says: str
) -> None:
    config = {"tokenizer_class": "BertTokenizer", "model_max_length": 6}
    tokenizer = Tokenizer.from_folder(folder_of(tmp_path, {"vocab.txt": "vocab.txt"}, **config))
    with pytest.raises(InvalidInputError, match=says):
        tokenizer.encode_batch(texts, **options)


def test_where_lengths_come_from(tmp_path: Path) -> None:
    config = {"tokenizer_class": "BertTokenizer", "model_max_length": 10**30}
    folder = folder_of(tmp_path, {"vocab.txt": "vocab.txt"}, **config)
    assert Tokenizer.from_folder(folder).batch_rules.max_length is None
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 256}')
    assert Tokenizer.from_folder(folder).batch_rules.max_length == 256


def test_llama_from_its_sentencepiece_file(tmp_path: Path) -> None:
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": {"content": "</s>"}}
    tokenizer = Tokenizer.from_folder(folder_of(tmp_path, {"tokenizer.model": "bpe.model"}, **config))
    for text, ids, _ in GOLDEN["sentencepiece"]["bpe.model"]:
        assert tokenizer.encode(text, parse_special=False) == ids
        assert tokenizer.encode(text, parse_special=False, add_special_tokens=True) == [1, *ids]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (2,))
    assert tokenizer.encode("</s>a") == [2, *tokenizer.encode("a")], "the older behaviour: a space after a token"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "legacy": False}))
    newer = Tokenizer.from_folder(tmp_path)
    assert newer.token_text(newer.encode("</s>a")[1]) == "a"


def test_gemma_t5_and_xlm_roberta_from_their_files(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
    files = {"tokenizer.model": "no_prefix.model"}
    config = {"tokenizer_class": "GemmaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}
    gemma = Tokenizer.from_folder(folder_of(tmp_path / "a", files, **config))
    for text, ids, _ in GOLDEN["sentencepiece"]["no_prefix.model"]:
        assert gemma.encode(text, parse_special=False, add_special_tokens=True) == [1, *ids]
    t5 = Tokenizer.from_folder(
        folder_of(tmp_path / "b", {"spiece.model": "unigram.model"}, tokenizer_class="T5Tokenizer", pad_token="<pad>")
    )
    for text, ids, _ in GOLDEN["sentencepiece"]["unigram.model"]:
        assert fused(t5.encode(text, parse_special=False, add_special_tokens=True), 2) == [*ids, 1]
    assert t5.vocab_size == 400
    assert t5.encode("<extra_id_0>") == [399]
    (tmp_path / "c" / "config.json").write_text('{"model_type": "xlm-roberta"}')
    roberta = Tokenizer.from_folder(folder_of(tmp_path / "c", {"sentencepiece.bpe.model": "fairseq.model"}))
    for text, ids, _ in GOLDEN["sentencepiece"]["fairseq.model"]:
        expected = [3 if index == 0 else index + 1 for index in ids]
        assert fused(roberta.encode(text, parse_special=False, add_special_tokens=True), 3) == [0, *expected, 2], text
    assert roberta.encode("a", "a", add_special_tokens=True) == [0, *roberta.encode("a"), 2, 2, *roberta.encode("a"), 2]
    assert roberta.encode("<mask>") == [301]


def test_added_tokens_of_a_folder(tmp_path: Path) -> None:
    decoder = {"600": {"content": "<|turn|>", "special": True}, "601": {"content": "<tool>", "special": False}}
    config = {"tokenizer_class": "LlamaTokenizer", "added_tokens_decoder": decoder}
    folder = folder_of(tmp_path, {"tokenizer.model": "bpe.model"}, **config)
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.encode("<|turn|><tool>") == [600, 601]
    assert tokenizer.decode([600, 601]) == "<tool>"
    (folder / "added_tokens.json").write_text('{"<gap>": 700}')
    with pytest.raises(TokenizerError, match="'<gap>' has id 602, but the files beside the vocabulary say 700"):
        Tokenizer.from_folder(folder)


@pytest.mark.parametrize(
    ("files", "config", "says"),
    [
        ({}, {}, r"no tokenizer\.json, nor the older files .* vocab\.txt"),
        ({"vocab.txt": "vocab.txt"}, {}, "does not say which class .*save_pretrained"),
        ({"vocab.txt": "vocab.txt"}, {"tokenizer_class": "FunnelTokenizer"}, "is for the class FunnelTokenizer; aie"),
        ({"vocab.txt": "vocab.txt"}, {"tokenizer_class": "BertTokenizer", "unk_token": "<none>"}, "lacks .*<none>"),
        ({"vocab.txt": "bpe.model"}, {"tokenizer_class": "BertTokenizer"}, "not UTF-8|lacks"),
        ({"tokenizer.model": "bpe.model"}, {"tokenizer_class": "LlamaTokenizer", "bos_token": "<b>"}, None),
        ({"spiece.model": "unigram.model"}, {"tokenizer_class": "T5Tokenizer", "extra_ids": 10**12}, "at most 10000"),
        ({"vocab.json": "vocab.json", "merges.txt": "vocab.json"}, {"tokenizer_class": "GPT2Tokenizer"}, "not two tok"),
    ],
)
def test_folders_that_cannot_be_read(
    tmp_path: Path, files: dict[str, str], config: dict[str, object], says: str | None
) -> None:
    folder = folder_of(tmp_path, files, **config)
    if says is None:  # a special token that the vocabulary lacks is added to it
        assert Tokenizer.from_folder(folder).encode("<b>") == [600]
        return
    with pytest.raises(TokenizerError, match=says):
        Tokenizer.from_folder(folder)


@pytest.fixture(scope="module")
def metaspace() -> Tokenizer:
    """As T5's own tokenizer.json: every piece is text, and the first `▁` is not."""
    backend = Tokenizer.from_gguf(sentencepiece_metadata("unigram.model"))._backend
    backend.decoder = tokenizers.decoders.Metaspace(prepend_scheme="always")
    return Tokenizer(backend)


@settings(max_examples=100)
@given(chunks=st.lists(st.lists(st.integers(0, 310), max_size=3), max_size=6), skip=st.booleans())
def test_incremental_equals_decode(metaspace: Tokenizer, chunks: list[list[int]], skip: bool) -> None:
    stream = metaspace.incremental(skip_special_tokens=skip)
    expected = metaspace.decode([index for chunk in chunks for index in chunk], skip_special_tokens=skip)
    for _ in range(2):  # the decoder is as new after finish()
        assert "".join([*(stream.push(chunk) for chunk in chunks), stream.finish()]) == expected
