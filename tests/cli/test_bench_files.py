"""What a load test leaves behind: JSON, rows, Markdown and HTML, and the plot under its table."""

import json
import re
import threading
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from aie.app import app
from aie.bench.client import Outcome
from aie.bench.curve import curve, curve_lines
from aie.bench.knee import knee
from aie.bench.load import LevelResult
from aie.bench.notes import notes
from aie.bench.outputs import Outputs
from aie.bench.pages import html, markdown
from aie.bench.progress import Progress
from aie.bench.report import load_table, summarize
from aie.bench.svg import line_chart
from aie.bench.timeline import timeline
from aie_engine import EnvironmentLacksError, InvalidInputError


def event(payload):
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


ANSWER = (
    event({"choices": [{"index": 0, "text": "a"}]})
    + event({"choices": [{"index": 0, "text": "b"}]})
    + event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}})
    + b"data: [DONE]\n\n"
)
MODELS = b'{"data": [{"id": "<b>m|1"}]}'
INPUTS = b'{"inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}]}'


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        answers = {"/v1/models": MODELS, "/v2/models/m": INPUTS}
        self.answer(answers.get(self.path, b"none"))

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(ANSWER)

    def answer(self, body):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def url():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def bench(url, tmp_path, *more):
    files = {name: tmp_path / f"out.{name}" for name in ("json", "rows", "markdown", "html")}
    words = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    run = CliRunner().invoke(app, ["bench", "--url", url, "--requests", "4", "--concurrency", "1,2", *words, *more])
    return run, files


class Tags(HTMLParser):
    """Every tag that is opened is closed, in order; `void` ones have no end."""

    void = ("meta", "line", "rect", "polyline")

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.text = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_all_files_say_the_same(url, tmp_path):
    run, files = bench(url, tmp_path)
    assert run.exit_code == 0, run.output
    document = json.loads(files["json"].read_text())
    assert (document["format"], document["complete"], len(document["levels"])) == (3, True, 2)
    assert document["knee"] in ("1 client", "2 clients") and "◀ knee" in run.output and "latency in ms" in run.output
    assert len(files["rows"].read_text().splitlines()) == 8
    page, text = files["html"].read_text(), files["markdown"].read_text()
    tags = Tags(page)
    assert tags.open == [] and sum(tag == "svg" for tag, _ in tags.seen) == 2
    assert not any({"src", "href"} & set(attrs) for _, attrs in tags.seen) and "http" not in page.replace(url, "")
    assert "Load test of <b>m|1" in "".join(tags.text) and "<b>m" not in page
    assert text.startswith("# Load test of &lt;b>m\\|1\n")
    for whole in (page, text):
        assert "2 clients" in whole and "4/4" in whole and "Kleinrock" in whole


def test_models_that_answer_at_once_too(url, tmp_path):
    run, files = bench(url, tmp_path, "--endpoint", "predict", "--model", "m", "--repeat", "2")
    assert run.exit_code == 0, run.output
    assert "Over the runs" in run.output and "latency in ms" in run.output
    assert len(files["rows"].read_text().splitlines()) == 16
    document = json.loads(files["json"].read_text())
    assert [(level["concurrency"], level["answered"]) for level in document["levels"]] == [(1, 4), (2, 4)] * 2
    assert Tags(files["html"].read_text()).open == [] and "KB per s" in files["markdown"].read_text()
    same = CliRunner().invoke(app, ["bench", "compare", *[str(files["json"])] * 2])
    assert same.exit_code == 0 and "Verdict: no difference shown." in same.output


def test_a_trace_from_end_to_end(url, tmp_path):
    trace, rows, page = tmp_path / "trace.csv", tmp_path / "rows", tmp_path / "page.html"
    lines = ["10,100,20", "40,200,0", "70,300,40", "100,400,60", "9999,1,1"]
    trace.write_text("\n".join(["Timestamp,Request tokens,Response tokens", *lines]))
    words = [
        "--trace",
        str(trace),
        "--time-scale",
        "0.001",
        "--duration",
        "1",
        "--rows",
        str(rows),
        "--html",
        str(page),
    ]
    run = CliRunner().invoke(app, ["bench", "--url", url, *words])
    assert run.exit_code == 0, run.output
    assert "Open loop" in run.output and "Left out: 1 of the trace that had no answer there" in run.output
    due = sorted(json.loads(line)["due_s"] for line in rows.read_text().splitlines())
    assert due == pytest.approx([0.0, 0.06, 0.09]) and "trace.csv" in page.read_text()


def test_an_interrupted_test_writes_all_of_them(url, tmp_path, monkeypatch):
    step, seen = Progress.step, []

    def stop_in_the_second_level(progress, outcome):
        step(progress, outcome)
        seen.append(outcome)
        if len(seen) == 4 + 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "step", stop_in_the_second_level)
    run, files = bench(url, tmp_path)
    assert run.exit_code == 130
    document = json.loads(files["json"].read_text())
    assert document["complete"] is False and document["levels"][0]["answered"] == 4
    assert "Interrupted" in files["markdown"].read_text() and Tags(files["html"].read_text()).open == []
    assert len(files["rows"].read_text().splitlines()) == sum(level["requests"] for level in document["levels"])


@pytest.mark.parametrize("flag", ["--json", "--rows", "--markdown", "--html"])
def test_paths_that_cannot_be_written_are_refused_before_anything_is_sent(flag):
    run = CliRunner().invoke(app, ["bench", "--url", "http://127.0.0.1:9", flag, "/dev/null/x"])
    assert isinstance(run.exception, EnvironmentLacksError) and f"Choose another {flag} PATH" in str(run.exception)


def test_one_file_cannot_be_two(tmp_path):
    with pytest.raises(InvalidInputError, match="--json and --html name the same file"):
        Outputs(json=tmp_path / "x", html=tmp_path / ".." / tmp_path.name / "x").check()


def test_a_report_of_nothing_is_one_too(tmp_path):
    document = {"model": "m", "url": "u", "endpoint": "chat", "lengths": "fixed", "context": {}, "levels": [],
                "complete": False}  # fmt: skip
    assert "Interrupted" in markdown(document) and Tags(html(document)).open == []


def answered(sent, first, gaps, tokens):
    end = first + sum(gaps)
    return Outcome(sent, first, end, end, 10, tokens, 200, None, list(gaps), None, first)


def test_tokens_over_time():
    found = timeline([answered(10.0, 10.5, [1.0, 1.0], 6), answered(10, 13.5, [], 1)], start_s=10.0, wall_s=4.0)
    assert len(found.tokens_per_s) == 40 and found.bin_s == pytest.approx(0.1)
    # Events of two tokens each at 0.5, 1.5 and 2.5 s, and one of one token at 3.5 s.
    assert [index for index, rate in enumerate(found.tokens_per_s) if rate] == [5, 15, 25, 35]
    assert sum(found.tokens_per_s) * found.bin_s == pytest.approx(7)
    assert timeline([], 0.0, 1.0) is None
    assert len(timeline([answered(0, 1, [], 1)], 0.0, 1000.0).tokens_per_s) == 60


def rows_of(**clients_to_e2e):
    return [
        summarize(LevelResult(int(name[1:]), [answered(0, e2e, [], 1) for _ in range(8)], wall_s=wall))
        for name, (e2e, wall) in clients_to_e2e.items()
    ]


def test_the_knee_of_models_that_generate():
    rows = rows_of(c1=(1.0, 8.0), c4=(1.1, 2.2), c16=(8.0, 2.0))  # requests/s: 1, 3.6, 4
    assert knee(rows) is rows[1]
    marks = [*load_table(rows, "t").columns[-1].cells]
    assert marks == ["", "◀", ""]
    assert any("Kleinrock" in line and "go on" not in line for line in notes(rows))
    assert any("go on" in line for line in notes(rows[:2]))
    assert knee(rows[:1]) is None and len(load_table(rows[:1], "t").columns) == len(load_table(rows, "t").columns) - 1
    # Of several runs the mean counts: the second level is twice good, the third once excellent and once not.
    again = [*rows, *rows_of(c1=(1.0, 8.0), c4=(1.1, 2.2), c16=(0.1, 8.0))]
    assert knee(again).concurrency == 16


def test_the_plot_marks_the_knee():
    rows = rows_of(c1=(1.0, 8.0), c4=(1.1, 2.2), c16=(8.0, 2.0))
    document = {"levels": [row.as_json() for row in rows], "knee": "4 clients"}
    unit, points = curve(document)
    assert unit == "tokens/s" and [point.throughput for point in points] == pytest.approx([1.0, 8 / 2.2, 4.0])
    assert points[2].latencies == {"TTFT P50": pytest.approx(8000), "E2E P50": pytest.approx(8000)}
    lines = curve_lines(document)
    assert any(re.search(r"o TTFT P50 +x E2E P50 +\+ knee", line) for line in lines)
    assert sum(line[11:].count("+") for line in lines[1:-3]) == 1
    assert curve_lines({"levels": document["levels"][:1]}) == []


def test_charts_hold_what_they_are_given():
    chart = line_chart({"a<b": [(0, 1.0, "one"), (10, 1000.0, "two"), (5, 0.0, "no logarithm")]}, x_label="x",
                       y_label="y", log_y=True)  # fmt: skip
    assert chart.count("<circle") == 2 and "a&lt;b" in chart and "no logarithm" not in chart
    xs = [float(x) for x in re.findall(r'cx="([\d.]+)"', chart)]
    ys = [float(y) for y in re.findall(r'cy="([\d.]+)"', chart)]
    assert xs[0] == 64 and xs[1] == 720 - 150 and ys == [300 - 44, 30]  # the corners of the plane
    assert line_chart({"a": []}, x_label="x", y_label="y") == ""
    flat = line_chart({"a": [(0, 0, ""), (0, 0, "")]}, x_label="x", y_label="y")
    assert "nan" not in flat and "<circle" not in flat
