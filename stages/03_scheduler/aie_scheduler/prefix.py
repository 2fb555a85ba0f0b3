"""The prefix cache: equal beginnings are computed once.

Keys and values of a token depend on the tokens before it and on nothing else. So a full block can serve every sequence
that begins with the same tokens, down to the end of that block, and the block's name is all of those tokens. Writing
the name as a pair of (name of the block before, own tokens) and each name as a serial number makes it short:

    ("", tokens 0–15) → 7      (7, tokens 16–31) → 8      (8, tokens 32–47) → 9, or for another text → 12

One dict of these pairs is the whole index. It compares tokens, not only their hash, so two texts can never be taken for
one another (vLLM and SGLang had to repair that); the salt at the root keeps tenants apart, who could otherwise find out
by the clock what others ask. A serial number is never used again: when a block is handed out anew, its entry goes, and
those that continue it cannot be found any more and age out by themselves.

A block enters in two steps. At its admission a request *promises* all full blocks of its known tokens; when a step
that computed one has succeeded, `fill` makes it *ready*, and only then can others share it. Whoever arrives meanwhile
and would begin with promised blocks waits for the last of them instead of computing the same once more: so a burst
with one system prompt, or the `n` choices of one request, share a prefill that is still under way. If the one who
promised leaves without having kept it, those who wait go on by themselves.

The last known token is never taken from the cache: its row must be computed, since the next token is sampled from it.
A prompt that is cached whole therefore recomputes its last block, in a block of its own: what is shared is only read.

Cost: one dict look-up per block and request, nothing for a step that fills no block.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from aie_scheduler.blocks import BlockAllocator
from aie_scheduler.request import NEVER, SequenceState

__all__ = ["CachedBlock", "PrefixCache"]

_Parent = int | tuple[str, str]  # serial of the block before, or (model, salt) for a first block
_Key = tuple[_Parent, bytes]
_NONE = -1


@dataclass(slots=True, eq=False)
class CachedBlock:
    """An entry: the name of a full block, and where its content is, if it is anywhere."""

    key: _Key
    serial: int
    leader: SequenceState | None  # who promised it; None once it is ready
    block: int = _NONE
    followers: dict[str, SequenceState] = field(default_factory=dict)  # who waits for it

    @property
    def is_ready(self) -> bool:
        """Whether its content is in the KV cache."""
        return self.block != _NONE


class PrefixCache:
    """Names of the blocks of one allocator. `on_go(states)`: these need not wait for one another's blocks any more."""

    def __init__(
        self, allocator: BlockAllocator, block_size: int, on_go: Callable[[list[SequenceState]], None]
    ) -> None:
        self._allocator = allocator
        self._block_size = block_size
        self._on_go = on_go
        self._entries: dict[_Key, CachedBlock] = {}
        self._ready: dict[int, CachedBlock] = {}  # by block
        self._serials = count()
        allocator.on_evict = self._evict

    def find(self, state: SequenceState) -> tuple[list[CachedBlock], CachedBlock | None]:
        """Ready blocks that a waiting request begins with; and, if the next is promised, the last promised in a row.

        Promises of less urgent requests do not count: nobody waits for those who are served after him.
        """
        ready: list[CachedBlock] = []
        promised: CachedBlock | None = None
        content, entries, parent = state.block_content, self._entries, _root(state)
        if content is None:
            return ready, None
        for index in range((state.num_tokens - 1) // self._block_size):
            entry = entries.get((parent, content(index)))
            if entry is None:
                break
            if not entry.is_ready:
                assert entry.leader is not None, f"an entry that nobody promised: {entry.key}"
                if entry.leader.priority > state.priority:
                    break
                promised = entry
            elif promised is None:
                ready.append(entry)
            parent = entry.serial
        return ready, promised

    def begin(self, state: SequenceState, ready: list[CachedBlock]) -> None:
        """A request starts on top of `ready`, whose blocks are in its table: promise the other full blocks."""
        content = state.block_content
        if content is None:
            return
        chain = state.chain = ready
        state.num_shared = len(ready)
        for index in range(len(ready), state.num_tokens // self._block_size):
            chain.append(self._promise(state, content(index)))
        state.next_fill = (state.num_shared + 1) * self._block_size

    def fill(self, state: SequenceState, *, may_read: bool) -> None:
        """A step that filled blocks has succeeded: they are ready. `may_read`: the request's tokens can still be read,
        so that blocks which nobody promised, being made of sampled tokens, get a name as well.
        """
        size, chain, content = self._block_size, state.chain, state.block_content
        assert content is not None, f"{state.request_id} has no contents"
        for index in range(state.next_fill // size - 1, state.num_computed // size):
            if index == len(chain):
                if not may_read:
                    state.next_fill = NEVER
                    return
                chain.append(self._promise(state, content(index)))
            if not self._publish(chain[index], state.block_table[index]):
                state.next_fill = NEVER
                return
        state.next_fill = (state.num_computed // size + 1) * size

    def leave(self, state: SequenceState, *, is_sound: bool = True) -> None:
        """A running request gives up its blocks: what it promised and did not compute is void. `is_sound` False: what
        it did compute is not to be trusted, and nobody will find it any more.
        """
        free: list[SequenceState] = []
        for index, entry in enumerate(state.chain):
            if entry.leader is state:
                del self._entries[entry.key]
                free += self._void(entry)
            elif not is_sound and index >= state.num_shared and entry.block == state.block_table[index]:
                self._allocator.discard(entry.block)
                self._evict(entry.block)
        state.chain, state.num_shared, state.next_fill = [], 0, NEVER
        if free:
            self._on_go(free)

    def wait(self, state: SequenceState, entry: CachedBlock) -> None:
        """A waiting request goes on when `entry` is ready, or will never be."""
        entry.followers[state.request_id] = state
        state.awaits = entry

    def stop_waiting(self, state: SequenceState) -> None:
        """It was cancelled or ran out of time."""
        if state.awaits is not None:
            del state.awaits.followers[state.request_id]
            state.awaits = None

    def _promise(self, state: SequenceState, content: bytes) -> CachedBlock:
        """The entry for the next block of a chain; a new one if there is none."""
        key: _Key = (state.chain[-1].serial if state.chain else _root(state), content)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = CachedBlock(key, next(self._serials), state)
        return entry

    def _publish(self, entry: CachedBlock, block: int) -> bool:
        """A block with this content has been computed. False if the name has gone to another entry meanwhile, so that
        what continues this one cannot be found.
        """
        if self._entries.setdefault(entry.key, entry) is not entry:
            return False
        if not entry.is_ready:  # else somebody else has the same content too; one is enough
            entry.block = block
            self._ready[block] = entry
            self._allocator.keep(block)
            free = self._void(entry)
            if free:
                self._on_go(free)
        return True

    def _void(self, entry: CachedBlock) -> list[SequenceState]:
        """The promise is kept or broken; returns who waited for it, in order."""
        entry.leader = None
        free = [*entry.followers.values()]
        entry.followers.clear()
        for state in free:
            state.awaits = None
        return free

    def _evict(self, block: int) -> None:
        entry = self._ready.pop(block)
        entry.block = _NONE
        del self._entries[entry.key]


def _root(state: SequenceState) -> _Parent:
    return (state.model, state.cache_salt)
