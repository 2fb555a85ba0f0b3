"""Writes the tokenizers of this folder and golden.json: small vocabularies, and what the reference libraries make of
texts with them.

Needs sentencepiece and transformers, and torch for neither; the suite needs none of them, it reads what is written
here. Run with: python tests/02_loader/tokenizer_files/make.py
"""

import io
import json
import os
import random
from pathlib import Path

import sentencepiece
import tokenizers
import transformers

HERE = Path(__file__).parent
WORDS = (  # noqa: SIM905
    "the a and of to in is was for with on that it as his her they at be this from have or by one had not but what all "
    "were when we there can an your which their said if do will each about how up out them then she many some so these "
    "would other into has more two like him see time could no make than first been its who now people my made over did "
    "down only way find use may water long little very after words called just where most know tokens model prompt "
    "naïve café straße Ελλάδα мир привет 日本語 テキスト 12 345 6789 unhappiness running runner runs played playing"
).split()
TEXTS = [
    "",
    " ",
    "a",
    "Hello world!",
    " Hello  world  ",
    "The quick brown fox, jumped over 13 lazy dogs; it's 12345678.",
    "unhappiness runs where the runner was running",
    "naïve café, straße, ＡＢＣ ﬁne ™",
    "日本語のテキスト 😀 emoji",
    "line one\n\n\tdef f(x):\n    return x**2\n",
    "▁▁x ▁y",
    "<s>x</s> <unk> <pad> <0x0A> [CLS] [SEP] <mask>",
    "e\u0301 combining; NFC é",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "\u0000 control \u200b zero width",
]


def corpus() -> list[str]:
    rng = random.Random(7)
    return [" ".join(rng.choice(WORDS) for _ in range(12)).capitalize() + rng.choice(".!?") for _ in range(1500)]


def train_sentencepiece(name: str, kind: str, **options: object) -> sentencepiece.SentencePieceProcessor:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()), model_writer=model, model_type=kind, num_threads=1, minloglevel=2, **options
    )
    (HERE / name).write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def sentencepiece_records() -> dict[str, object]:
    os.chdir(HERE)  # the models remember the path of their rules: a name, and not where this folder lies
    charsmap = Path("charsmap.tsv")
    # Source and target code points of a small normalization: full-width letters, a ligature, the trade mark.
    charsmap.write_text("FF21\t41\nFF22\t42\nFF23\t43\nFB01\t66 69\n2122\t54 4D\n")
    models = {
        "bpe.model": train_sentencepiece(
            "bpe.model", "bpe", vocab_size=600, byte_fallback=True, normalization_rule_name="identity",
            remove_extra_whitespaces=False, split_digits=True,
        ),
        "no_prefix.model": train_sentencepiece(
            "no_prefix.model", "bpe", vocab_size=560, byte_fallback=True, normalization_rule_name="identity",
            remove_extra_whitespaces=False, add_dummy_prefix=False, allow_whitespace_only_pieces=True,
        ),
        "unigram.model": train_sentencepiece(
            "unigram.model", "unigram", vocab_size=300, normalization_rule_tsv=str(charsmap), pad_id=0, eos_id=1,
            unk_id=2, bos_id=-1,
        ),
        "fairseq.model": train_sentencepiece("fairseq.model", "unigram", vocab_size=300,
                                             normalization_rule_tsv=str(charsmap)),
    }  # fmt: skip
    charsmap.unlink()
    return {name: [[text, model.encode(text), model.decode(model.encode(text))] for text in TEXTS]
            for name, model in models.items()}  # fmt: skip


def bert_vocab() -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    backend.train_from_iterator(corpus(), trainer)
    vocab = backend.get_vocab()
    (HERE / "vocab.txt").write_text("\n".join(sorted(vocab, key=vocab.get)) + "\n", encoding="utf-8")


def byte_level_vocab() -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(corpus(), trainer)
    model = json.loads(backend.to_str())["model"]
    (HERE / "vocab.json").write_text(json.dumps(model["vocab"], ensure_ascii=False), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(merge) for merge in model["merges"])]
    (HERE / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def transformers_records() -> dict[str, object]:
    vocab = {line: index for index, line in enumerate((HERE / "vocab.txt").read_text("utf-8").splitlines())}
    bert = transformers.BertTokenizer(vocab=vocab, do_lower_case=True)
    cased = transformers.BertTokenizer(vocab=vocab, do_lower_case=False)
    byte_level = json.loads((HERE / "vocab.json").read_text("utf-8"))
    merges = [tuple(line.split(" ")) for line in (HERE / "merges.txt").read_text("utf-8").splitlines()[1:]]
    roberta = transformers.RobertaTokenizer(vocab=byte_level, merges=merges)
    prefixed = transformers.RobertaTokenizer(vocab=byte_level, merges=merges, add_prefix_space=True)
    texts = [text for text in TEXTS if "[CLS]" not in text]
    pairs = [[TEXTS[5], TEXTS[3]], [TEXTS[3], TEXTS[5]], [TEXTS[5], TEXTS[6]], ["a", "b"], ["a", ""]]
    records: dict[str, object] = {}
    for name, tokenizer in (("bert", bert), ("cased", cased), ("roberta", roberta), ("prefixed", prefixed)):
        cut = []
        for side in ("right", "left"):
            tokenizer.truncation_side = tokenizer.padding_side = side
            for length in (5, 8, 11, 16):
                encoded = tokenizer([tuple(pair) for pair in pairs], max_length=length, truncation="longest_first",
                                    padding="max_length", return_token_type_ids=True)  # fmt: skip
                lengths = [sum(mask) for mask in encoded["attention_mask"]]
                cut.append([side, length, encoded["input_ids"], encoded["token_type_ids"], lengths])
        tokenizer.truncation_side = tokenizer.padding_side = "right"
        records[name] = {
            "texts": [[text, tokenizer(text)["input_ids"]] for text in texts],
            "pairs": [[*pair, tokenizer([tuple(pair)])["input_ids"][0]] for pair in pairs],
            "cut": [pairs, cut],
        }
    return records


if __name__ == "__main__":
    bert_vocab()
    byte_level_vocab()
    golden = {"sentencepiece": sentencepiece_records(), "transformers": transformers_records()}
    (HERE / "golden.json").write_text(json.dumps(golden, ensure_ascii=False) + "\n", encoding="utf-8")
