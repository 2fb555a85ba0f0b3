"""Where a setting comes from: defaults, then a TOML file, then `AIE_*` variables, then flags. Later ones win.

Nothing below the command line reads files or the environment for its settings; it all passes through here, and every
value remembers its origin so that `aie config` can say who set it.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from aie.log_format import FORMATS
from aie_engine import InvalidInputError

__all__ = ["ServeSettings", "load_settings", "parse_bytes"]

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kib": 1 << 10, "kb": 1000, "m": 1 << 20, "mib": 1 << 20, "mb": 1000**2,
          "g": 1 << 30, "gib": 1 << 30, "gb": 1000**3}  # fmt: skip
_LONGEST_S = 365 * 24 * 3600.0
_RANGES: dict[str, tuple[float, float, str]] = {
    "port": (0, 65535, "from 0 to 65535"),
    "grpc_port": (0, 65535, "from 0 to 65535"),
    "threads": (1, 4096, "from 1 to 4096"),
    "max_prefill_tokens": (0, 1 << 30, f"from 0 (no limit) to {1 << 30}"),
    "speculate": (0, 64, "from 0 (none) to 64"),
    "max_wait_ms": (0, 60_000, "from 0 to 60000 milliseconds"),
    "rate_limit": (1e-6, 1e9, "a positive number of requests per second"),
    "memdebug_sample": (1, 1 << 20, f"from 1 (every allocation) to {1 << 20}"),
    "deadline_s": (1e-3, _LONGEST_S, "a positive number of seconds, at most a year"),
    "log_every": (0, 10**9, f"from 0 (never) to {10**9}"),
    "slow_request_s": (0, _LONGEST_S, "0 or a number of seconds, at most a year"),
    "grace_s": (0, _LONGEST_S, "0 or a number of seconds, at most a year"),
}
_TYPE_NAMES = {"int": "a whole number", "float": "a number", "bool": "true or false", "tuple": "a list of names"}


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """All that `aie serve` can be told. Sizes in bytes unless the name says otherwise."""

    models: tuple[str, ...] = ()  # aliases, files or folders; none: the default model
    repository: str | None = None  # folder of models with versions, instead of `models`
    watch: str | None = None  # the same, and what appears there is loaded
    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = None  # for encoders, classifiers and image models over gRPC; none: not at all
    device: str = "auto"  # auto | cpu | cuda
    threads: int | None = None  # compute threads per engine; none: all cores this process may use
    workers: int = 1  # 0: engine in a thread of the server process
    kernels: str = "auto"  # auto | native | numpy
    quantize: str = "file"  # precision of the weights, such as int8; file: as the model file has them
    lenient: tuple[str, ...] = ()  # differences from a file format's rules to let through
    max_batch_size: int = 64  # requests in one step
    max_batch_tokens: int = 512  # tokens in one step, prefill and decode together
    max_prefill_tokens: int = 256  # of those, prompts while others decode; 0: no limit of its own
    max_wait_ms: float | None = None  # how long an encoder's or classifier's batch waits for company; none: 5
    batcher: str | None = None  # of an encoder or classifier: dynamic | static | passthrough; none: dynamic
    max_queue: int = 256  # requests waiting before 503
    queue_policy: str | None = None  # of an encoder's or classifier's full queue; none: reject
    waiting: str | None = None  # how its batcher waits for work; none: block
    share_weights: bool = True  # several workers of such a model map one copy of its packed weights
    max_seq_len: int | None = None  # prompt and answer together; none: what model and KV memory allow
    kv_memory: str = "768MiB"  # for the KV cache of each model
    kv_dtype: str = "fp32"  # fp32 | fp16 | int8: of the cached keys and values
    activations: str = "fp32"  # fp32 | int8: as the products read them
    prefix_cache: bool = True  # keep the KV blocks of prompts, for requests that begin alike
    speculate: int = 8  # most tokens guessed ahead of a request and checked in one step; 0: none
    api_key: str | None = None
    rate_limit: float | None = None  # requests per second and client
    deadline_s: float = 300.0  # a request older than this ends with 504
    grace_s: float = 30.0  # after SIGTERM
    metrics_prefix: str = "aie_"
    slow_request_s: float | None = None  # whatever takes longer gets a line in the log that says where its time went
    memdebug: bool = False
    memdebug_sample: int = 1  # of so many allocations one is recorded
    memory_log: str | None = None  # file for every allocation and release, to be replayed
    log_level: str = "info"
    log_format: str = "text"  # text | json
    log_every: int = 100  # a line in the log after so many batches of a model; 0: none
    otel_endpoint: str | None = None  # of an OpenTelemetry collector: spans of every request; none: OTEL_* variables
    seed: int = 0
    origins: Mapping[str, str] = field(default_factory=dict)  # setting → where its value came from


def parse_bytes(text: str, *, param: str) -> int:
    """`768MiB`, `1.5g`, `4096` → bytes. Raises `InvalidInputError` naming `param`."""
    digits = text.strip().lower().rstrip("abcdefghijklmnopqrstuvwxyz").strip()
    unit = text.strip().lower()[len(digits) :].strip()
    try:
        value = float(digits) * _UNITS[unit]
    except (ValueError, KeyError):
        raise InvalidInputError(f"{param} is {text!r}; give a size such as 512MiB or 2GiB.", param=param) from None
    if not 0 < value < 1 << 50:
        raise InvalidInputError(f"{param} is {text!r}; give a positive size below 1024TiB.", param=param)
    return int(value)


def load_settings(
    flags: Mapping[str, object], *, config_file: Path | None = None, environ: Mapping[str, str] = os.environ
) -> ServeSettings:
    """Merges the four layers. `flags` holds only what the user typed (values of None are left out)."""
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    layers = [
        (_from_file(config_file), str(config_file)),
        (_from_environment(environ), "environment"),
        ({key: value for key, value in flags.items() if value is not None}, "flag"),
    ]
    for layer, origin in layers:
        for key, value in layer.items():
            values[key] = value
            origins[key] = f"AIE_{key.upper()}" if origin == "environment" else origin
    for key, value in values.items():
        _check(key, value, origins[key])
    return replace(ServeSettings(), **values, origins=origins)  # type: ignore[arg-type]  # checked field by field


def _check(key: str, value: object, origin: str) -> None:
    """Refuses a value outside its setting's range before anything slow begins. The stages check what else they need."""
    name = f"--{key.replace('_', '-')}" if origin == "flag" else f"{key} (from {origin})"
    if key in _RANGES:
        low, high, what = _RANGES[key]
        if not low <= float(str(value)) <= high:  # also false for NaN
            raise InvalidInputError(f"{name} is {value}; it must be {what}.", param=key)
    if key == "quantize" and value != "file":
        from aie_loader import PRECISIONS

        if value not in PRECISIONS:
            raise InvalidInputError(f"{name} is {value!r}; choose file, {', '.join(PRECISIONS)}.", param=key)
    if key == "log_format" and value not in FORMATS:
        raise InvalidInputError(f"{name} is {value!r}; choose {' or '.join(FORMATS)}.", param=key)
    if key == "metrics_prefix" and not re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*|", str(value)):
        raise InvalidInputError(
            f"{name} is {value!r}; it may hold letters, digits, _ and :, and cannot begin with a digit.", param=key
        )


def _kinds() -> dict[str, str]:
    return {f.name: str(f.type) for f in fields(ServeSettings) if f.name != "origins"}


def _from_file(path: Path | None) -> dict[str, object]:
    if path is None:
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInputError(f"The configuration file {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"The configuration file {path} is not valid TOML: {error}.") from None
    return {key.replace("-", "_"): _coerce(key.replace("-", "_"), value, str(path)) for key, value in table.items()}


def _from_environment(environ: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for key in _kinds():
        text = environ.get(f"AIE_{key.upper()}")
        if text:
            values[key] = _coerce(key, text, f"AIE_{key.upper()}")
    return values


def _coerce(key: str, value: object, origin: str) -> object:
    """Checks a value of the file or the environment against the type of its field."""
    kind = _kinds().get(key)
    if kind is None:
        raise InvalidInputError(
            f"{origin} sets {key!r}, which is no setting; known are {', '.join(_kinds())}.", param=key
        )
    try:
        if "tuple" in kind:
            return tuple(value.split(",")) if isinstance(value, str) else tuple(str(item) for item in value)  # type: ignore[attr-defined]
        if "bool" in kind:
            return _as_bool(value)
        if "int" in kind and not isinstance(value, bool | float):
            return int(value)  # type: ignore[call-overload]
        if "float" in kind and not isinstance(value, bool):
            return float(value)  # type: ignore[arg-type]
        if "str" in kind and isinstance(value, str):
            return value
    except (TypeError, ValueError):
        pass
    wanted = next((text for name, text in _TYPE_NAMES.items() if name in kind), "text")
    raise InvalidInputError(f"{origin} gives {key} the value {value!r}; it must be {wanted}.", param=key)


def _as_bool(value: object) -> bool:
    text = str(value).lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off", ""):
        return False
    raise ValueError(text)
