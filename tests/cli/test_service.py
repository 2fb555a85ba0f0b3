"""What is left when a service has been closed."""

import multiprocessing
from types import SimpleNamespace
from typing import Any

import pytest

from aie.service import Service


@pytest.mark.parametrize("fault", [None, OSError("the engine could not be closed")])
def test_a_worker_that_still_loads_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, fault: OSError | None) -> None:
    order: list[str] = []

    def close_models() -> None:
        order.append("models")
        if fault is not None:
            raise fault

    worker: Any = SimpleNamespace(kill=lambda: order.append("kill"))
    monkeypatch.setattr(multiprocessing, "active_children", lambda: [worker])
    server: Any = SimpleNamespace(close=lambda: order.append("server"))
    models: Any = SimpleNamespace(close=close_models)
    gate: Any = SimpleNamespace()
    service = Service(server, gate, models)
    if fault is None:
        service.close()
    else:
        with pytest.raises(OSError, match="could not be closed"):
            service.close()
    assert order == ["server", "models", "kill"]
