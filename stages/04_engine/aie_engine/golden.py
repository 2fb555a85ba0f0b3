"""Is this engine fit to serve? One short answer is computed and looked at, before anybody relies on it.

A file can be sound in every byte and still be the wrong one. What can be seen from outside is checked: tokens come, of
the vocabulary, with probabilities that are finite numbers. Whoever publishes a version may put more beside it, in
`golden.json`: {"prompt": text or token ids, "token_ids": [what greedy decoding must answer]}.

The check also warms up what the first user would wait for otherwise: tokenizer, template, decoding.
"""

import itertools
import math
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from aie_engine.errors import ModelCheckError
from aie_engine.params import SamplingParams
from aie_engine.protocol import EngineClient
from aie_engine.requests import GenerateRequest, TokenEvent, TokenLogprobs
from aie_engine.text import TextModel
from aie_tensor import AieError, InvalidInputError

__all__ = ["Golden", "check_engine", "read_golden"]

_PROMPT = "The quick brown fox"
_NUM_TOKENS = 4
_MAX_SHOWN = 20
_MAX_FILE_BYTES = 1 << 20
_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class Golden:
    """What a version must answer, greedily."""

    prompt: str | tuple[int, ...]
    token_ids: tuple[int, ...]


class _GoldenFile(msgspec.Struct, forbid_unknown_fields=True):
    prompt: str | list[int]
    token_ids: list[int]


def read_golden(path: Path) -> Golden | None:
    """The file at `path`; None where there is none. Raises `ModelCheckError` for one that is no such file."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_FILE_BYTES:  # a pipe would be waited for
            raise ModelCheckError(f"{path} is no file of at most {_MAX_FILE_BYTES} bytes.")
        content = msgspec.json.decode(path.read_bytes(), type=_GoldenFile)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelCheckError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelCheckError(f'{path} is not {{"prompt": text or token ids, "token_ids": [...]}}: {error}.') from None
    prompt = content.prompt if isinstance(content.prompt, str) else tuple(content.prompt)
    if not prompt or not content.token_ids:
        raise ModelCheckError(f"{path} needs a prompt and the token ids to follow it, neither empty.")
    return Golden(prompt, tuple(content.token_ids))


def check_engine(engine: EngineClient, text: TextModel, golden: Golden | None = None, *, timeout_s: float = 60) -> None:
    """Raises `ModelCheckError` saying what is wrong with the answer, or that none came within `timeout_s`."""
    prompt = _prompt_ids(engine, text, golden)
    num_wanted = len(golden.token_ids) if golden is not None else _NUM_TOKENS
    num_tokens = min(num_wanted, engine.info.max_seq_len - len(prompt))
    sampling = SamplingParams(temperature=0.0, max_tokens=max(1, num_tokens), ignore_eos=True, logprobs=0)
    answer = _ask(engine, prompt, sampling, timeout_s)
    vocab_size = engine.info.vocab_size
    if not answer.token_ids or not all(0 <= token < vocab_size for token in answer.token_ids):
        raise ModelCheckError(f"The engine answered {list(answer.token_ids)}, which are no tokens of the model.")
    if not all(math.isfinite(scored.logprob) for scored in answer.logprobs):
        raise ModelCheckError("The engine answered with probabilities that are no finite numbers.")
    if golden is not None and answer.token_ids != golden.token_ids:
        raise ModelCheckError(
            f"The golden prompt was answered with {_few(answer.token_ids)}, not with {_few(golden.token_ids)} as "
            "golden.json expects."
        )
    text.tokenizer.decode(list(answer.token_ids))
    if text.chat_template is not None:
        text.chat_template.render([{"role": "user", "content": _PROMPT}])


def _few(ids: Sequence[int]) -> str:
    """For a message: it is kept, and shown whenever somebody lists the versions."""
    shown = [str(token) for token in ids[:_MAX_SHOWN]] + ([f"… {len(ids)} tokens"] if len(ids) > _MAX_SHOWN else [])
    return f"[{', '.join(shown)}]"


def _prompt_ids(engine: EngineClient, text: TextModel, golden: Golden | None) -> tuple[int, ...]:
    prompt = _PROMPT if golden is None else golden.prompt
    if not isinstance(prompt, str):
        return prompt
    ids = tuple(text.tokenizer.encode(prompt, add_special_tokens=True))
    return ids if golden is not None else (ids[: max(1, engine.info.max_seq_len - _NUM_TOKENS)] or (0,))


def _ask(engine: EngineClient, prompt: tuple[int, ...], sampling: SamplingParams, timeout_s: float) -> TokenEvent:
    """The whole answer as one event. Raises `ModelCheckError` for an error, or for silence."""
    tokens: list[int] = []
    scores: list[TokenLogprobs] = []
    try:
        with engine.submit(GenerateRequest(f"check-{next(_serial)}", prompt, sampling)) as stream:
            while not stream.finished:
                event = stream.get(timeout_s)
                tokens += event.token_ids
                scores += event.logprobs
    except TimeoutError:
        raise ModelCheckError(f"The engine gave no token within {timeout_s:g} s.") from None
    except InvalidInputError as error:
        raise ModelCheckError(f"The engine does not take the golden prompt: {error}") from None
    except AieError as error:
        raise ModelCheckError(f"The engine failed on the golden prompt: {error}") from None
    if event.error is not None:
        raise ModelCheckError(f"The engine failed on the golden prompt: {event.error.message}")
    return TokenEvent(event.request_id, tuple(tokens), tuple(scores), event.finish_reason)
