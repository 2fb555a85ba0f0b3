"""Pulling from a hub: a small one of ours over loopback, with files, digests and ranges as the real one has them."""

import hashlib
import http.server
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from aie_loader import ModelNotFoundError, PullError, PullProgress, list_models, pull, resolve, served_name
from aie_loader.fetching import hub as hub_module
from aie_loader.fetching.hub_cache import HubFolder
from aie_loader.fetching.hub_files import HubFile
from aie_loader.fetching.hub_names import HubName
from aie_tensor import EnvironmentLacksError

pytest.importorskip("huggingface_hub", reason="pip install 'aie[hub]'")

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = bytes(range(256)) * 40
SAFETENSORS_REPO = {
    "README.md": b"# a model",
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": WEIGHTS,
    "modeling_custom.py": b"raise SystemExit",
    "onnx/model.onnx": WEIGHTS,
    "additional_chat_templates/tool_use.jinja": b"t",
    "1_Pooling/config.json": b"{}",
}
GGUF_REPO = {
    "model-Q4_K_M.gguf": b"four" * 100,
    "model-Q8_0.gguf": b"eight" * 100,
    "BF16/model-BF16-00001-of-00002.gguf": b"one" * 100,
    "BF16/model-BF16-00002-of-00002.gguf": b"two" * 100,
    "mmproj-model-f16.gguf": b"sees",
    "config.json": b"{}",
}


@dataclass
class FakeHub:
    """What the hub holds, and how it misbehaves."""

    repos: dict[str, dict[str, bytes]]
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    status: int = 200  # of the listing
    error_code: str = ""  # in the header X-Error-Code
    sends: dict[str, bytes] = field(default_factory=dict)  # other contents than listed
    cut_after: int | None = None  # bytes of a file after which the connection breaks
    has_ranges: bool = True
    has_metadata: bool = True

    def listing(self, files: dict[str, bytes]) -> dict[str, Any]:
        siblings = []
        for name, data in files.items():
            entry: dict[str, Any] = {"rfilename": name}
            if self.has_metadata:
                entry |= {"size": len(data), "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()}
                if name.endswith((".safetensors", ".bin", ".gguf")):
                    entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            siblings.append(entry)
        return {"id": "org/name", "sha": COMMIT, "siblings": siblings}

    def fetched(self) -> list[str]:
        return [path.split(f"/resolve/{COMMIT}/")[1] for _, path, _ in self.requests if "/resolve/" in path]


class Handler(http.server.BaseHTTPRequestHandler):
    hub: FakeHub
    max_answers: int | None = None  # files; further ones are refused

    def do_GET(self) -> None:
        self.hub.requests.append((self.command, self.path, dict(self.headers)))
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/"):
            repo = path.removeprefix("/api/models/").partition("/revision/")[0]
            if self.hub.status != 200 or repo not in self.hub.repos:
                status, code = (
                    (404, "RepoNotFound") if self.hub.status == 200 else (self.hub.status, self.hub.error_code)
                )
                self.answer(status, b"{}", {"X-Error-Code": code} if code else None)
                return
            self.answer(200, json.dumps(self.hub.listing(self.hub.repos[repo])).encode())
            return
        if self.max_answers is not None and len(self.hub.fetched()) > self.max_answers:
            self.answer(503, b"")
            return
        repo, _, rest = path[1:].partition("/resolve/")
        name = rest.partition("/")[2]
        if name not in self.hub.repos.get(repo, {}):  # the library asks for other things, too
            self.answer(404, b"")
            return
        data = self.hub.sends.get(name, self.hub.repos[repo][name])
        start = 0
        if self.hub.has_ranges and (given := self.headers.get("Range")):
            start = int(given.removeprefix("bytes=").rstrip("-"))
        self.answer(206 if start else 200, data[start:], cut=self.hub.cut_after)

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: int | None = None) -> None:
        self.send_response(status)
        for key, value in {**(headers or {}), "Content-Length": str(len(body)), "Connection": "close"}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body if cut is None else body[:cut])
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    import huggingface_hub.file_download

    fake = FakeHub({"org/name": dict(SAFETENSORS_REPO), "org/many-GGUF": dict(GGUF_REPO)})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": fake}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    monkeypatch.setattr(huggingface_hub.file_download.time, "sleep", lambda _: None)  # between its own attempts
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_only_what_a_loader_needs_comes_and_once(hub: FakeHub, tmp_path: Path) -> None:
    seen: list[PullProgress] = []
    folder = pull("org/name", cache=tmp_path, progress=seen.append)
    wanted = {"config.json", "tokenizer.json", "model.safetensors", "1_Pooling/config.json"}
    wanted |= {"additional_chat_templates/tool_use.jinja"}
    assert names_in(folder) == wanted | {"aie-hub.json"}
    assert all((folder / name).read_bytes() == SAFETENSORS_REPO[name] for name in wanted)
    phases = [step.phase for step in seen]
    assert sorted(set(phases), key=phases.index) == ["download", "verify", "done"]
    assert all(step.done_bytes <= step.total_bytes for step in seen)
    assert seen[-1].done_bytes == sum(len(SAFETENSORS_REPO[name]) for name in wanted)
    assert {headers.get("Authorization") or headers.get("authorization") for *_, headers in hub.requests} == {
        "Bearer hf_secret"
    }
    hub.requests.clear()
    hub.status = 500
    assert pull("org/name", cache=tmp_path) == folder, "what is here needs no hub"
    assert hub.requests == []
    assert not HubFolder.of(HubName("org/name"), tmp_path).part.exists()


def test_names_work_where_models_are_named(hub: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="if it is on a hub, `aie pull org/name` fetches it"):
        resolve("org/name", cache=tmp_path)
    folder = pull("org/name", cache=tmp_path)
    file = pull("org/many-GGUF:q4_k_m", cache=tmp_path)
    assert file.name == "model-Q4_K_M.gguf"
    assert resolve("org/name", cache=tmp_path) == folder
    assert resolve("org/many-GGUF:Q4_K_M", cache=tmp_path) == file
    assert resolve("org/many-GGUF", cache=tmp_path) == file, "it is the only one here"
    assert served_name(folder, cache=tmp_path) == "org/name"
    assert served_name(file, cache=tmp_path) == "org/many-GGUF"
    here = {entry.alias: entry for entry in list_models(cache=tmp_path) if entry.is_present}
    assert {"org/name", "org/many-GGUF"} == set(here)
    assert here["org/many-GGUF"].size_bytes == len(GGUF_REPO["model-Q4_K_M.gguf"])
    assert COMMIT[:12] in here["org/name"].what
    (folder / "config.json").write_bytes(b"")
    with pytest.raises(ModelNotFoundError, match="aie pull"):
        resolve("org/name", cache=tmp_path)


def test_gguf_choices(hub: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"holds 3 GGUF models; name one .*choices: BF16, Q4_K_M, Q8_0"):
        pull("org/many-GGUF", cache=tmp_path)
    assert pull("org/many-GGUF:model-Q8_0.gguf", cache=tmp_path).read_bytes() == GGUF_REPO["model-Q8_0.gguf"]
    split = pull("org/many-GGUF:BF16", cache=tmp_path)
    assert split.name == "model-BF16-00001-of-00002.gguf"
    assert len(names_in(split.parent)) == 2
    with pytest.raises(ModelNotFoundError, match=r"no GGUF model for 'Q2_K' \(choices: BF16"):
        pull("org/many-GGUF:Q2_K", cache=tmp_path)
    with pytest.raises(ModelNotFoundError, match="holds 2 GGUF models; name one as org/many-GGUF:CHOICE"):
        resolve("org/many-GGUF", cache=tmp_path)
    with pytest.raises(ModelNotFoundError, match="no weights as GGUF"):
        pull("org/name:Q8_0", cache=tmp_path)
    names = {entry.alias for entry in list_models(cache=tmp_path) if entry.is_present}
    assert names == {"org/many-GGUF:model-Q8_0.gguf", "org/many-GGUF:BF16/model-BF16-00001-of-00002.gguf"}
    assert all(resolve(name, cache=tmp_path).is_file() for name in names)


def test_a_model_that_is_whole_beside_a_gguf(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos["org/name"]["model.Q8_0.gguf"] = b"gguf"
    assert pull("org/name:Q8_0", cache=tmp_path).read_bytes() == b"gguf"
    folder = pull("org/name", cache=tmp_path)
    assert (folder / "model.safetensors").is_file(), "the plain name still means the hub's whole model"


def test_revisions_lie_side_by_side(hub: FakeHub, tmp_path: Path) -> None:
    first, second = pull("org/name", cache=tmp_path), pull("org/name@refs/pr/7", cache=tmp_path)
    assert first != second
    assert any("/revision/refs%2Fpr%2F7" in path for _, path, _ in hub.requests)
    assert served_name(second, cache=tmp_path) == "org/name@refs/pr/7"
    assert resolve("org/name@refs/pr/7", cache=tmp_path) == second


def test_a_pull_that_was_cut_off_goes_on(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import file_download

    hub.repos["org/name"] = {"model.safetensors": WEIGHTS}
    hub.cut_after = 6000
    with monkeypatch.context() as patch:
        real = file_download.http_get
        patch.setattr(file_download, "http_get", lambda *args, **options: real(*args, **options, _nb_retries=0))
        patch.setattr(Handler, "max_answers", 1)
        with pytest.raises(PullError, match="goes on where it stopped"):
            pull("org/name", cache=tmp_path)
    (partial,) = HubFolder.of(HubName("org/name"), tmp_path).part.iterdir()
    assert partial.read_bytes() == WEIGHTS[:6000]
    hub.cut_after = None
    hub.requests.clear()
    assert (pull("org/name", cache=tmp_path) / "model.safetensors").read_bytes() == WEIGHTS
    ranges = [headers.get("Range") or headers.get("range") for _, path, headers in hub.requests if "/resolve/" in path]
    assert ranges == ["bytes=6000-"]


def test_a_hub_without_ranges_starts_again(hub: FakeHub, tmp_path: Path) -> None:
    hub.has_ranges = False
    folder = HubFolder.of(HubName("org/name"), tmp_path)
    weights = HubFile("model.safetensors", len(WEIGHTS), sha256=hashlib.sha256(WEIGHTS).hexdigest())
    folder.part.mkdir(parents=True)
    hub_module._partial(folder, weights).write_bytes(WEIGHTS[:100])
    assert (pull("org/name", cache=tmp_path) / "model.safetensors").read_bytes() == WEIGHTS


def test_interrupt_keeps_what_came(hub: FakeHub, tmp_path: Path) -> None:
    def interrupt(step: PullProgress) -> None:
        if step.phase == "download" and step.done_bytes >= len(WEIGHTS):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("org/name", cache=tmp_path, progress=interrupt)
    with pytest.raises(ModelNotFoundError):
        resolve("org/name", cache=tmp_path)
    hub.requests.clear()
    pull("org/name", cache=tmp_path)
    assert len(hub.fetched()) < 5, "files that are whole are not fetched again"


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_other_bytes_than_listed(hub: FakeHub, tmp_path: Path, name: str) -> None:
    data = SAFETENSORS_REPO[name]
    hub.sends[name] = data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(
        PullError, match=rf"sent as {name} of org/name is not the file that it lists .*deleted.*HF_ENDP"
    ):
        pull("org/name", cache=tmp_path)
    with pytest.raises(ModelNotFoundError):
        resolve("org/name", cache=tmp_path)
    hub.sends.clear()
    assert (pull("org/name", cache=tmp_path) / name).read_bytes() == data


def test_a_server_that_never_stops(hub: FakeHub, tmp_path: Path) -> None:
    hub.sends["config.json"] = bytes(5_000)
    with pytest.raises(PullError, match="it sends more bytes than it lists"):
        pull("org/name", cache=tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 1000


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("sha", 5, "the hub's answer for org/name cannot be used"),
        ("sha", "../../x", "the hub's answer for org/name cannot be used"),
        ("rfilename", 5, "holds no weights"),
        ("rfilename", "model-\ud800.safetensors", "holds no weights"),
        ("rfilename", "model\n.safetensors", "holds no weights"),
        ("rfilename", "../model.safetensors", "holds no weights"),
        ("size", True, "holds no weights"),
    ],
)
def test_listings_that_make_no_sense(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, value: object, says: str
) -> None:
    sibling = {"rfilename": "model.safetensors", "size": 1, "blobId": "0" * 40}
    listing: dict[str, Any] = {"id": "org/name", "sha": COMMIT, "siblings": [sibling]}
    (listing if field == "sha" else sibling)[field] = value
    monkeypatch.setattr(hub, "listing", lambda files: listing)
    with pytest.raises((PullError, ModelNotFoundError), match=says):
        pull("org/name", cache=tmp_path)


def test_a_damaged_file_is_fetched_again(hub: FakeHub, tmp_path: Path) -> None:
    folder = pull("org/name", cache=tmp_path)
    (folder / "model.safetensors").write_bytes(WEIGHTS[::-1])
    hub.requests.clear()
    pull("org/name", cache=tmp_path)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.fetched() == ["model.safetensors"]
    (folder / "aie-hub.json").write_text("{")
    pull("org/name", cache=tmp_path)
    assert resolve("org/name", cache=tmp_path) == folder


def test_what_a_newer_commit_has_no_longer_goes(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos["org/name"]["x-Q8_0.gguf"] = b"gguf"
    pull("org/name:Q8_0", cache=tmp_path)
    folder = pull("org/name", cache=tmp_path)
    shards = {f"model-0000{index}-of-00002.safetensors": WEIGHTS[index:] for index in (1, 2)}
    hub.repos["org/name"] = {"config.json": b"{}", "model.safetensors.index.json": b"{}", **shards}
    (folder / "config.json").write_bytes(b"damaged")
    assert pull("org/name", cache=tmp_path) == folder
    assert names_in(folder) == {*hub.repos["org/name"], "x-Q8_0.gguf", "aie-hub.json"}
    assert resolve("org/name:Q8_0", cache=tmp_path).is_file()


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"repos": {}}, ModelNotFoundError, "no model 'org/name', or it is private: .*HF_TOKEN"),
        ({"status": 404, "error_code": "RevisionNotFound"}, ModelNotFoundError, "no revision 'v9'"),
        ({"status": 403, "error_code": "GatedRepo"}, PullError, "accepted its terms.*HF_TOKEN"),
        ({"status": 418}, PullError, r"127\.0\.0\.1:\d+ could not be read: .*418.*HF_ENDPOINT"),
        ({"has_metadata": False}, ModelNotFoundError, "no weights"),
        (
            {"repos": {"org/name": {"README.md": b""}}},
            ModelNotFoundError,
            r"no weights as safetensors, PyTorch .* GGUF",
        ),
    ],
)
def test_what_the_hub_does_not_have(
    hub: FakeHub, tmp_path: Path, changes: dict[str, Any], kind: type[Exception], says: str
) -> None:
    for key, value in changes.items():
        setattr(hub, key, value)
    with pytest.raises(kind, match=says):
        pull("org/name@v9", cache=tmp_path)


def test_no_hub_at_all(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(PullError, match=r"http://127\.0\.0\.1:9 could not be read"):
        pull("org/name", cache=tmp_path)


def test_no_space(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 7})
    monkeypatch.setattr(hub_module.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(PullError, match=r"has 7 bytes free, but the pull needs [\d,]+; make room"):
        pull("org/name", cache=tmp_path)
    assert hub.fetched() == []


def test_cache_that_is_a_file(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(PullError, match=r"cannot be used .*AIE_CACHE"):
        pull("org/name", cache=tmp_path / "cache")


def test_without_the_extra(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pull("org/name", cache=tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(EnvironmentLacksError, match=r"pip install 'aie\[hub\]'"):
        pull("org/other", cache=tmp_path)
    assert pull("org/name", cache=tmp_path) == folder


def test_two_at_once(hub: FakeHub, tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            pull("org/name", cache=tmp_path)
        except BaseException as error:  # shown by the assertion below
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert (resolve("org/name", cache=tmp_path) / "model.safetensors").read_bytes() == WEIGHTS
    assert len(hub.fetched()) == 5, "the later ones find it here"


def test_the_environment_is_left_as_it_was(hub: FakeHub, tmp_path: Path) -> None:
    before = dict(os.environ)
    pull("org/name", cache=tmp_path)
    assert dict(os.environ) == before
