"""What the command line of `aie bench` says, checked as a whole before anything is sent or started."""

from dataclasses import dataclass
from pathlib import Path

from aie.bench.arrivals import ArrivalKind, Arrivals, Rate, parse_rates
from aie.bench.slo import Slo, parse_slo
from aie.bench.workload import LENGTHS, Cancel, parse_cancel, parse_lengths
from aie_engine import InvalidInputError

__all__ = ["ENDPOINTS", "GENERATE", "BenchOptions"]

ENDPOINTS = ("completions", "chat", "embeddings", "infer", "predict")
GENERATE = ("completions", "chat")
_PROMPT = (64, 192)  # tokens, to models that generate
_SENTENCE = (3, 176)  # tokens; lognormal: around 23, with a mean of 30
_SENTENCE_MEAN = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """As typed; None where nothing was said. Raises `InvalidInputError` that names the option."""

    url: str | None = None
    model: str | None = None
    endpoint: str = "completions"
    concurrency: str | None = None
    rate: str | None = None
    arrivals: str = "poisson"
    burstiness: float = 1.0
    max_in_flight: int | None = None
    requests: int | None = None
    duration: float | None = None
    lengths: str | None = None
    input_tokens: str | None = None
    output_tokens: str = "32-96"
    shared_prefix: int = 0
    cancel: str | None = None
    slo: str | None = None
    find_max: bool = False
    repeat: int = 1
    seed: int = 0
    timeout_s: float = 300.0
    api_key: str | None = None
    serve_args: str = ""
    rows_path: Path | None = None

    def __post_init__(self) -> None:
        for flag, value, known in (("endpoint", self.endpoint, ENDPOINTS), ("lengths", self.shape, LENGTHS)):
            if value not in known:
                raise InvalidInputError(f"--{flag} is {value!r}; choose {', '.join(known)}.", param=flag)
        self._check_numbers()
        self._check_together()
        _ = self.levels, self.rates, self.bounds, self.output_bounds, self.promise, self.leaving  # each checks itself
        Arrivals(Rate(1.0, 1.0), self.kind, self.burstiness)

    @property
    def generates(self) -> bool:
        """Whether the model under test generates text."""
        return self.endpoint in GENERATE

    @property
    def shape(self) -> str:
        """How lengths are distributed."""
        return self.lengths or ("uniform" if self.generates else "lognormal")

    @property
    def bounds(self) -> tuple[int, int]:
        """Of prompts or texts, in tokens."""
        if self.input_tokens is not None:
            return parse_lengths(self.input_tokens, param="input-tokens")
        if self.generates:
            return _PROMPT
        return (_SENTENCE_MEAN, _SENTENCE_MEAN) if self.shape == "fixed" else _SENTENCE

    @property
    def output_bounds(self) -> tuple[int, int]:
        """Of answers, in tokens."""
        return parse_lengths(self.output_tokens, param="output-tokens")

    @property
    def levels(self) -> list[int]:
        """Of the closed loop."""
        return _parse_levels(self.concurrency or "1,8,32")

    @property
    def rates(self) -> list[Rate]:
        """Of the open loop; empty in the closed one."""
        return [] if self.rate is None else parse_rates(self.rate)

    @property
    def test(self) -> dict[str, object]:
        """What makes two tests the same one, for `--json`: all that was asked of the server but the levels."""
        found: dict[str, object] = {"input_tokens": list(self.bounds), "requests": self.requests,
                                    "duration_s": self.duration}  # fmt: skip
        if self.generates:
            found |= {"output_tokens": list(self.output_bounds), "shared_prefix": self.shared_prefix,
                      "cancel": self.cancel}  # fmt: skip
        if self.rate is not None:
            found |= {"arrivals": self.arrivals, "max_in_flight": self.max_in_flight}
            if self.arrivals == "gamma":
                found["burstiness"] = self.burstiness
        return found

    @property
    def kind(self) -> ArrivalKind:
        return self.arrivals  # type: ignore[return-value]  # `Arrivals` checks it

    @property
    def promise(self) -> Slo | None:
        return None if self.slo is None else parse_slo(self.slo)

    @property
    def leaving(self) -> Cancel | None:
        return None if self.cancel is None else parse_cancel(self.cancel)

    def _check_numbers(self) -> None:
        if self.requests is not None and self.requests < 1:
            raise InvalidInputError("--requests must be at least 1.", param="requests")
        if self.duration is not None and not 0 < self.duration < 1e6:
            raise InvalidInputError("--duration must be positive, in seconds.", param="duration")
        if not 0 < self.timeout_s < 1e9:
            raise InvalidInputError("--timeout-s must be positive.", param="timeout-s")
        if self.max_in_flight is not None and self.max_in_flight < 1:
            raise InvalidInputError("--max-in-flight must be at least 1.", param="max-in-flight")
        if not 1 <= self.repeat <= 100:
            raise InvalidInputError("--repeat must be from 1 to 100.", param="repeat")

    def _check_together(self) -> None:
        """Options that contradict each other, or ask for what the other kind of test has."""
        if self.url is not None and self.serve_args:
            raise InvalidInputError("--serve-args is for the server that the test starts; it does not go with --url.")
        if self.rate is not None and self.concurrency is not None:
            raise InvalidInputError(
                "--rate sends requests when they are due, --concurrency when others have been answered; give one.",
                param="rate",
            )
        if self.max_in_flight is not None and self.rate is None and not self.find_max:
            raise InvalidInputError("--max-in-flight goes with --rate; without it use --concurrency.")
        if self.find_max and self.slo is None:
            raise InvalidInputError("--find-max needs --slo, such as --slo ttft_p99<500ms,tpot_p99<50ms.", param="slo")
        if self.find_max and (self.rate is not None or self.concurrency is not None):
            raise InvalidInputError("--find-max chooses the rates itself; leave --rate and --concurrency out.")
        if self.find_max and self.repeat > 1:
            raise InvalidInputError("--find-max runs every rate once; leave --repeat out.", param="repeat")
        if self.generates:
            return
        if self.url is None and self.model is None:
            raise InvalidInputError(
                f"--endpoint {self.endpoint} needs a model that answers at once; name one, such as --model minilm-l6.",
                param="model",
            )
        only = {"--shared-prefix": self.shared_prefix, "--rate": self.rate, "--cancel": self.cancel, "--slo": self.slo,
                "--rows": self.rows_path, "--repeat": self.repeat > 1}  # fmt: skip
        for flag, value in only.items():
            if value:
                raise InvalidInputError(f"{flag} is for models that generate text, not for {self.endpoint}.")


def _parse_levels(text: str) -> list[int]:
    try:
        levels = [int(part) for part in text.split(",")]
    except ValueError:
        levels = []
    if not levels or any(not 1 <= level <= 4096 for level in levels):
        raise InvalidInputError(
            f"--concurrency is {text!r}; give numbers from 1 to 4096 such as 1,8,32.", param="concurrency"
        )
    return list(dict.fromkeys(levels))
