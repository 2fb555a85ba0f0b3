"""A request's way into the core: a generation for its token ids, a place in the scheduler's queue."""

import random
from collections.abc import Collection

from aie_engine.constraints import ConstrainedAnswer
from aie_engine.generation import Generation
from aie_engine.requests import GenerateRequest
from aie_scheduler import BlockContent, Request, Scheduler
from aie_tensor import MemoryPool

__all__ = ["Admission"]


class Admission:
    """block_size: tokens in a KV block, where blocks are shared by content; None: they are not. speculates: whether
    answers may be guessed ahead. seed: of the draws of requests that name no seed."""

    def __init__(
        self,
        scheduler: Scheduler,
        pool: MemoryPool,
        *,
        eos_token_ids: Collection[int],
        block_size: int | None,
        speculates: bool,
        seed: int,
    ) -> None:
        self._scheduler = scheduler
        self._pool = pool
        self._eos_token_ids = frozenset(eos_token_ids)
        self._block_size = block_size
        self._speculates = speculates
        self._seeds = random.Random(seed)

    def admit(self, request: GenerateRequest, now: float, constraint: ConstrainedAnswer | None = None) -> Generation:
        """Queue `request`. constraint: the form that its answer must have. Raises what the scheduler raises, and
        `OutOfMemoryError`; then nothing of it is left."""
        params = request.sampling
        if params.seed is None:
            params = params.with_seed(self._seeds.getrandbits(63))
        member = Generation(
            request, params, self._eos_token_ids, self._pool, constraint=constraint, guesses=self._speculates
        )
        try:
            self._scheduler.add(
                Request(
                    request_id=request.request_id,
                    prompt_len=member.num_prompt,
                    max_tokens=params.max_tokens,
                    priority=request.priority,
                    arrival_s=now,
                    deadline_s=request.deadline_s,
                    client=request.client,
                    cache_salt=request.cache_salt,
                    block_content=self._content_of(member),
                )
            )
        except BaseException:
            member.close()
            raise
        return member

    def _content_of(self, member: Generation) -> BlockContent | None:
        size = self._block_size
        # Who wants every token of the prompt scored needs every one of its rows computed.
        if size is None or member.params.prompt_logprobs is not None:
            return None
        return lambda index: member.block_content(index, size)
