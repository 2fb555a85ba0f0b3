"""`aie pull` and `aie models` with models of a hub, without one: what was pulled before, and what cannot be."""

import hashlib
import json
import os
import subprocess
import sys

import pytest


@pytest.fixture
def run(tmp_path):
    """`aie ARGUMENTS` with a cache that has one GGUF model of a hub: (exit code, standard output, standard error)."""
    data = b"GGUF and so on"
    folder = tmp_path / "models" / "hub" / "org--name-GGUF@v1"
    folder.mkdir(parents=True)
    (folder / "model-Q8_0.gguf").write_bytes(data)
    file = {
        "name": "model-Q8_0.gguf", "size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "git_sha1": None
    }  # fmt: skip
    listed = {"name": "org/name-GGUF@v1", "commit": "0123456789abcdef", "pulled": ["", "Q8_0"], "files": [file]}
    (folder / "aie-hub.json").write_text(json.dumps(listed))

    def call(*arguments):
        environment = {**os.environ, "AIE_CACHE": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9", "NO_PROXY": "*"}
        done = subprocess.run(
            [sys.executable, "-m", "aie", *map(str, arguments)], capture_output=True, text=True, timeout=120,
            check=False, stdin=subprocess.DEVNULL, env=environment,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    return call


def test_models_of_a_hub_are_listed(run, tmp_path):
    code, out, _ = run("models", "--json", tmp_path / "list.json")
    assert code == 0
    line = next(line for line in out.splitlines() if line.startswith("org/name-GGUF@v1"))
    assert "here" in line
    assert "commit 0123456789ab" in line
    entry = next(entry for entry in json.loads((tmp_path / "list.json").read_text()) if "org" in entry["alias"])
    assert entry["path"].endswith("model-Q8_0.gguf")
    assert (entry["present"], entry["bytes"]) == (True, 14)


@pytest.mark.parametrize("name", ["org/name-GGUF@v1", "org/name-GGUF@v1:Q8_0"])
def test_what_is_here_needs_no_network(run, name):
    code, out, err = run("pull", name)
    assert code == 0, err
    assert out.strip().endswith("model-Q8_0.gguf")
    assert "verify" in err
    assert "is ready" in err


def test_a_hub_that_is_not_there(run):
    pytest.importorskip("huggingface_hub", reason="pip install 'aie[hub]'")
    code, _, err = run("pull", "org/other")
    assert code == 3
    assert "http://127.0.0.1:9 could not be read" in err
    code, _, err = run("load", "org/other")
    assert code == 2
    assert "`aie pull org/other` fetches it" in err
