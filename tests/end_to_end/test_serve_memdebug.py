"""`aie serve --memdebug` from outside: what is held, by which line, and what is left of a worker that was killed."""

import json
import urllib.request

import openai
import psutil

from aie_tensor.memdebug import read_log, snapshot_from_json


def memory(server):
    with urllib.request.urlopen(f"{server.url}/debug/memory", timeout=30) as answer:
        ((name, snapshot),) = json.load(answer).items()
    assert name == "tiny-llama"
    return snapshot_from_json(snapshot)


def held(snapshot):
    (pool,) = snapshot.pools
    return pool.stats.live_bytes, pool.stats.num_live, pool.slabs[0].used


def test_memory_of_a_live_server_and_of_a_worker_that_was_killed(serve, tiny_model, tmp_path):
    log = tmp_path / "log.jsonl"
    flags = ("--memdebug", "--memory-log", log, "--kernels", "numpy", "--threads", 1, "--kv-memory", "8MiB")
    with serve(tiny_model, *flags, environ={"TMPDIR": str(tmp_path)}) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=8)
        before = memory(server)
        assert before.sample_every == 1
        client.completions.create(model="default", prompt="Once", max_tokens=5)
        after = memory(server)
        assert held(after) == held(before) and after.num_requests == before.num_requests + 1
        stream = iter(client.completions.create(model="default", prompt="Go", max_tokens=200, stream=True,
                                                extra_body={"ignore_eos": True}))  # fmt: skip
        next(stream)
        during = memory(server)
        (kv,) = [group for group in during.groups if group.what == "kv"]
        assert "aie_scheduler" in kv.stack[0] and kv.worker == "engine-0" and kv.model == "tiny-llama"
        children = psutil.Process(server.process.pid).children()
        (worker,) = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
        worker.kill()
        client.completions.create(model="default", prompt="x", max_tokens=1)
        assert held(memory(server)) == held(before), "a new worker holds what the old one held when idle"
        assert server.stop() == 0
    told = "".join(server.log)
    assert "its last 20 memory events" in told and "continuous.py" in told
    assert not list(tmp_path.glob("aie-memory-*"))
    old = log.with_name("log.jsonl.previous")
    assert any(event.owner.what == "kv" for event in read_log(old, allow_cut=True))
    assert any(event.owner.what == "kv" for event in read_log(log))
