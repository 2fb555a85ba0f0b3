"""Text to token ids and back, from either kind of model file.

`tokenizers` does the merging; what is ours is to rebuild its parts from GGUF metadata, to find out which ids end an
answer, and to know each token's bytes, which streaming needs (`incremental.py`).
"""

import copy
import json
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

import tokenizers

from aie_loader.errors import TokenizerError
from aie_loader.text.batch import BatchRules, EncodedBatch, encode_batch
from aie_loader.text.byte_level import char_to_byte
from aie_loader.text.folder import folder_backend
from aie_loader.text.folder_config import FolderConfig, folder_batch_rules, folder_token_ids
from aie_loader.text.gguf_vocabulary import GGUFVocabulary
from aie_loader.text.incremental import ByteFallbackDecoder, ByteLevelDecoder, IncrementalDecoder, MetaspaceDecoder
from aie_loader.text.library_errors import library_errors
from aie_tensor import InvalidInputError

__all__ = ["Tokenizer"]


class Tokenizer:
    """Thread-safe once built. Ids are ints from 0 to `vocab_size` - 1.

    `eos_token_ids` end an answer, `special_ids` are the control tokens, which `decode` leaves out unless told
    otherwise. `batch_rules` say how the model wants many texts padded and long ones cut.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_token_id: int | None = None,
        eos_token_ids: Sequence[int] = (),
        batch_rules: BatchRules | None = None,
    ) -> None:
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        self.bos_token_id = bos_token_id
        self.eos_token_ids = tuple(dict.fromkeys(eos_token_ids))
        self.batch_rules = batch_rules or BatchRules()
        self._backend = backend
        self._plain_backend: tokenizers.Tokenizer | None = None
        self._lock = threading.Lock()
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self._decoder_kinds = _decoder_kinds(backend)
        self._bytes_of = lru_cache(maxsize=1 << 16)(self._find_bytes)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> "Tokenizer":
        """Rebuild the tokenizer that a GGUF file describes under `tokenizer.ggml.*`. Raises `TokenizerError`."""
        vocabulary = GGUFVocabulary.parse(metadata)
        return cls(
            vocabulary.build(),
            bos_token_id=vocabulary.ids.get("bos"),
            eos_token_ids=vocabulary.eos_token_ids,
            batch_rules=vocabulary.batch_rules(),
        )

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """Read `tokenizer.json`, or the older files in its place, and the ids that begin and end a text.

        Raises `TokenizerError` when there is no tokenizer, or none that can be read.
        """
        config = FolderConfig.read(Path(folder))
        backend = folder_backend(config)
        rules = folder_batch_rules(config, backend)
        backend.no_padding()
        backend.no_truncation()
        bos, eos = folder_token_ids(config, backend.token_to_id)
        return cls(backend, bos_token_id=bos, eos_token_ids=eos, batch_rules=rules)

    def encode(
        self, text: str, pair: str | None = None, *, add_special_tokens: bool = False, parse_special: bool = True
    ) -> list[int]:
        """Ids of `text`, or of `text` and `pair` as one sequence, for models that compare two texts.

        `add_special_tokens` adds what the model wants around a text (often nothing, or a BOS token). With
        `parse_special=False` markers such as `<|im_end|>` inside `text` are ordinary characters: for text that must not
        be able to leave its turn. Raises `InvalidInputError` for text that is not valid Unicode (lone surrogates).
        """
        backend = self._backend if parse_special else self._without_special()
        with library_errors("the model's tokenizer fails on this text"):
            return backend.encode(text, pair, add_special_tokens=add_special_tokens).ids

    def encode_batch(
        self,
        texts: Sequence[str | tuple[str, str]],
        *,
        max_length: int | None = None,
        truncate: bool = True,
        pad_to: int | Literal["longest"] | None = None,
        add_special_tokens: bool = True,
        parse_special: bool = True,
    ) -> EncodedBatch:
        """Ids and lengths of many texts, or pairs of texts.

        Texts of more than `max_length` tokens (special ones too; None: what the model was trained for) are cut, or,
        with `truncate=False`, refused with `InvalidInputError`. `pad_to` is a number of tokens, or "longest" for the
        length of the longest text; None pads nothing. The side of both is the model's (`batch_rules`).
        """
        backend = self._backend if parse_special else self._without_special()
        return encode_batch(
            backend,
            texts,
            self.batch_rules,
            max_length=max_length,
            truncate=truncate,
            pad_to=pad_to,
            add_special_tokens=add_special_tokens,
        )

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`. Bytes that are no UTF-8 become U+FFFD; ids without a token (padded vocabulary) vanish."""
        with library_errors("the model's tokenizer fails on these ids"):
            return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        """One token as text, special tokens too; U+FFFD where it holds only a part of a character."""
        self._check(token_id)
        return self.decode([token_id], skip_special_tokens=False)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token adds to the text. Raises `InvalidInputError` for ids without a token."""
        self._check(token_id)
        return self._bytes_of(token_id)

    def incremental(self, *, skip_special_tokens: bool = True) -> IncrementalDecoder:
        """A decoder for one stream. Raises `TokenizerError` for tokenizers that generate no text, such as BERT's."""
        skipped = self.special_ids if skip_special_tokens else frozenset()

        def piece_of(token_id: int) -> str | None:
            return None if token_id in skipped else self._backend.id_to_token(token_id)

        if self._decoder_kinds == ["ByteLevel"]:
            return ByteLevelDecoder(lambda token_id: b"" if token_id in skipped else self._bytes_of(token_id))
        if self._decoder_kinds in (["Replace", "ByteFallback", "Fuse"], ["Replace", "ByteFallback", "Fuse", "Strip"]):
            return ByteFallbackDecoder(piece_of, strips_space="Strip" in self._decoder_kinds)
        if self._decoder_kinds in (["Replace"], ["Replace", "Fuse"], ["Replace", "Fuse", "Strip"]):
            return ByteFallbackDecoder(piece_of, strips_space="Strip" in self._decoder_kinds, has_bytes=False)
        if self._decoder_kinds == ["Metaspace"]:
            scheme = json.loads(self._backend.decoder.__getstate__()).get("prepend_scheme")
            return MetaspaceDecoder(piece_of, strips_space=scheme != "never")
        kinds = " + ".join(self._decoder_kinds) or "none"
        raise TokenizerError(f"cannot stream text from a tokenizer with decoder {kinds}")

    def to_json(self) -> str:
        """The whole tokenizer in the format of `tokenizer.json`."""
        return self._backend.to_str(pretty=True)

    def _without_special(self) -> tokenizers.Tokenizer:
        # The flag is a setting of the whole object, so threads that want it differently need an object each.
        with self._lock:
            if self._plain_backend is None:
                self._plain_backend = _without_special_tokens(self._backend)
            return self._plain_backend

    def _check(self, token_id: int) -> None:
        if not 0 <= token_id < 1 << 32 or self._backend.id_to_token(token_id) is None:
            raise InvalidInputError(f"there is no token {token_id} (the vocabulary has {self.vocab_size})")

    def _find_bytes(self, token_id: int) -> bytes:
        """As the library decodes: letters through the byte alphabet where that works, else the token as it stands."""
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._decoder_kinds == ["ByteLevel"]:
            values = [char_to_byte().get(char) for char in token]
            return token.encode() if None in values else bytes(value for value in values if value is not None)
        if "ByteFallback" in self._decoder_kinds and len(token) == 6 and token.startswith("<0x"):
            return bytes([int(token[3:5], 16)])
        return token.replace("▁", " ").encode()


def _without_special_tokens(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A copy for which the texts of special tokens are ordinary characters.

    Unigram models still have these texts among their pieces; there the text is split behind its first character.
    """
    plain = copy.deepcopy(backend)
    plain.encode_special_tokens = True
    special = {index: token.content for index, token in backend.get_added_tokens_decoder().items() if token.special}
    spelled = [text for index, text in special.items() if index in plain.encode(text, add_special_tokens=False).ids]
    patterns = [f"{re.escape(text[0])}(?={re.escape(text[1:])})" for text in spelled if len(text) > 1]
    if patterns:
        split = tokenizers.pre_tokenizers.Split(tokenizers.Regex("|".join(patterns)), behavior="isolated")
        steps = [split] if plain.pre_tokenizer is None else [plain.pre_tokenizer, split]
        plain.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(steps)
    return plain


def _decoder_kinds(backend: tokenizers.Tokenizer) -> list[str]:
    """Type names of the decoder's steps, such as ["ByteLevel"]; empty without a decoder."""
    if backend.decoder is None:
        return []
    description = json.loads(backend.decoder.__getstate__())
    return [step["type"] for step in description.get("decoders", [description])]
