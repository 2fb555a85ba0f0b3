"""What the core knows of one open request: the token ids, which the scheduler never sees."""

from collections.abc import Iterable

import numpy as np

from aie_engine.batch import Int32Array
from aie_engine.constraints import ConstrainedAnswer
from aie_engine.drafting import Guessing
from aie_engine.errors import fault_info
from aie_engine.forms import FormGuessing
from aie_engine.params import SamplingParams
from aie_engine.requests import ErrorInfo, FinishReason, GenerateRequest, TokenLogprobs
from aie_engine.sampling import SampleRow
from aie_tensor import MemoryPool, Owner

__all__ = ["Generation"]

_NO_TOKENS: Int32Array = np.empty(0, np.int32)


class Generation:
    """Token ids from `pool`, prompt and answer together; given back by `close`. Raises `OutOfMemoryError`."""

    __slots__ = (
        "_memory", "constraint", "fault", "guessing", "max_tokens", "num_cached", "num_prompt",
        "num_to_score", "num_tokens", "params", "prompt_logprobs", "request_id", "row", "stop_ids", "tokens",
    )  # fmt: skip

    def __init__(
        self,
        request: GenerateRequest,
        params: SamplingParams,
        eos_token_ids: Iterable[int],
        pool: MemoryPool,
        *,
        constraint: ConstrainedAnswer | None = None,
        guesses: bool = False,
    ) -> None:
        self.request_id = request.request_id
        self.params = params
        self.num_prompt = self.num_tokens = len(request.prompt_ids)
        self.max_tokens = self.num_prompt + params.max_tokens
        self.num_cached = -1  # tokens of the prompt that the prefix cache spared; -1: not admitted yet
        self.num_to_score = 0 if params.prompt_logprobs is None else self.num_prompt - 1
        self.prompt_logprobs: list[TokenLogprobs] = []  # computed, and not told yet
        self.constraint = constraint  # the form that the answer must have
        self.fault: ErrorInfo | None = None  # why it cannot go on, to be told by whoever ends it
        self.guessing: Guessing | FormGuessing | None = None
        if guesses:
            self.guessing = Guessing() if constraint is None else FormGuessing(constraint)
        self._memory = pool.allocate(4 * self.max_tokens, owner=Owner("token ids", request_id=request.request_id))
        self.tokens: Int32Array = self._memory.array(np.int32, self.max_tokens)  # prompt, then what was sampled
        self.tokens[: self.num_prompt] = request.prompt_ids
        self.stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else set(eos_token_ids))
        self.row = SampleRow(params, self.num_tokens, self.tokens, self.num_prompt, self.stop_ids)  # of the next token

    def block_content(self, index: int, block_size: int) -> bytes:
        """Token ids of the index-th block, by which the prefix cache knows it."""
        return self.tokens[index * block_size : (index + 1) * block_size].tobytes()

    def append(self, token_id: int) -> FinishReason | None:
        """Take the next token; says whether it was the last. One that the answer's form cannot follow is not taken:
        `fault` says why."""
        is_stop = token_id in self.stop_ids
        is_complete = self.constraint is not None and not is_stop and self._follow(self.constraint, token_id)
        if self.fault is not None:
            return None
        self.tokens[self.num_tokens] = token_id
        self.num_tokens += 1
        self.row.position = self.num_tokens
        if is_stop or is_complete:
            return "stop"
        return "length" if self.num_tokens == self.max_tokens else None

    def look_ahead(self, num_guesses: int) -> None:
        """A step begins that samples the next token and checks so many guesses behind it: the masks of what the
        answer's form allows are computed while the model runs."""
        if self.constraint is not None:
            self.constraint.look_ahead(self.tokens[self.num_tokens : self.num_tokens + num_guesses].tolist())

    def next_rows(self, num_guesses: int) -> list[SampleRow]:
        """The rows of the next token and of those behind the guesses, with their masks, for which it waits if it must.
        After `look_ahead` of as many."""
        rows = [self.row]
        if num_guesses:
            behind = self.num_tokens + 1
            rows += [self.row.at(position) for position in range(behind, behind + num_guesses)]
        if self.constraint is not None:
            try:
                for row, mask in zip(rows, self.constraint.masks(), strict=True):
                    row.mask = mask
            except Exception as error:  # of this request's form, and of no other's concern
                self.fault, self.row.mask = fault_info(error), None
        return rows

    def _follow(self, constraint: ConstrainedAnswer, token_id: int) -> bool:
        """Tell the form what came; says whether the answer is complete."""
        try:
            constraint.accept(token_id)
        except Exception as error:
            self.fault = fault_info(error)
        return constraint.is_done

    def close(self) -> None:
        """Give the memory back: the request has ended."""
        self.guessing = None
        if self.constraint is not None:
            self.constraint.close()
            self.row.mask = None
        self.tokens = self.row.tokens = _NO_TOKENS
        self._memory.release()
