"""An engine around another one: the guards of this stage change a few answers and pass on the rest."""

from collections.abc import Mapping, Sequence

from aie_engine import EngineClient, EngineInfo, EngineStats, Explanation, GenerateRequest, TokenStream

__all__ = ["WrappedEngine"]


class WrappedEngine:
    """An `EngineClient` that asks the one inside. `_engine` may be exchanged while it runs."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def is_alive(self) -> bool:
        return self._engine.is_alive

    def submit(self, request: GenerateRequest) -> TokenStream:
        return self._engine.submit(request)

    def cancel(self, request_id: str) -> None:
        self._engine.cancel(request_id)

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def memory(self) -> Mapping[str, object]:
        return self._engine.memory()

    def explain(self, request_ids: Sequence[str] | None = None, *, num_ended: int = 0) -> Explanation:
        return self._engine.explain(request_ids, num_ended=num_ended)

    def close(self, timeout_s: float = 10.0) -> None:
        self._engine.close(timeout_s)
