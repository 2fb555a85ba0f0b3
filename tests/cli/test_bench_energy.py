"""Energy from a made-up powercap folder and a made-up NVML: sums, wrap-around, and everything that is not told."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aie.app import app
from aie.bench.energy import NOT_TOLD, EnergyMeter, Gpus, Rapl, Spent, is_this_machine, meter_of

RANGE_UJ = 262_143_328_850


class Nvml:
    """Two GPUs; energy in millijoules as `now_mj` says."""

    class NVMLError(Exception):
        pass

    def __init__(self, now_mj=(0, 0), refuses=()):
        self.now_mj, self.refuses = list(now_mj), refuses

    def __getattr__(self, name):
        if not name.startswith("nvml"):
            raise AttributeError(name)
        if name in self.refuses:
            return self._refuse
        answers = {"nvmlInit": lambda: None, "nvmlDeviceGetCount": lambda: len(self.now_mj),
                   "nvmlDeviceGetHandleByIndex": lambda index: index,
                   "nvmlDeviceGetTotalEnergyConsumption": lambda handle: self.now_mj[handle]}  # fmt: skip
        return answers[name]

    def _refuse(self, *_):
        raise self.NVMLError("Not Supported")


def zone(folder: Path, name: str, kind: str, uj: int) -> Path:
    made = folder / name
    made.mkdir()
    for file, text in (("name", kind), ("energy_uj", uj), ("max_energy_range_uj", RANGE_UJ)):
        (made / file).write_text(f"{text}\n")
    return made


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """Two packages; of what else is in such a folder nothing is counted a second time."""
    zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 5)
    zone(tmp_path, "intel-rapl:0:1", "dram", 5)
    zone(tmp_path, "intel-rapl:1", "package-1", RANGE_UJ - 500_000)
    zone(tmp_path, "intel-rapl:2", "psys", 7)
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", 1_000_000)
    (tmp_path / "intel-rapl").mkdir()
    return tmp_path


def set_uj(folder: Path, name: str, uj: int) -> None:
    (folder / name / "energy_uj").write_text(str(uj))


def test_packages_are_added_and_a_counter_that_began_anew_is_followed(powercap: Path) -> None:
    (powercap / "intel-rapl-mmio:0" / "name").write_text("package-0")
    meter = EnergyMeter([Rapl(powercap)], clock=iter([10.0, 11.0, 15.0]).__next__)
    meter.begin()
    set_uj(powercap, "intel-rapl:0", 3_000_000)
    set_uj(powercap, "intel-rapl:1", 700_000)  # half a joule to its limit, and more from 0
    meter.look()
    set_uj(powercap, "intel-rapl:0", 8_000_000)
    meter.look()
    assert meter.energy is not None
    assert meter.energy.joules == {"CPU package": pytest.approx(2 + 1.2 + 5)}
    assert meter.energy.seconds == 5.0
    spent = Spent.of(meter.energy, requests=4, tokens=100)
    assert spent.watts == pytest.approx(8.2 / 5)
    assert (spent.j_per_request, spent.j_per_token) == (pytest.approx(2.05), pytest.approx(0.082))
    assert str(spent).startswith("1.6 W, 2.05 J per answered request, 0.082 J per token (CPU package 8 J; ")
    assert Spent.of(meter.energy, requests=0, tokens=0).j_per_request is None


def test_gpus_are_added_to_packages(powercap: Path) -> None:
    nvml = Nvml((5_000, 7_000))
    meter = meter_of(True, folder=powercap, nvml=nvml)
    assert meter.note is None
    meter.begin()
    nvml.now_mj = [6_500, 7_000]
    meter.look()
    assert meter.energy is not None and meter.energy.joules == {"CPU package": 0.0, "GPU": 1.5}


def test_nothing_is_counted_before_the_beginning(powercap: Path) -> None:
    meter = meter_of(True, folder=powercap, nvml=Nvml(()))
    meter.look()
    assert meter.energy is None
    set_uj(powercap, "intel-rapl:0", 9_000_000)
    meter.begin()
    meter.look()
    assert meter.energy is not None and meter.energy.total_j == 0.0
    meter.begin()  # the next level
    set_uj(powercap, "intel-rapl:0", 9_500_000)
    meter.look()
    assert meter.energy.total_j == pytest.approx(0.5)


def test_who_may_not_read_is_told_once_and_what_to_do(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: object, **__: object) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return original(path)

    original = Path.read_text
    monkeypatch.setattr(Path, "read_text", refuse)
    meter = meter_of(True, folder=powercap, nvml=Nvml(()))
    assert meter.note is not None and meter.note.startswith(NOT_TOLD) and "sudo chmod a+r" in meter.note
    meter.begin()
    meter.look()
    assert meter.energy is None


@pytest.mark.parametrize("broken", ["nothing", "no number", "no limit"])
def test_folders_that_tell_nothing(tmp_path: Path, broken: str) -> None:
    if broken != "nothing":
        made = zone(tmp_path, "intel-rapl:0", "package-0", 5)
        (made / ("energy_uj" if broken == "no number" else "max_energy_range_uj")).write_text("what?")
    meter = meter_of(True, folder=tmp_path / "absent" if broken == "nothing" else tmp_path, nvml=Nvml(()))
    assert meter.note is not None and "CPU package" in meter.note and "no NVIDIA GPU" in meter.note


@pytest.mark.parametrize("refuses", ["nvmlInit", "nvmlDeviceGetTotalEnergyConsumption"])
def test_a_gpu_that_does_not_count_leaves_the_packages(powercap: Path, refuses: str) -> None:
    gpus = Gpus(Nvml((1,), refuses=(refuses,)))
    assert gpus.grown_j() is None and gpus.trouble == "NVML says: Not Supported"
    meter = meter_of(True, folder=powercap, nvml=Nvml((1,), refuses=(refuses,)))
    assert [source.name for source in meter.sources] == ["CPU package"]


def test_a_server_elsewhere_is_not_charged_with_this_machine(powercap: Path) -> None:
    assert "another one" in str(meter_of(False, folder=powercap).note)
    assert [is_this_machine(host) for host in ("127.0.0.1", "::1", "localhost", "10.0.0.1", "example.org")] == [
        True, True, True, False, False,
    ]  # fmt: skip


class Steady:
    """A joule between two looks."""

    name = "CPU package"

    def grown_j(self) -> float:
        return 1.0


@pytest.mark.parametrize("is_told", [True, False])
def test_it_stands_in_every_report(
    threaded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    meter = EnergyMeter([Steady()]) if is_told else EnergyMeter(note=f"{NOT_TOLD} (for a reason).")
    monkeypatch.setattr("aie.bench.target.meter_of", lambda is_local: meter if is_local else None)
    server = threaded(lambda asked: (200, b"x"))
    files = {name: tmp_path / name for name in ("json", "markdown", "html")}
    words = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    url = ["--url", server.endpoint.url, "--endpoint", "http"]
    run = CliRunner().invoke(app, ["bench", *url, "--concurrency", "1,2", "--requests", "5", *words])
    assert run.exit_code == 0, run.output
    document = json.loads(files["json"].read_text())
    texts = [run.output, files["markdown"].read_text(), files["html"].read_text()]
    if is_told:
        for level in document["levels"]:
            joules = level["energy"]["joules"]["CPU package"]
            assert joules >= 1 and level["energy"]["j_per_request"] == joules / 5
        assert all("J per answered request" in text for text in texts) and "## Energy" in texts[1]
    else:
        assert [level["energy"] for level in document["levels"]] == [None, None]
        assert all("not told by this machine (for a reason)" in text for text in texts)
