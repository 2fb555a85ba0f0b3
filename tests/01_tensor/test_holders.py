"""Who holds a tensor, and which cycles do: the four classic shapes, and what must not confuse the search."""

import asyncio
import gc
import logging
import threading
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter

import pytest

from aie_tensor import MemoryPool, Tensor
from aie_tensor.memdebug.holders import cycles, holders

CACHE: dict[str, object] = {}


@pytest.fixture
def pool() -> MemoryPool:
    return MemoryPool()


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    """Garbage stays until the test has seen it."""
    CACHE.clear()
    gc.collect()
    gc.disable()
    yield
    CACHE.clear()
    gc.enable()


def make(pool: MemoryPool) -> Tensor:
    return Tensor.empty(pool, (4,), owner="activations")


class Engine:
    """Somebody with attributes."""

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self.seen: OrderedDict[str, Tensor] = OrderedDict()
        self.recent: deque[Tensor] = deque()


class Slotted:
    __slots__ = ("hidden", "unset")

    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden


class Call:
    """A request that knows its callback."""

    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden
        self.on_done: Callable[[], object] | None = None


class Buffer(logging.Handler):
    """Keeps what it was to print."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.buffer.append(record)


def chain_of(thing: object) -> str:
    """The first chain."""
    return str(holders(thing)[0])


def one_of(kind: type) -> object:
    """An instance that lives, found as a tool finds it."""
    (found,) = [thing for thing in gc.get_objects() if isinstance(thing, kind)]
    return found


def fail(pool: MemoryPool) -> None:
    hidden = make(pool)
    raise ValueError(hidden.nbytes)


def test_an_error_in_a_list_with_its_traceback(pool: MemoryPool) -> None:
    engine = Engine()
    try:
        fail(pool)
    except ValueError as error:
        engine.failures.append(error)
    chain = holders(one_of(Tensor))[0]
    line = fail.__code__.co_firstlineno + 2
    assert str(chain) == (
        f"{chain.root} → Engine.failures[0] → ValueError traceback → "
        f"tests/01_tensor/test_holders.py:{line} in fail, local 'hidden' → Tensor"
    )
    assert chain.root.endswith("in test_an_error_in_a_list_with_its_traceback, local 'engine'")
    assert chain.types[-1] == "Tensor"


def test_a_cache_in_a_module(pool: MemoryPool) -> None:
    CACHE["r-17"] = make(pool)
    assert chain_of(CACHE["r-17"]) == f"module {__name__}.CACHE['r-17'] → Tensor"


def test_a_log_handler_that_keeps_records(pool: MemoryPool) -> None:
    log, handler = logging.Logger("drill"), Buffer()
    log.addHandler(handler)
    for _ in range(3):
        log.info("nothing")
    log.info("request %s: %s", "r-1", make(pool))
    assert chain_of(one_of(Tensor)).endswith("local 'handler' → Buffer.buffer[3] → LogRecord.args[1] → Tensor")


def test_a_call_and_its_callback(pool: MemoryPool) -> None:
    def serve() -> None:
        call = Call(make(pool))
        call.on_done = lambda: call

    for _ in range(3):
        serve()
    (cycle,) = cycles((Tensor,))
    name = "test_a_call_and_its_callback.<locals>.serve.<locals>.<lambda>"
    assert cycle.text == f"Call.on_done → function {name} closure variable 'call' → Call"
    assert (cycle.holds, cycle.count, cycle.reachable) == ("Call.hidden → Tensor", 3, False)
    assert cycle.members == ("Call", f"function {name}")
    assert str(cycle) == f"{cycle.text}; holds Call.hidden → Tensor (3 like it)"
    leaked = next(thing for thing in gc.get_objects() if isinstance(thing, Tensor))
    assert holders(leaked) == []  # nobody but the cycle, and whoever asks
    del leaked
    gc.collect()
    assert cycles((Tensor,)) == []
    assert pool.stats().num_live == 0


def test_a_cycle_that_somebody_uses_is_told_from_garbage(pool: MemoryPool) -> None:
    call = Call(make(pool))
    call.on_done = partial(print, call)
    (cycle,) = cycles((Tensor,))
    assert cycle.reachable
    assert cycle.text == "Call.on_done → partial.args[0] → Call"
    call.on_done = None
    assert cycles((Tensor,)) == []


@pytest.mark.parametrize(
    ("hold", "expected"),
    [
        (Slotted, "Slotted.hidden → Tensor"),
        (lambda tensor: {("kv", 3): [tensor]}, "['kv', 3][0] → Tensor"),
        (lambda tensor: {tensor}, " member → Tensor"),
        (lambda tensor: partial(print, out=tensor), "partial.keywords['out'] → Tensor"),
        (lambda tensor: types.SimpleNamespace(hidden=tensor), "SimpleNamespace.hidden → Tensor"),
        (lambda tensor: lambda: tensor, "<lambda> closure variable 'tensor' → Tensor"),
        (lambda tensor: lambda kept=tensor: kept, "<lambda> default[0] → Tensor"),
        (attrgetter("release"), "method Tensor.release.__self__ → Tensor"),
    ],
)
def test_ways_to_hold(pool: MemoryPool, hold: Callable[[Tensor], object], expected: str) -> None:
    CACHE["it"] = hold(make(pool))
    (chain,) = holders(one_of(Tensor))
    assert str(chain).startswith(f"module {__name__}.CACHE['it']")
    assert str(chain).endswith(expected)


def test_a_suspended_generator(pool: MemoryPool) -> None:
    def stream() -> Iterator[int]:
        hidden = make(pool)
        yield 1
        hidden.release()

    CACHE["stream"] = steps = stream()
    next(steps)
    (chain,) = holders(one_of(Tensor))
    assert str(chain).endswith("generator, local 'hidden' → Tensor")


def test_a_class_and_a_thread(pool: MemoryPool) -> None:
    class Registry:
        last = make(pool)

    assert chain_of(Registry.last) == f"class {__name__}.{Registry.__qualname__}.last → Tensor"
    ready, done = threading.Event(), threading.Event()

    def work(engine: Engine) -> None:
        engine.recent.append(make(pool))
        ready.set()
        done.wait()

    thread = threading.Thread(target=lambda: work(Engine()))
    thread.start()
    ready.wait()
    try:
        held = next(thing for thing in gc.get_objects() if isinstance(thing, Tensor) and thing is not Registry.last)
        assert chain_of(held).endswith("<locals>.work, local 'engine' → Engine.recent[0] → Tensor")
    finally:
        done.set()
        thread.join()


def test_the_allocation_behind_a_tensor(pool: MemoryPool) -> None:
    CACHE["r-1"] = Slotted(make(pool))
    (allocation,) = [thing for thing in gc.get_objects() if type(thing).__name__ == "Allocation"]
    assert chain_of(allocation).endswith("CACHE['r-1'] → Slotted.hidden → Tensor._allocation → Allocation")


def test_asking_leaves_nothing_behind(pool: MemoryPool) -> None:
    """Looking at a frame's locals must not keep them alive."""
    hidden = make(pool)
    CACHE["r-1"] = [hidden]
    assert len(holders(hidden)) == 1
    assert cycles((Tensor,)) == []
    CACHE.clear()
    del hidden
    assert pool.stats().num_live == 0


def test_the_answer_is_the_same_each_time_and_bounded(pool: MemoryPool) -> None:
    hidden = make(pool)
    kinds = [type(f"Holder{number}", (), {"kept": hidden}) for number in range(20)]
    first, second = [str(chain) for chain in holders(hidden)], [str(chain) for chain in holders(hidden)]
    assert first == second == sorted(first)
    assert len(first) == 8
    assert first[0] == f"class {kinds[0].__module__}.Holder0.kept → Tensor"
    assert holders(hidden, max_depth=1) == []


class Hostile:
    """Fails at every question."""

    def __init__(self, held: object) -> None:
        object.__getattribute__(self, "__dict__")["held"] = held

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(name)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("==")

    __hash__ = None  # type: ignore[assignment]


class HostileDict(dict[str, object]):
    """A dictionary that cannot be asked by its own methods."""

    def get(self, *args: object) -> object:
        raise RuntimeError("get")

    def items(self) -> object:  # type: ignore[override]
        raise RuntimeError("items")

    def __contains__(self, key: object) -> bool:
        raise RuntimeError("in")


class HostileList(list[object]):
    def __iter__(self) -> Iterator[object]:
        raise RuntimeError("iter")


class HostileKey(str):
    __slots__ = ()

    def __repr__(self) -> str:
        raise RuntimeError("repr")


def test_objects_that_fail_at_every_question_are_walked_through(pool: MemoryPool) -> None:
    CACHE["it"] = HostileList([HostileDict({HostileKey("k"): Hostile(make(pool))})])
    (tensor,) = [thing for thing in gc.get_objects() if type(thing) is Tensor]
    assert chain_of(tensor) == f"module {__name__}.CACHE['it'][0][HostileKey] → Hostile.held → Tensor"
    assert cycles((Tensor,)) == []


def test_a_waiting_task(pool: MemoryPool) -> None:
    async def serve(hidden: Tensor) -> None:
        await asyncio.sleep(3600)

    async def main() -> list[str]:
        task = asyncio.create_task(serve(make(pool)))
        await asyncio.sleep(0)
        (tensor,) = [thing for thing in gc.get_objects() if type(thing) is Tensor]
        chains = [str(chain) for chain in holders(tensor)]
        task.cancel()
        return chains

    first, *_ = asyncio.run(main())
    assert "local 'task' → Task" in first
    assert first.endswith("coroutine, local 'hidden' → Tensor")


def test_what_a_cycle_holds_is_named_alike_when_its_members_have_real_dictionaries(pool: MemoryPool) -> None:
    """An instance gets a dictionary of its attributes only when somebody asks for it, as a debugger does."""

    class Node:
        def __init__(self) -> None:
            self.tensor = Tensor.empty(pool, (4,))
            self.me = [self]

    node = Node()
    assert node.__dict__["me"] == [node]
    del node
    (cycle,) = cycles((Tensor,))
    assert cycle.holds.endswith(".Node.tensor → Tensor")
    gc.collect()
