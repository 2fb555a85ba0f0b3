"""Models that answer at once, as they are served: an engine's predictor, what stands around it, and a name."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from aie_engine import InvalidInputError, PredictorClient
from aie_engine.processing import Pipeline, Reader
from aie_server.errors import ModelNotFoundError
from aie_server.served import ModelTable

__all__ = ["PredictorTable", "ServedPredictor"]

_UNUSUAL = 10  # times what a batch usually takes


@dataclass(frozen=True)
class ServedPredictor:
    """One model behind one name. It does not own its predictor: whoever made that closes it, after the server."""

    name: str
    predictor: PredictorClient
    pipeline: Pipeline
    created: int = field(default_factory=lambda: int(time.time()))
    version: str = "1"

    @cached_property
    def reader(self) -> Reader:
        return Reader(self.pipeline)

    def why_ill(self, max_batch_age_s: float) -> str | None:
        """Why a request would not be served now; None: it would. A worker may be alive and yet do nothing: stopped,
        swapped out, or in a computation without end. Suspicious is what takes much longer than is usual here."""
        if not self.predictor.is_alive:
            return f"the predictor of {self.name} is not running"
        stats = self.predictor.stats()
        if stats.stuck_s > max(max_batch_age_s, _UNUSUAL * stats.usual_batch_s):
            return f"the predictor of {self.name} has not finished a batch for {stats.stuck_s:.0f} s"
        return None

    @property
    def can_rerank(self) -> bool:
        return self.reader.scores_pairs or (self.pipeline.reads == "text" and self.reader.gives_vectors)


class PredictorTable:
    """The predictors of a server by name, in the order given. Never changed: predictors are not loaded or unloaded
    while the server answers.

    generators: the models beside them, so that asking one of those for what it cannot do is told apart from a typo.
    """

    def __init__(self, predictors: Sequence[ServedPredictor], generators: ModelTable) -> None:
        self._by_name: Mapping[str, ServedPredictor] = {model.name: model for model in predictors}
        self._generators = generators
        if len(self._by_name) != len(predictors) or any(model.name in self._by_name for model in generators):
            raise InvalidInputError("Two models have the same name; give each its own.")
        generators.beside = tuple(self._by_name)

    def __iter__(self) -> Iterator[ServedPredictor]:
        return iter(self._by_name.values())

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> ServedPredictor:
        """Raises `ModelNotFoundError` that lists the names there are."""
        found = self._by_name.get(name)
        if found is not None:
            return found
        there = f"of its kind there is {', '.join(self._by_name)}" if self._by_name else "none of its kind is served"
        what = "generates text and does nothing else here" if self._generates(name) else "does not exist here"
        raise ModelNotFoundError(f"The model {name[:200]!r} {what}; {there}.", param="model")

    def find(self, name: str | None, can: Callable[[ServedPredictor], bool], what: str) -> ServedPredictor:
        """The model of this name, or the first that `can`. Raises `ModelNotFoundError`, and `InvalidInputError` for
        one that cannot do it. what: the thing done, such as "embeddings"."""
        able = [model.name for model in self if can(model)]
        if name in (None, "default"):
            if not able:
                raise ModelNotFoundError(f"No model that gives {what} is served here.", param="model")
            return self._by_name[able[0]]
        assert name is not None
        model = self.get(name)
        if not can(model):
            instead = f"; {', '.join(able)} does" if able else ""
            raise InvalidInputError(f"The model {name!r} gives no {what}{instead}.", param="model")
        return model

    def _generates(self, name: str) -> bool:
        return any(model.name == name for model in self._generators)
