"""The whole house, with the official client, over a real socket and a real worker process."""

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import openai
import psutil
import pytest

CHAT = [{"role": "user", "content": "Hello there"}]


def aie(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "aie", *arguments], capture_output=True, text=True, timeout=100, check=False
    )


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def metric(server, name):
    for line in get(f"{server.url}/metrics").splitlines():
        if line.startswith(name) and line[len(name)] in "{ ":
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"no metric {name}")


def wait_until_idle(server):
    """Each scrape asks the engine, which answers between steps: no clock is involved."""
    for _ in range(500):
        if metric(server, "aie_num_requests_running") == 0 and metric(server, "aie_kv_cache_usage_perc") == 0:
            return
    raise AssertionError("requests or blocks were left behind")


def test_streamed_and_whole_answers_agree(client):
    def ask(**more):
        return client.chat.completions.create(model="default", messages=CHAT, max_tokens=24, temperature=0, **more)

    whole = ask()
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    usage = chunks[-1].usage
    assert chunks[-1].choices == []
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)
    assert usage.prompt_tokens_details.cached_tokens >= 16, "the second time, the prompt's full blocks are there"
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    assert reasons == [whole.choices[0].finish_reason]


def test_sixteen_at_once_give_what_each_gives_alone(client):
    prompts = [f"Request number {number}:" for number in range(16)]

    def ask(prompt):
        answer = client.completions.create(model="default", prompt=prompt, max_tokens=20, temperature=0.8, seed=7)
        return answer.choices[0].text

    alone = [ask(prompt) for prompt in prompts]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(ask, prompts))
    assert together == alone


def test_a_hang_up_in_mid_stream_frees_everything(server, client):
    for _ in range(3):
        stream = client.completions.create(model="default", prompt="Once", max_tokens=200, stream=True,
                                           extra_body={"ignore_eos": True})  # fmt: skip
        next(iter(stream))
        stream.close()
    wait_until_idle(server)
    client.completions.create(model="default", prompt="Still there?", max_tokens=2)


def test_a_hang_up_while_waiting_for_a_whole_answer_frees_everything(server):
    host, port = urlsplit(server.url).netloc.split(":")
    body = json.dumps({"prompt": "Once", "max_tokens": 200, "ignore_eos": True}).encode()
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    wait_until_idle(server)


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"max_tokens": 10**9}, openai.BadRequestError, "max_tokens"),
        ({"prompt": ""}, openai.BadRequestError, "prompt"),
        ({"prompt": "word " * 5000}, openai.BadRequestError, "prompt"),
        ({"model": "no-such-model"}, openai.NotFoundError, "model"),
    ],
)
def test_bad_input_names_the_field(server, client, fields, error, param):
    with pytest.raises(error) as caught:
        client.completions.create(**{"model": "default", "prompt": "x", **fields})
    assert caught.value.param == param
    wait_until_idle(server)


def test_tokenize_there_and_back(server):
    def post(path, body):
        request = urllib.request.Request(server.url + path, json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    tokens = post("/tokenize", {"prompt": "naïve 你好"})
    assert tokens["count"] == len(tokens["tokens"]) > 0
    assert post("/detokenize", {"tokens": tokens["tokens"]})["prompt"] == "naïve 你好"


def test_health_version_models(server):
    assert json.loads(get(f"{server.url}/v1/models"))["data"]
    assert get(f"{server.url}/health")
    assert "version" in json.loads(get(f"{server.url}/version"))


def test_sigterm_drains_and_leaves_no_process(serve, tiny_model):
    with serve(tiny_model, "--threads", 1, "--kv-memory", "8MiB") as server:
        family = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        stream = iter(client.completions.create(model="default", prompt="Go", max_tokens=100, stream=True,
                                                extra_body={"ignore_eos": True}))  # fmt: skip
        next(stream)
        server.process.send_signal(signal.SIGTERM)
        rest = list(stream)  # what was begun is finished
        assert rest[-1].choices[0].finish_reason == "length"
        assert server.wait() == 0
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
    assert "Stopped." in "".join(server.log)


def test_a_killed_worker_is_replaced(serve, tiny_model):
    with serve(tiny_model, "--threads", 1, "--kv-memory", "8MiB") as server:
        children = psutil.Process(server.process.pid).children()
        (worker,) = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
        worker.kill()
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=8)  # it honours Retry-After
        client.completions.create(model="default", prompt="x", max_tokens=1)
        assert get(f"{server.url}/health")
        assert server.stop() == 0
    assert "was killed by SIGKILL" in "".join(server.log)


def test_worker_leaves_quietly_when_the_front_is_killed(serve, tiny_model):
    with serve(tiny_model, "--threads", 1, "--kernels", "numpy", "--kv-memory", "8MiB") as server:
        family = psutil.Process(server.process.pid).children()
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        stream = iter(client.completions.create(model="default", prompt="Go", max_tokens=200, stream=True,
                                                extra_body={"ignore_eos": True}))  # fmt: skip
        next(stream)
        server.process.kill()
        server.wait()  # the log ends when the last of its writers has gone
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
    assert "Traceback" not in "".join(server.log)


@pytest.fixture
def unheard(tiny_model):
    """A server whose standard error is a small pipe, and the reading end of it."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    process = subprocess.Popen(
        [sys.executable, "-m", "aie", "serve", str(tiny_model), "--port", "0", "--threads", "1", "--kv-memory", "8MiB"],
        stdout=subprocess.DEVNULL, stderr=writer,
    )  # fmt: skip
    os.close(writer)
    try:
        log = b""
        while not (found := re.search(rb"Ready .* on (http://\S+) ", log)):
            data = os.read(reader, 4096)
            assert data, f"aie serve ended: {log!r}"
            log += data
        yield process, found[1].decode(), reader
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="sets the size of a pipe")
@pytest.mark.parametrize("is_gone", [False, True], ids=["reader does not read", "reader is gone"])
def test_server_serves_and_drains_when_nobody_takes_its_log(unheard, is_gone):
    process, url, reader = unheard
    if is_gone:
        os.close(reader)
    for _ in range(60):  # more lines than the pipe holds
        get(f"{url}/version")
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=30)
    stream = iter(client.completions.create(model="default", prompt="Go", max_tokens=100, stream=True,
                                            extra_body={"ignore_eos": True}))  # fmt: skip
    next(stream)
    process.terminate()
    assert list(stream)[-1].choices[0].finish_reason == "length"
    assert process.wait(30) == 0
    if not is_gone:
        os.close(reader)


def test_ipv6(serve, tiny_model):
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with serve(tiny_model, "--host", "::1", "--threads", 1, "--kv-memory", "8MiB") as server:
        assert server.url.startswith("http://[::1]:")
        assert json.loads(get(f"{server.url}/health")) == {"status": "ok"}


def test_engine_in_process(serve, tiny_gguf):
    with serve(tiny_gguf, "--workers", 0, "--kernels", "numpy", "--kv-memory", "8MiB") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        assert client.completions.create(model="default", prompt="x", max_tokens=3).usage.completion_tokens <= 3
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["serve", "no-such-model"], 2, "no-such-model"),
        (["serve", "--device", "cuda"], 3, "CUDA"),
        (["serve", "--workers", "7"], 2, "workers"),
        (["serve", "--kv-memory", "much"], 2, "kv_memory"),
        (["serve", "--api-key", ""], 2, "--api-key is empty"),  # not a server that anybody may use
        (["serve", "--config", "missing.toml"], 2, "missing.toml"),
        (["bench", "--url", "http://127.0.0.1:1"], 3, "No server answers"),
        (["bench", "--concurrency", "0"], 2, "concurrency"),
        (["load", "pyproject.toml"], 2, "pyproject.toml"),
        (["pull", "no-such-model"], 2, "no-such-model"),
        (["stage", "9"], 2, "number"),
    ],
)
def test_commands_fail_with_one_sentence(tiny_model, arguments, code, words):
    if arguments[0] == "serve" and len(arguments) > 2:
        arguments = [*arguments, str(tiny_model)]
    done = aie(*arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert words in done.stderr


def test_port_in_use(tiny_model):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = aie("serve", str(tiny_model), "--port", port)
    assert done.returncode == 3, done.stderr
    assert port in done.stderr and "Traceback" not in done.stderr


def test_memdebug_finds_nothing_to_complain_about(tiny_model):
    done = aie("memdebug", str(tiny_model), "--requests", "12")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "No leak" in done.stdout
