"""`aie serve --repository` with real engines: versions come and go under load, and nothing of them stays."""

import http.client
import json
import os
import shutil
import signal
import threading
import weakref
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from aie.app import app
from aie.service import build_service
from aie.settings import load_settings
from aie.texts import TextModels
from aie_engine import InvalidInputError, LocalEngine, collect_closed_engines
from aie_loader import FixedModels, ModelRepository, write_tiny_gguf, write_tiny_llama

FIELDS = {"prompt": "The scheduler takes", "max_tokens": 6, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Two models that say different things."""
    folder = tmp_path_factory.mktemp("sources")
    return [write_tiny_llama(folder / str(seed), seed=seed, layers=1, hidden=32) for seed in (1, 2)]


def publish(source: Path, models: Path, version, spoil=None) -> None:
    new = models / "tiny" / f"{version}.tmp"
    shutil.copytree(source, new)
    if spoil is not None:
        spoil(new)
    new.rename(models / "tiny" / str(version))


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def no_numbers(folder: Path) -> None:
    file = folder / "model.safetensors"
    data = file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    file.write_bytes(data[:start] + b"\xff" * (len(data) - start))


@contextmanager
def serving(**flags):
    settings = {"port": 0, "workers": 0, "kernels": "numpy", "kv_memory": "1MiB", "max_batch_size": 4, **flags}
    service = build_service(load_settings(settings, environ={}), report=lambda line: None)
    try:
        service.server.start()
        yield service
    finally:
        service.close()


class Client:
    def __init__(self, service):
        self._connection = http.client.HTTPConnection(*service.server.address, timeout=60)

    def call(self, method, path, body=None):
        self._connection.request(method, path, None if body is None else json.dumps(body))
        response = self._connection.getresponse()
        return response.status, json.loads(response.read() or b"null")

    def load(self, version=None):
        parameters = {} if version is None else {"version": version}
        return self.call("POST", "/v2/repository/models/tiny/load", {"parameters": parameters})

    def text(self):
        status, answer = self.call("POST", "/v1/completions", FIELDS)
        assert status == 200, answer
        return answer["choices"][0]["text"]

    def states(self):
        return {entry["version"]: entry["state"] for entry in self.call("GET", "/v2/repository/index")[1]}

    def close(self):
        self._connection.close()


@pytest.fixture
def models(tmp_path, sources):
    (tmp_path / "tiny").mkdir()
    publish(sources[0], tmp_path, 1)
    return tmp_path


def test_many_reloads_under_load(models, sources, monkeypatch):
    engines = []
    made = LocalEngine.__init__

    def remember(engine, *arguments, **more):
        made(engine, *arguments, **more)
        engines.append((weakref.ref(engine), engine._parts.memory.pool))

    monkeypatch.setattr(LocalEngine, "__init__", remember)
    threads_before = set(threading.enumerate())
    with serving(repository=str(models)) as service:
        client = Client(service)
        publish(sources[1], models, 2)
        texts = {client.text()}
        assert client.load()[0] == 200
        texts.add(client.text())
        assert len(texts) == 2
        seen, failures, stop = [], [], threading.Event()

        def ask():
            own = Client(service)
            while not stop.is_set():
                try:
                    seen.append(own.text())
                except Exception as error:
                    failures.append(error)
            own.close()

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        serves = "2"
        for number in range(3, 63):
            spoil = {0: truncate, 10: no_numbers}.get(number % 20)
            publish(sources[number % 2], models, number, spoil)
            status, answer = client.load()
            assert status == (200 if spoil is None else 400), answer
            if spoil is None:
                assert answer["previous_version"] == serves
                serves = str(number)
            else:
                assert answer["error"] and client.states()[str(number)] == "UNAVAILABLE"
                assert client.states()[serves] == "READY"
            shutil.rmtree(models / "tiny" / str(number - 1))
        stop.set()
        for thread in threads:
            thread.join()
        assert failures == [] and set(seen) <= texts and len(seen) > 0
        client.close()
    assert set(threading.enumerate()) <= threads_before
    assert len(engines) > 55
    for _, pool in engines:
        stats = pool.stats()
        assert (stats.live_bytes, stats.reserved_bytes, stats.mapped_bytes) == (0, 0, 0)
    collect_closed_engines()
    assert [ref() for ref, _ in engines[:-1] if ref() is not None] == [], "the last one still belongs to the service"


def test_a_tokenizer_is_read_again_only_when_something_changed(tmp_path, sources):
    (tmp_path / "tiny").mkdir()
    texts = TextModels()

    def text_of(version, spoil=None):
        publish(sources[version % 2], tmp_path, version, spoil)
        return texts.of(ModelRepository(tmp_path).find("tiny", str(version)))

    def other_template(folder):
        (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}!")

    first = text_of(1)
    assert text_of(2) is first, "other weights, the same words"
    assert text_of(3, lambda folder: (folder / "golden.json").write_text("{}")) is first
    changed = text_of(4, other_template)
    assert changed is not first
    assert changed.chat_template.render([{"role": "user", "content": "a"}]) == "a!"
    assert text_of(5, other_template) is changed
    file = write_tiny_gguf(tmp_path / "file.gguf")
    version = FixedModels({"tiny": file}).find("tiny")
    assert texts.of(version) is not texts.of(version)


def test_no_room_for_another(models, sources, monkeypatch):
    with serving(repository=str(models)) as service:
        monkeypatch.setattr(service.models, "_available", lambda: 1000)
        client = Client(service)
        publish(sources[1], models, 2)
        status, answer = client.load()
        assert (status, answer["code"]) == (507, "model_too_large") and "MiB are available" in answer["error"]
        assert client.states() == {"1": "READY", "2": "UNAVAILABLE"} and client.text()
        client.close()


def test_worker_processes_are_exchanged(models, sources):
    with serving(repository=str(models), workers=1) as service:
        client = Client(service)
        before, pid = client.text(), service.server.models.default.engine.stats().worker_pid
        publish(sources[1], models, 2, no_numbers)
        assert client.load()[1]["code"] == "model_check_failed"
        publish(sources[1], models, 3)
        assert client.load()[1]["previous_version"] == "1"
        now = client.text()
        assert now != before
        new_pid = service.server.models.default.engine.stats().worker_pid
        assert new_pid not in (pid, 0)
        wait_until(lambda: service.models.figures()["tiny"].num_versions == 1)
        assert not psutil.pid_exists(pid)
        os.kill(new_pid, signal.SIGKILL)
        for is_healthy in (False, True):
            wait_until(lambda wanted=is_healthy: (client.call("GET", "/health")[0] == 200) == wanted)
        assert client.text() == now, "a worker that died is started again as the version that serves"
        client.close()


def wait_until(holds):
    for _ in range(3000):
        if holds():
            return
        threading.Event().wait(0.01)
    raise AssertionError("waited in vain")


def test_a_watched_folder(tmp_path, sources):
    with serving(watch=str(tmp_path)) as service:
        client = Client(service)
        assert client.call("GET", "/health")[1]["reason"] == "no model is loaded"
        (tmp_path / "tiny").mkdir()
        publish(sources[0], tmp_path, 1)
        service.watcher.look(), service.watcher.look()
        wait_until(lambda: client.states().get("1") == "READY")
        publish(sources[1], tmp_path, 2)
        service.watcher.look(), service.watcher.look()
        wait_until(lambda: client.states().get("2") == "READY")
        client.close()


def test_a_broken_newest_version_at_the_start(models, sources, tmp_path):
    publish(sources[1], models, 2, truncate)
    with serving(repository=str(models)) as service:
        client = Client(service)
        assert client.states() == {"1": "READY", "2": "UNAVAILABLE"}
        client.close()
    shutil.rmtree(models / "tiny" / "1")
    with pytest.raises(InvalidInputError, match="truncated"), serving(repository=str(models)):
        pass


def test_settings_that_contradict_each_other(models, tmp_path):
    for flags, words in [
        ({"repository": str(models), "models": ("tiny",)}, "not both"),
        ({"repository": str(models), "watch": str(tmp_path / "tiny")}, "different folders"),
        ({"repository": str(tmp_path / "nowhere")}, "cannot be read"),
    ]:
        with pytest.raises(InvalidInputError, match=words), serving(**flags):
            pass
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInputError, match="holds no models"), serving(repository=str(tmp_path / "empty")):
        pass


def test_the_commands(models, sources):
    def aie(*arguments):
        return CliRunner().invoke(app, [*arguments, "--url", service.server.url, "--api-key", "secret"])

    with serving(repository=str(models), api_key="secret") as service:
        publish(sources[1], models, 2)
        done = aie("reload", "tiny")
        assert done.exit_code == 0 and "tiny: version 2 serves, version 1 did until now" in done.output
        assert "READY" in aie("reload").output
        assert "is being loaded" in aie("reload", "tiny", "--version", "1", "--no-wait").output
        refused = aie("reload", "other")
        assert isinstance(refused.exception, InvalidInputError) and "(404)" in str(refused.exception)
        publish(sources[0], models, 3, truncate)
        for _ in range(500):  # the load that nobody waited for may still run
            refused = aie("reload", "tiny")
            if "409" not in str(refused.exception):
                break
        assert "truncated" in str(refused.exception) and refused.exception.exit_code == 2
        assert aie("unload", "tiny").output.endswith("tiny: unloaded\n")
        wrong = CliRunner().invoke(app, ["reload", "tiny", "--url", service.server.url, "--api-key", "wrong"])
        assert "API key" in str(wrong.exception)
    gone = CliRunner().invoke(app, ["reload", "tiny", "--url", service.server.url])
    assert gone.exception.exit_code == 3 and "No server answers" in str(gone.exception)
