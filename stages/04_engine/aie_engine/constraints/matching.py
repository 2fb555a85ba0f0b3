"""A compiled constraint, following one answer.

Compiling is bounded by the library's fuel rather than by a clock: a pathological schema or expression runs out of it
within a second or so and fails for its own request. The same bounds hold for every single mask, and all masks of an
answer together have a budget of computing time. All errors of the library are states rather than exceptions; here they
become `ConstraintError`.

Axes: V vocabulary of the model; a mask has W = ⌈V/32⌉ words.
"""

import json
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from aie_engine.constraints.errors import ConstraintError
from aie_engine.constraints.library import load_library, to_lark
from aie_engine.constraints.spec import ConstraintSpec
from aie_engine.constraints.vocabulary import TokenSource, library_tokenizer

__all__ = ["SPACING", "Constraint", "ConstraintMaker", "Mask", "TokenMatcher"]

Mask = npt.NDArray[np.uint32]  # [W]; bit t % 32 of word t // 32 is set where token t may come next

# Without a bound, a model may well put spaces between two members of an object until its tokens are used up.
SPACING: Final[Mapping[str, object]] = {"whitespace_pattern": r"[ \n\r\t]{1,32}"}

_MAX_KEPT: Final = 32  # compiled constraints; clients ask for the same one again and again
# Well below the defaults of the library: no ordinary schema comes near, and the worst expression delays a step less and
# holds less memory, of which 64 answers and those kept may each have their own.
_LIMITS: Final = {
    "initial_lexer_fuel": 150_000, "max_lexer_states": 50_000, "step_lexer_fuel": 20_000, "step_max_items": 20_000,
}  # fmt: skip
_HEADER: Final = re.compile(r"\A\s*%llguidance\s*\{[^{}]*\}")
_FIRST_S, _PER_TOKEN_S = 0.25, 0.005  # an ordinary mask takes less than a millisecond
_MAX_REASON_CHARS: Final = 300
_PLAINLY: Final = {"NoExtensionBias": "no text can have that form"}  # reasons that say something to the library alone


class Constraint(Protocol):
    """One answer's. Not thread-safe: who calls `mask` and `accept` takes turns."""

    @property
    def is_done(self) -> bool:
        """Nothing may follow but the end."""
        ...

    def mask(self) -> Mask:
        """The tokens that may come next; the array is overwritten after the next `accept`. Where the answer may end,
        the model's end-of-sequence tokens are among them. Raises `ConstraintError`."""
        ...

    def masks(self, guesses: Sequence[int]) -> list[Mask]:
        """That mask, and for each guess the one of what may follow if all up to it come true. One that allows nothing
        stands where that cannot be said, or where the guess or one before it is not allowed."""
        ...

    def forced(self) -> list[int]:
        """The tokens that come next where there is no choice; often none."""
        ...

    def num_allowed(self, guesses: Sequence[int]) -> int:
        """How many of `guesses` may come next, one after the other."""
        ...

    def accept(self, token_id: int) -> None:
        """`token_id`, one of the mask's, has come. Raises `ConstraintError`."""
        ...


class TokenMatcher:
    """A `Constraint` that computes a mask when it is asked for one. `matcher` is the library's. cpu_s: time that this
    thread has computed, of which masks may take so much at first and so much for every token: a step waits for them.

    What only might come is tried on a copy, which shares nothing: whatever comes of it, this one does not know.
    """

    def __init__(
        self, matcher: Any, num_words: int, param: str, *, cpu_s: Callable[[], float] = time.thread_time
    ) -> None:
        self._matcher = matcher
        self._param = param
        self._cpu_s = cpu_s
        self._left_s = self._left_for_guesses_s = _FIRST_S
        self._mask: Mask = np.zeros(num_words, np.uint32)
        self._nothing: Mask = np.zeros(num_words, np.uint32)
        self._is_current = False

    @property
    def is_done(self) -> bool:
        return bool(self._matcher.is_stopped())

    def mask(self) -> Mask:
        if not self._is_current:
            began_s = self._cpu_s()
            # Gives up Python's lock, so that the thread of the engine's step runs on.
            self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
            self._check()
            self._left_s -= self._cpu_s() - began_s
            if self._left_s < 0:
                raise ConstraintError(
                    f"{self._param} takes too long: what may follow is hard to say; ask for a simpler form.",
                    param=self._param,
                )
            if not self._mask.any():
                raise ConstraintError(f"{self._param} allows nothing at this point of the answer.", param=self._param)
            self._is_current = True
        return self._mask

    def masks(self, guesses: Sequence[int]) -> list[Mask]:
        found = [self.mask()]
        ahead = self._matcher.deep_copy() if guesses else None
        for guess in guesses:
            mask = self._mask_behind(ahead, guess)
            if mask is None:
                break
            found.append(mask)
        return found + [self._nothing] * (1 + len(guesses) - len(found))

    def _mask_behind(self, ahead: Any, guess: int) -> Mask | None:
        """Moves the copy `ahead`; None where nothing can be said."""
        if self._left_for_guesses_s < 0 or not ahead.try_consume_tokens([guess]) or ahead.is_stopped():
            return None
        began_s = self._cpu_s()
        mask: Mask = np.zeros(len(self._mask), np.uint32)
        ahead.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._left_for_guesses_s -= self._cpu_s() - began_s
        return None if ahead.is_error() else mask

    def forced(self) -> list[int]:
        tokens: list[int] = self._matcher.deep_copy().compute_ff_tokens()
        return tokens

    def num_allowed(self, guesses: Sequence[int]) -> int:
        num: int = self._matcher.deep_copy().try_consume_tokens(list(guesses))
        return num

    def accept(self, token_id: int) -> None:
        self._is_current = False
        self._left_s += _PER_TOKEN_S
        self._left_for_guesses_s += _PER_TOKEN_S
        if not self._matcher.consume_token(token_id):
            self._check()
            raise ConstraintError(f"{self._param} does not allow token {token_id} here.", param=self._param)

    def copy(self, param: str) -> "TokenMatcher":
        """Another one at the same point."""
        twin = TokenMatcher(self._matcher.deep_copy(), len(self._mask), param, cpu_s=self._cpu_s)
        twin._mask[:], twin._is_current = self._mask, self._is_current
        return twin

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = _first_lines(self._matcher.get_error())
            reason = _PLAINLY.get(reason, reason)
            raise ConstraintError(f"{self._param} cannot be followed: {reason}", param=self._param)


class ConstraintMaker:
    """Compiles constraints for one model, and keeps what it compiled last. Thread-safe. The constructor looks at every
    token of the vocabulary. Raises `ConstraintsUnavailableError`."""

    def __init__(self, tokenizer: TokenSource, *, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        library = load_library()
        self._library = library
        self._tokenizer = library_tokenizer(tokenizer, vocab_size, eos_token_ids)
        self._limits = library.LLParserLimits(**_LIMITS, verbose_errors=False)
        self._num_words = -(-vocab_size // 32)
        self._kept: OrderedDict[tuple[str, str], TokenMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def make(self, spec: ConstraintSpec) -> TokenMatcher:
        """A constraint at the beginning of its answer. Raises `ConstraintError` for what does not compile, and for what
        allows no answer at all."""
        key = (spec.kind, spec.text)
        with self._lock:
            matcher = self._kept.get(key)
            if matcher is not None:
                self._kept.move_to_end(key)
        if matcher is None:
            matcher = self._compile(spec)
            with self._lock:
                self._kept[key] = matcher
                if len(self._kept) > _MAX_KEPT:
                    self._kept.popitem(last=False)
        return matcher.copy(spec.param)

    def _compile(self, spec: ConstraintSpec) -> TokenMatcher:
        matcher = self._library.LLMatcher(self._tokenizer, self._grammar(spec), limits=self._limits, log_level=0)
        if matcher.is_error():
            reason = _first_lines(matcher.get_error())
            raise ConstraintError(f"{spec.param} is refused: {reason}", param=spec.param)
        first = TokenMatcher(matcher, self._num_words, spec.param)
        first.mask()  # some that compile turn out to be hopeless at the first look
        return first

    def _grammar(self, spec: ConstraintSpec) -> str:
        """In the library's own form."""
        matcher = self._library.LLMatcher
        try:
            match spec.kind:
                case "json_object":
                    grammar = matcher.grammar_from_json_schema('{"type": "object"}', SPACING)
                case "json_schema":
                    grammar = matcher.grammar_from_json_schema(spec.text, _options(spec.text))
                case "regex":
                    grammar = matcher.grammar_from_regex(spec.text)
                case "choice":
                    grammar = self._library.grammar_from("choice", spec.text)
                case "grammar":
                    grammar = matcher.grammar_from_lark(_guarded(to_lark(spec.text)))
        except (ValueError, RecursionError) as error:
            raise ConstraintError(f"{spec.param} is refused: {_first_lines(str(error))}", param=spec.param) from None
        return str(grammar)


def _guarded(lark: str) -> str:
    """The grammar with forced text switched off: where one lexeme can go on for ever and nothing can follow it (`/b+/`
    twice), the library would write down that text for ever. Raises ValueError for further headers."""
    text = _HEADER.sub("", lark, count=1)
    if "%llguidance" in text:
        raise ValueError("%llguidance may stand at the beginning only, with plain options")
    return f'%llguidance {{"no_forcing": true}}\n{text}'


def _options(schema: str) -> Mapping[str, object]:
    """How JSON is written where the schema itself (under `x-guidance`) does not say."""
    try:
        own = json.loads(schema)["x-guidance"]
    except (ValueError, LookupError, TypeError, RecursionError):  # what is no schema is the library's to refuse
        return SPACING
    says = isinstance(own, dict) and ("whitespace_flexible" in own or "whitespace_pattern" in own)
    return {} if says else SPACING


def _first_lines(reason: str) -> str:
    """The library's reason on one line and not too long: it may quote the whole grammar."""
    lines = [line.strip() for line in reason.replace("<non-verbose/>", "").splitlines()]
    text = " ".join(line for line in lines if line)
    return text if len(text) <= _MAX_REASON_CHARS else text[:_MAX_REASON_CHARS] + " …"
