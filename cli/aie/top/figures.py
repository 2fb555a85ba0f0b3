"""The figures of a server's models at one moment, and what happened between two."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from aie.top.names import COUNTERS, GAUGES, GPU, HISTOGRAMS, PHASES, Dialect, dialect_of
from aie.top.prometheus import Buckets, Scrape
from aie.top.words import printable

__all__ = ["PREDICTION_PHASES", "Figures", "Model", "Rates", "figures_of", "rates"]

PREDICTION_PHASES = ("pre", "queue", "compute", "post")
_ONE_RANK = {"tp_rank": "0"}  # processes that share one model count the same requests: the first tells


@dataclass(frozen=True, slots=True)
class Model:
    """One model. Gauges are of now, counters and histograms since the server's start; what it does not tell is not
    there."""

    name: str
    gauges: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, Buckets] = field(default_factory=dict)
    cuts: Mapping[str, float] = field(default_factory=dict)  # of a predictor: batches by why they were cut
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds, summed over its requests

    @property
    def is_predictor(self) -> bool:
        return "inputs_waiting" in self.gauges


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one look at a server."""

    server: str  # whose it is, as far as its metrics tell
    models: Mapping[str, Model]
    front_memory: float | None = None  # bytes of the process that answers
    gpu: Mapping[str, float] = field(default_factory=dict)  # as in `names.GPU`: a mean of ratios, sums of the rest


@dataclass(frozen=True, slots=True)
class Rates:
    """What happened to a model in `seconds`; without seconds, since the server's start."""

    seconds: float | None
    grown: Mapping[str, float]  # by how much each counter grew
    histograms: Mapping[str, Buckets]
    cuts: Mapping[str, float]
    phases: Mapping[str, float] = field(default_factory=dict)

    def per_s(self, counter: str) -> float | None:
        return self.grown[counter] / self.seconds if self.seconds and counter in self.grown else None

    def share(self, part: str, whole: str) -> float | None:
        """0 to 1; None where nothing happened."""
        total = self.grown.get(whole)
        return self.grown[part] / total if total and part in self.grown else None

    def quantile_ms(self, histogram: str, q: float) -> float | None:
        found = self.histograms.get(histogram)
        value = None if found is None else found.quantile(q)
        return None if value is None else value * 1e3


def figures_of(scrape: Scrape) -> Figures | None:
    """None for metrics of something that serves no models."""
    dialect = dialect_of(scrape)
    if dialect is None:
        return None
    names = sorted(
        {
            labels.get(dialect.model_label, "")
            for name, samples in scrape.samples.items()
            if name.startswith(dialect.prefix)
            for labels, _ in samples
        }
    )
    models = {printable(name): _model(scrape, dialect, name) for name in names}
    models = {name: model for name, model in models.items() if model.gauges or model.counters}
    if len(models) > 1:  # figures of the server itself have no model
        models.pop("", None)
    memory = scrape.total(f"{dialect.prefix}process_resident_memory_bytes")
    memory = memory or scrape.total("process_resident_memory_bytes")
    return Figures(dialect.server, models, memory, _gpu(scrape, dialect))


def rates(before: Model | None, now: Model, seconds: float | None) -> Rates:
    """Between two looks; before: None for all since the server's start. A counter that fell was begun anew, by a server
    that was started again."""
    if before is None or not seconds:
        return Rates(None, now.counters, now.histograms, now.cuts, now.phases)
    return Rates(
        seconds,
        {key: _growth(before.counters.get(key, 0.0), value) for key, value in now.counters.items()},
        {key: buckets.since(before.histograms.get(key)) for key, buckets in now.histograms.items()},
        {key: _growth(before.cuts.get(key, 0.0), value) for key, value in now.cuts.items()},
        {key: _growth(before.phases.get(key, 0.0), value) for key, value in now.phases.items()},
    )


def _growth(before: float, now: float) -> float:
    return now - before if now >= before else now


def _model(scrape: Scrape, dialect: Dialect, name: str) -> Model:
    labels = {dialect.model_label: name, **_ONE_RANK}

    def values(of: Mapping[str, tuple[str, ...]]) -> dict[str, float]:
        found = {key: dialect.find(scrape, names) for key, names in of.items()}
        totals = {key: _total(scrape, one, labels) for key, one in found.items() if one is not None}
        return {key: value for key, value in totals.items() if value is not None}

    gauges = values(GAUGES)
    for state, blocks in scrape.by(f"{dialect.prefix}kv_blocks", "state", **labels).items():
        gauges[f"blocks_{state}"] = blocks
    histograms = {}
    for key, names in HISTOGRAMS.items():
        found = dialect.find(scrape, tuple(f"{one}_bucket" for one in names))
        if found is not None and (buckets := scrape.buckets(found.removesuffix("_bucket"), **labels)) is not None:
            histograms[key] = buckets
    phases = values(PHASES)
    for phase in PREDICTION_PHASES:
        name_of_phases = f"{dialect.prefix}prediction_phase_seconds"
        buckets = scrape.buckets(name_of_phases, phase=phase, **labels)
        if buckets is not None:
            histograms[phase] = buckets
        if (seconds := scrape.total(f"{name_of_phases}_sum", phase=phase, **labels)) is not None:
            phases[phase] = seconds
    cuts = scrape.by(f"{dialect.prefix}prediction_batches_total", "reason", **labels)
    counters = _with_queries(values(COUNTERS), dialect)
    return Model(printable(name), gauges, counters, histograms, cuts, phases)


def _total(scrape: Scrape, name: str, labels: Mapping[str, str]) -> float | None:
    total = scrape.total(name, **labels)
    return total * 1e-6 if total is not None and name.endswith("_us") else total


def _with_queries(counters: dict[str, float], dialect: Dialect) -> dict[str, float]:
    """Where a server counts prompt tokens from the cache but not those that were looked up: all of them were.
    llama-server counts only the others as prompt tokens."""
    if "hits" in counters and "hit_queries" not in counters and "prompt_tokens" in counters:
        cached = counters["hits"] if dialect.server == "llama-server" else 0.0
        counters["hit_queries"] = counters["prompt_tokens"] + cached
    return counters


def _gpu(scrape: Scrape, dialect: Dialect) -> dict[str, float]:
    found = {key: dialect.find(scrape, names) for key, names in GPU.items()}
    values = {key: [value for _, value in scrape.of(name)] for key, name in found.items() if name is not None}
    return {key: sum(each) / len(each) if key == "utilisation" else sum(each) for key, each in values.items() if each}
