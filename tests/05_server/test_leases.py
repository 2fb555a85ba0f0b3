"""A model is exchanged under requests: each ends on the version it began with, and that one is let go of afterwards."""

import threading
from typing import Any

import pytest

from aie_server import ModelNotFoundError, ModelTable, ServedModel


def model(name: str = "m", version: str = "1") -> ServedModel:
    engine: Any = object()
    text: Any = object()
    return ServedModel(name, engine, text, version=version)


def exchange(table: ModelTable, new: ServedModel) -> list[str]:
    """Puts `new` in place; the list gets a word when the old one is unused."""
    words: list[str] = []
    old = table.put(new)
    assert old is not None
    old.retire(lambda: words.append(f"{old.model.version} is unused"))
    return words


def test_nobody_uses_it() -> None:
    assert exchange(ModelTable([model()]), model(version="2")) == ["1 is unused"]


def test_the_last_lease_decides() -> None:
    table = ModelTable([model()])
    first = table.lease("m")
    shared = first.share()
    words = exchange(table, model(version="2"))
    with table.lease(None) as later:
        assert later.model.version == "2"
    with first:
        pass
    first.close()
    assert words == [] and shared.model.version == "1"
    shared.close()
    assert words == ["1 is unused"]


def test_all_of_them_at_once() -> None:
    table = ModelTable([model("a"), model("b")])
    with table.lease_all() as models:
        words = exchange(table, model("a", "2"))
        assert [m.version for m in models] == ["1", "1"] and words == []
    assert words == ["1 is unused"]


def test_the_order_is_kept_and_the_first_is_the_default() -> None:
    table = ModelTable([model("a"), model("b")])
    table.put(model("a", "2")), table.put(model("c"))
    assert [m.name for m in table] == ["a", "b", "c"] and table.default.version == "2"
    table.remove("a")
    assert table.default.name == "b" and table.lease("default").model.name == "b"
    with pytest.raises(ModelNotFoundError, match="there is b, c"):
        table.lease("a")
    table.remove("b"), table.remove("c")
    with pytest.raises(ModelNotFoundError, match="No model is loaded"):
        table.lease(None)


def test_many_threads_and_many_versions() -> None:
    """Every lease is on a version that is not unused yet, and in the end all but the last are unused."""
    table = ModelTable([model(version="0")])
    unused: set[str] = set()
    wrong: list[str] = []

    def ask() -> None:
        for _ in range(300):
            with table.lease("m") as lease:
                if lease.model.version in unused:
                    wrong.append(lease.model.version or "")

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(1, 200):
        old = table.put(model(version=str(number)))
        assert old is not None
        old.retire(lambda version=old.model.version: unused.add(version))
    for thread in threads:
        thread.join()
    assert wrong == [] and unused == {str(number) for number in range(199)}
