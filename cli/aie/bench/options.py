"""What the command line of `aie bench` says, checked as a whole before anything is sent or started."""

from dataclasses import dataclass
from pathlib import Path

from aie.bench.arrivals import ArrivalKind, Arrivals, Rate, parse_rates
from aie.bench.endpoint_checks import check_at_once, check_http, check_mix, check_parts_of_slo
from aie.bench.lengths_file import PREFIX
from aie.bench.mix import GENERATES, Part, parse_mix
from aie.bench.plain_http import PlainHttp
from aie.bench.progress import Ui, choose_ui
from aie.bench.slo import Slo, parse_slo
from aie.bench.trace import Cut
from aie.bench.workload import LENGTHS, Cancel, parse_cancel, parse_lengths
from aie_engine import InvalidInputError

__all__ = ["ENDPOINTS", "GENERATE", "MIX", "SENTENCE", "BenchOptions"]

ENDPOINTS = ("completions", "chat", "embeddings", "infer", "predict", "http")
GENERATE = GENERATES
MIX = "mix"  # in the place of an endpoint
SENTENCE = (3, 176)  # tokens; lognormal: around 23, with a mean of 30
_PROMPT = (64, 192)  # tokens, to models that generate
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
    trace: Path | None = None
    time_scale: float = 1.0
    length_scale: float = 1.0
    ui: str | None = None
    turns: int = 1
    think_s: float = 0.0
    rows_path: Path | None = None
    engine: bool = False
    stop: bool | None = None
    processes: int = 1
    mix: str | None = None
    path: str | None = None
    method: str | None = None
    body: str | None = None
    headers: tuple[str, ...] = ()
    metrics_url: str | None = None

    def __post_init__(self) -> None:
        check_mix(self)
        if self.endpoint not in ENDPOINTS and not self.is_mix:
            raise InvalidInputError(
                f"--endpoint is {self.endpoint!r}; choose {', '.join(ENDPOINTS)}.", param="endpoint"
            )
        if self.lengths is not None and self.lengths not in LENGTHS and not self.lengths.startswith(PREFIX):
            raise InvalidInputError(
                f"--lengths is {self.lengths!r}; choose {', '.join(LENGTHS)} or {PREFIX}PATH.", param="lengths"
            )
        self._check_numbers()
        self._check_together()
        _ = (
            self.progress,
            self.levels,
            self.rates,
            self.bounds,
            self.output_bounds,
            self.promise,
            self.leaving,
            self.plain_http,
        )  # each checks itself
        Arrivals(Rate(1.0, 1.0), self.kind, self.burstiness)

    @property
    def is_mix(self) -> bool:
        return self.endpoint == MIX

    @property
    def parts(self) -> tuple[Part, ...]:
        """Of a mix; else none."""
        return () if self.mix is None else parse_mix(self.mix)

    @property
    def endpoints(self) -> tuple[str, ...]:
        """All that is asked."""
        return tuple(part.endpoint for part in self.parts) or (self.endpoint,)

    @property
    def generates(self) -> bool:
        """Whether a model under test generates text."""
        return any(endpoint in GENERATE for endpoint in self.endpoints)

    @property
    def plain_http(self) -> PlainHttp:
        """Of the endpoint `http`."""
        return PlainHttp(path=self.path or "/", method=self.method, body=self.body, headers=self.headers)

    @property
    def shape(self) -> str:
        """How lengths are distributed."""
        if self.trace is not None:
            return "trace"
        if self.endpoint == "http":
            return ""
        return self.lengths or ("uniform" if self.generates else "lognormal")

    @property
    def bounds(self) -> tuple[int, int]:
        """Of prompts or texts, in tokens."""
        if self.input_tokens is not None:
            return parse_lengths(self.input_tokens, param="input-tokens")
        if self.generates:
            return _PROMPT
        return (_SENTENCE_MEAN, _SENTENCE_MEAN) if self.shape == "fixed" else SENTENCE

    @property
    def pairs_path(self) -> Path | None:
        """The file of `--lengths file:PATH`."""
        named = self.lengths is not None and self.lengths.startswith(PREFIX)
        return Path(str(self.lengths).removeprefix(PREFIX)) if named else None

    @property
    def progress(self) -> Ui:
        """What is seen meanwhile."""
        return choose_ui(self.ui)

    @property
    def cut(self) -> Cut:
        """How a trace is read."""
        return Cut(self.requests, self.duration, self.time_scale, self.length_scale)

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
    def stops(self) -> bool:
        """Whether a saturated level ends early. Of a single rate its whole run is what was asked for."""
        return (self.find_max or len(self.rates) > 1) if self.stop is None else self.stop

    @property
    def test(self) -> dict[str, object]:
        """What makes two tests the same one, for `--json`: all that was asked of the server but the levels, and the
        seed, which changes words and not what they cost."""
        found: dict[str, object] = {"input_tokens": list(self.bounds), "requests": self.requests,
                                    "duration_s": self.duration}  # fmt: skip
        if self.generates:
            found |= {"output_tokens": list(self.output_bounds), "shared_prefix": self.shared_prefix,
                      "cancel": self.cancel}  # fmt: skip
            if self.turns > 1:
                found |= {"turns": self.turns, "think_s": self.think_s}
        else:
            found |= {"cancel": self.cancel}
        if self.find_max:
            found |= {"slo": str(self.promise), "arrivals": self.arrivals, "max_in_flight": self.max_in_flight}
        if self.is_mix:
            found["mix"] = {part.label: round(part.share, 6) for part in self.parts}
        if "http" in self.endpoints:
            found |= {"request": f"{self.plain_http.sent_as} {self.plain_http.path}", "body": self.body}
        if self.endpoint == "http":
            found["input_tokens"] = None
        if self.trace is not None:
            found |= {"trace": self.trace.name, "time_scale": self.time_scale, "length_scale": self.length_scale,
                      "max_in_flight": self.max_in_flight, "input_tokens": None, "output_tokens": None}  # fmt: skip
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
        if not 1 <= self.processes <= 64:
            raise InvalidInputError("--processes must be from 1 to 64.", param="processes")
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
        self._check_arrivals()
        if self.max_in_flight is not None and self.rate is None and self.trace is None and not self.find_max:
            raise InvalidInputError("--max-in-flight goes with --rate; without it use --concurrency.")
        self._check_trace()
        self._check_turns()
        self._check_lengths()
        if self.engine:
            self._check_engine()
        if self.find_max and self.slo is None:
            raise InvalidInputError("--find-max needs --slo, such as --slo ttft_p99<500ms,tpot_p99<50ms.", param="slo")
        if self.find_max and (self.rate is not None or self.concurrency is not None):
            raise InvalidInputError("--find-max chooses the rates itself; leave --rate and --concurrency out.")
        if self.find_max and self.repeat > 1:
            raise InvalidInputError("--find-max runs every rate once; leave --repeat out.", param="repeat")
        check_http(self)
        check_parts_of_slo(self)
        if not self.generates:
            check_at_once(self)

    def _check_arrivals(self) -> None:
        if self.stop is not None and self.rate is None and not self.find_max:
            raise InvalidInputError("--stop and --no-stop are about rates that a server may not hold; give --rate or "
                                    "--find-max.", param="stop")  # fmt: skip
        if any(rate.steps for rate in self.rates) and (self.duration, self.requests) != (None, None):
            raise InvalidInputError(
                f"--rate {self.rate} says how long each step lasts; leave --duration and --requests out.", param="rate"
            )
        if self.rate is None and not self.find_max and (self.arrivals, self.burstiness) != ("poisson", 1.0):
            raise InvalidInputError("--arrivals and --burstiness are about when requests are sent; give --rate, too.")
        if self.burstiness != 1.0 and self.arrivals != "gamma":
            raise InvalidInputError("--burstiness goes with --arrivals gamma.", param="burstiness")
        for rate in self.rates:
            if self.duration is not None and rate.mean * self.duration < 1.0:
                raise InvalidInputError(
                    f"--rate {rate} for {self.duration:g} s is less than one request; make --duration longer.",
                    param="duration",
                )

    def _check_engine(self) -> None:
        """Without a server there is nothing to send to, nobody to hang up on and no schedule."""
        only = {"--url": self.url, "--rate": self.rate, "--find-max": self.find_max, "--slo": self.slo,
                "--cancel": self.cancel, "--duration": self.duration, "--rows": self.rows_path,
                "--repeat": self.repeat > 1, "--processes": self.processes > 1, "--trace": self.trace,
                "--turns": self.turns > 1, f"--lengths {PREFIX}PATH": self.pairs_path}  # fmt: skip
        for flag, value in only.items():
            if value:
                raise InvalidInputError(f"{flag} is about a server; --engine measures the engine alone.")
        if not self.generates:
            raise InvalidInputError(f"--engine is for models that generate text, not for {self.endpoint}.")

    def _check_trace(self) -> None:
        for flag, scale in (("time-scale", self.time_scale), ("length-scale", self.length_scale)):
            if not 0 < scale < 1e6:
                raise InvalidInputError(f"--{flag} must be positive.", param=flag)
        if self.trace is None:
            if (self.time_scale, self.length_scale) != (1.0, 1.0):
                raise InvalidInputError("--time-scale and --length-scale are for a trace; give one with --trace FILE.")
            return
        taken = {"--rate": self.rate, "--concurrency": self.concurrency, "--find-max": self.find_max,
                 "--lengths": self.lengths, "--input-tokens": self.input_tokens, "--shared-prefix": self.shared_prefix,
                 "--turns": self.turns > 1}  # fmt: skip
        for flag, value in taken.items():
            if value:
                raise InvalidInputError(
                    f"--trace says when requests are sent and how long they are; leave {flag} out.", param="trace"
                )

    def _check_lengths(self) -> None:
        if self.pairs_path is not None and self.input_tokens is not None:
            raise InvalidInputError(f"--lengths {PREFIX}PATH says how long inputs are; leave --input-tokens out.")

    def _check_turns(self) -> None:
        if not 1 <= self.turns <= 1000:
            raise InvalidInputError("--turns must be from 1 to 1000.", param="turns")
        if not 0 <= self.think_s < 1e6:
            raise InvalidInputError("--think-s must not be negative.", param="think-s")
        if self.turns == 1:
            if self.think_s:
                raise InvalidInputError("--think-s is the pause between turns of a conversation; give --turns, too.")
            return
        if self.endpoint != "chat":
            raise InvalidInputError("--turns is for conversations; give --endpoint chat with it.", param="turns")


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
