"""Defaults < file < environment < flags, each with its origin, and nonsense is named."""

import pytest

from aie.settings import load_settings, parse_bytes
from aie_engine import InvalidInputError


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "aie.toml"
        path.write_text(text)
        return path

    return write


def test_layers_and_origins(file):
    path = file('port = 1\nhost = "0.0.0.0"\nmax-queue = 7\n')
    settings = load_settings(
        {"port": 3, "host": None}, config_file=path, environ={"AIE_PORT": "2", "AIE_MAX_QUEUE": "8"}
    )
    assert (settings.port, settings.host, settings.max_queue, settings.max_batch_size) == (3, "0.0.0.0", 8, 64)
    assert settings.origins == {"port": "flag", "host": str(path), "max_queue": "AIE_MAX_QUEUE"}


def test_types_of_the_environment():
    environ = {
        "AIE_MODELS": "a,b",
        "AIE_MEMDEBUG": "yes",
        "AIE_RATE_LIMIT": "2.5",
        "AIE_THREADS": "3",
        "AIE_API_KEY": "",
        "AIE_MEMDEBUG_SAMPLE": "64",
        "AIE_MEMORY_LOG": "log.jsonl",
    }
    settings = load_settings({}, environ=environ)
    assert settings.models == ("a", "b")
    assert (settings.memdebug, settings.memdebug_sample, settings.memory_log) == (True, 64, "log.jsonl")
    assert settings.rate_limit == 2.5
    assert settings.threads == 3
    assert settings.api_key is None  # empty is the same as absent


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("prot = 1", "prot"),
        ("port = true", "port"),
        ('port = "x"', "port"),
        ("memdebug = 3", "memdebug"),
        ("port = ", "not valid TOML"),
        ("host = 5", "host"),
    ],
)
def test_bad_file(file, text, word):
    with pytest.raises(InvalidInputError, match=word) as error:
        load_settings({}, config_file=file(text), environ={})
    assert error.value.exit_code == 2


def test_missing_file(tmp_path):
    with pytest.raises(InvalidInputError, match="cannot be read"):
        load_settings({}, config_file=tmp_path / "none.toml", environ={})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4096", 4096),
        ("512MiB", 512 << 20),
        ("1.5g", 3 << 29),
        ("2 GiB", 2 << 30),
        ("10MB", 10_000_000),
        ("64k", 65536),
    ],
)
def test_parse_bytes(text, expected):
    assert parse_bytes(text, param="kv_memory") == expected


@pytest.mark.parametrize("text", ["", "x", "-1GiB", "0", "1XiB", "nan", "inf", "1e400"])
def test_parse_bytes_refuses(text):
    with pytest.raises(InvalidInputError) as error:
        parse_bytes(text, param="kv_memory")
    assert error.value.param == "kv_memory"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("port", -1),
        ("port", 65536),
        ("grpc_port", 65536),
        ("threads", 0),
        ("rate_limit", -1.0),
        ("rate_limit", float("nan")),
        ("deadline_s", 0.0),
        ("deadline_s", float("inf")),
        ("grace_s", -1.0),
        ("grace_s", float("nan")),
        ("metrics_prefix", "a b"),
        ("slow_request_s", -1.0),
        ("memdebug_sample", 0),
        ("memdebug_sample", 1 << 21),
    ],
)
def test_values_out_of_range_are_refused_wherever_they_come_from(key, value, file):
    flag = f"--{key.replace('_', '-')}"
    with pytest.raises(InvalidInputError, match=flag):
        load_settings({key: value}, environ={})
    with pytest.raises(InvalidInputError, match=f"{key} .from AIE_{key.upper()}"):
        load_settings({}, environ={f"AIE_{key.upper()}": str(value)})
    with pytest.raises(InvalidInputError, match=key):
        load_settings({}, config_file=file(f"{key} = {value!r}".replace("'", '"')), environ={})


def test_a_wrong_type_is_named_in_words():
    with pytest.raises(InvalidInputError, match="must be a whole number"):
        load_settings({}, environ={"AIE_PORT": "x"})
