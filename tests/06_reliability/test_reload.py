"""New versions beside the old one: swapped when they are fit, refused with a reason when not, closed when unused."""

import threading
from pathlib import Path

import pytest

from aie_engine import EngineDeadError, InvalidInputError, ModelCheckError, ModelVersion
from aie_reliability import (
    BrokenVersionError,
    DrainingError,
    LoadCancelledError,
    LoadFailedError,
    ModelBusyError,
    ModelManager,
    ModelTooLargeError,
    PreparedModel,
)
from aie_server import ModelNotFoundError, ModelTable, ServedModel

WAIT_S = 10.0  # for what must happen; a test that waits so long has failed
GIB = 1 << 30


class Catalog:
    """Versions that the test writes down."""

    def __init__(self, **models):
        self.models = {name: [self.version(name, v) for v in versions] for name, versions in models.items()}

    @staticmethod
    def version(name, version, *, stamp=(), problem=None):
        return ModelVersion(name, version, Path(name) / version, Path("golden.json"), 100, stamp, problem)

    def scan(self):
        return {name: tuple(versions) for name, versions in self.models.items()}

    def find(self, model, version=None):
        if not self.models.get(model):
            raise InvalidInputError(f"no model {model}")
        for candidate in self.models[model]:
            if candidate.version == version:
                return candidate
        if version is not None:
            raise InvalidInputError(f"no version {version}")
        return self.models[model][-1]


class House:
    """A manager whose engines are scripted; `fault` is raised at the step of its name."""

    def __init__(self, make_engine, clock, **models):
        self.catalog = Catalog(**(models or {"m": ["1", "2"]}))
        self.table = ModelTable(may_be_empty=True)
        self.engines = {}
        self.faults = {}
        self.need_bytes = GIB
        self.available_bytes = 2 * GIB
        self.closed = threading.Semaphore(0)  # one for each engine that was closed
        self.make_engine, self.clock = make_engine, clock
        self.manager = ModelManager(
            self.table, self.catalog, self.prepare,
            available=lambda: self.available_bytes, after_close=self.closed.release, clock=clock,
        )  # fmt: skip

    def step(self, name, version):
        fault = self.faults.get(name)
        if callable(fault):
            fault(version)
        elif fault is not None:
            raise fault

    def prepare(self, version):
        self.step("prepare", version)

        def start():
            self.step("start", version)
            self.clock.advance(2.0)
            engine = self.engines[version.model, version.version] = self.make_engine()
            return ServedModel(version.model, engine, text=None, version=version.version)

        return PreparedModel(self.need_bytes, start, lambda model: self.step("check", version))

    def serving(self):
        return {model.name: model.version for model in self.table}

    def states(self):
        return {(s.name, s.version): s.state for s in self.manager.index()}

    def reason(self, version, name="m"):
        return next(s.reason for s in self.manager.index() if (s.name, s.version) == (name, version))


@pytest.fixture
def new_house(make_engine, clock):
    houses = []

    def new(**models):
        houses.append(House(make_engine, clock, **models))
        return houses[-1]

    yield new
    for house in houses:
        house.manager.close()
        assert not [t for t in house.manager._threads if t.is_alive()]
        assert all(engine.closed for engine in house.engines.values()), "each engine is closed"


@pytest.fixture
def house(new_house):
    return new_house()


def ended(load):
    assert load.wait(WAIT_S)
    return load


def test_the_newest_version_or_the_one_named(house):
    report = ended(house.manager.load("m")).result()
    assert (report.name, report.version, report.previous_version, report.seconds) == ("m", "2", None, 2.0)
    assert house.serving() == {"m": "2"} and house.states() == {("m", "1"): "UNAVAILABLE", ("m", "2"): "READY"}
    assert ended(house.manager.load("m", "1")).result().previous_version == "2"
    assert house.serving() == {"m": "1"}
    assert house.closed.acquire(timeout=WAIT_S) and house.engines["m", "2"].closed == 1
    assert house.states() == {("m", "1"): "READY", ("m", "2"): "UNAVAILABLE"}


def test_the_old_one_stays_while_a_request_uses_it(house):
    house.manager.load_here("m", "1")
    first, second = house.table.lease("m"), house.table.lease(None)
    house.manager.load_here("m", "2")
    later = house.table.lease("m")
    assert (first.model.version, later.model.version) == ("1", "2")
    assert house.states() == {("m", "1"): "UNLOADING", ("m", "2"): "READY"}
    assert house.manager.figures()["m"].num_versions == 2
    first.close(), first.close()
    assert house.engines["m", "1"].closed == 0, "closing a lease twice counts once"
    second.close()
    assert house.closed.acquire(timeout=WAIT_S) and house.engines["m", "1"].closed == 1
    assert house.engines["m", "2"].closed == 0
    later.close()


@pytest.mark.parametrize(
    ("step", "fault", "kind"),
    [
        ("prepare", InvalidInputError("model.gguf is truncated"), InvalidInputError),
        ("prepare", OSError(5, "Input/output error", "model.gguf"), LoadFailedError),
        ("start", EngineDeadError("The worker was killed."), EngineDeadError),
        ("start", MemoryError(), LoadFailedError),
        ("check", ModelCheckError("The engine gave no token."), ModelCheckError),
    ],
)
def test_a_version_that_fails_leaves_the_old_one_and_says_why(house, step, fault, kind):
    house.manager.load_here("m", "1")
    house.faults[step] = fault
    load = ended(house.manager.load("m"))
    with pytest.raises(kind) as caught:
        load.result()
    assert house.serving() == {"m": "1"} and house.states()["m", "2"] == "UNAVAILABLE"
    assert house.reason("2") == str(caught.value) and house.engines["m", "1"].closed == 0
    figures = house.manager.figures()["m"]
    assert (figures.num_loads, figures.num_failures, figures.num_versions) == (1, 1, 1)
    house.faults.clear()
    ended(house.manager.load("m")).result()
    assert house.serving() == {"m": "2"} and house.reason("2") == ""


def test_a_failed_reload_of_the_version_that_serves_is_told(house):
    house.manager.load_here("m")
    house.faults["prepare"] = InvalidInputError("broken now")
    ended(house.manager.load("m"))
    assert house.states()["m", "2"] == "READY" and house.reason("2") == "broken now"


def test_too_large_is_refused_with_figures_before_anything_is_started(house):
    house.need_bytes, house.available_bytes = 3 * GIB, GIB
    with pytest.raises(ModelTooLargeError, match=r"needs about 3072 MiB.*1024 MiB are available") as caught:
        house.manager.load_here("m")
    assert caught.value.status == 507 and not house.engines


def test_a_failure_at_the_start_is_told_once_by_who_started(house, caplog):
    house.faults["prepare"] = InvalidInputError("cannot be")
    with pytest.raises(InvalidInputError, match="cannot be"):
        house.manager.load_here("m")
    assert "cannot be" not in caplog.text
    ended(house.manager.load("m"))
    assert caplog.text.count("cannot be") == 1


def test_no_model_in_it(house):
    house.catalog.models["m"].append(Catalog.version("m", "3", problem="m/3 holds no model"))
    with pytest.raises(BrokenVersionError, match=r"holds no model\.$"):
        house.manager.load_here("m")


def test_files_that_change_while_they_are_loaded(house):
    house.faults["check"] = lambda version: house.catalog.models["m"].__setitem__(
        1, Catalog.version("m", "2", stamp=("changed",))
    )
    with pytest.raises(BrokenVersionError, match="changed while they were loaded"):
        house.manager.load_here("m")
    assert house.engines["m", "2"].closed == 1 and not house.serving()


def test_one_load_of_a_model_at_a_time(house):
    gate = threading.Event()
    house.faults["start"] = lambda version: gate.wait(WAIT_S)
    load = house.manager.load("m")
    with pytest.raises(ModelBusyError) as caught:
        house.manager.load("m", "1")
    assert (caught.value.status, caught.value.retry_after_s) == (409, 1.0)
    with pytest.raises(ModelBusyError):
        house.manager.unload("m")
    assert house.states()["m", "2"] == "LOADING" and not load.wait(0)
    gate.set()
    assert ended(load).result().version == "2"
    house.faults.clear()
    house.manager.load_here("m", "1")


def test_loads_of_several_models_are_measured_one_after_another(new_house):
    house = new_house(a=["1"], b=["1"])
    inside = []

    def start(version):
        inside.append(version.model)
        assert len(inside) == 1
        inside.pop()

    house.faults["start"] = start
    for load in [house.manager.load("a"), house.manager.load("b")]:
        ended(load).result()
    assert house.serving() == {"a": "1", "b": "1"}


def test_unload(house):
    house.manager.load_here("m")
    lease = house.table.lease("m")
    house.manager.unload("m")
    assert house.states()["m", "2"] == "UNLOADING"
    with pytest.raises(ModelNotFoundError, match="No model is loaded"):
        house.table.lease("m")
    with pytest.raises(ModelNotFoundError):
        house.manager.unload("m")
    assert house.engines["m", "2"].closed == 0
    lease.close()
    assert house.closed.acquire(timeout=WAIT_S)
    assert house.states()["m", "2"] == "UNAVAILABLE" and house.reason("2") == "unloaded"
    house.manager.load_here("m")
    assert house.serving() == {"m": "2"}


def test_unknown_names(house):
    with pytest.raises(InvalidInputError, match="no model x"):
        house.manager.load("x")
    with pytest.raises(InvalidInputError, match="no version 9"):
        house.manager.load("m", "9")
    with pytest.raises(ModelNotFoundError):
        house.manager.unload("x")
    assert house.manager.figures() == {}


def test_the_order_and_the_default_stay(new_house):
    house = new_house(a=["1", "2"], b=["1"])
    house.manager.load_here("a", "1"), house.manager.load_here("b")
    house.manager.load_here("a", "2")
    assert list(house.serving()) == ["a", "b"] and house.table.default.name == "a"
    house.manager.unload("a")
    assert house.table.default.name == "b"


def test_what_is_gone_from_the_disk_is_listed_while_it_serves(house):
    house.manager.load_here("m")
    house.catalog.models["m"].pop()
    house.catalog.models["empty"] = []
    assert house.states() == {("m", "1"): "UNAVAILABLE", ("m", "2"): "READY", ("empty", ""): "UNAVAILABLE"}


def test_the_index_while_the_folder_is_away_has_what_is_in_memory(house):
    house.manager.load_here("m", "1")

    def away():
        raise InvalidInputError("/models cannot be read")

    house.catalog.scan = away
    assert [(s.name, s.version, s.state, s.reason) for s in house.manager.index()] == [
        ("m", "1", "READY", "/models cannot be read")
    ]
    house.manager.unload("m")
    assert house.closed.acquire(timeout=WAIT_S)
    with pytest.raises(InvalidInputError, match="cannot be read"):
        house.manager.index()


def test_shutdown_during_a_load(house):
    entered, gate = threading.Event(), threading.Event()
    house.manager.load_here("m", "1")

    def start(version):
        entered.set()
        gate.wait(WAIT_S)

    house.faults["start"] = start
    load = house.manager.load("m")
    assert entered.wait(WAIT_S)
    house.manager.begin_drain()
    with pytest.raises(LoadCancelledError):
        ended(load).result()
    with pytest.raises(DrainingError):
        house.manager.load("m", "1")
    gate.set()
    house.manager.close()
    assert house.serving() == {"m": "1"}
    assert house.engines["m", "2"].closed == 1 and house.engines["m", "1"].closed == 1


def test_interrupted_at_the_start(house):
    house.faults["start"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        house.manager.load_here("m")
    assert house.manager.figures()["m"].num_versions == 0


def test_an_engine_that_cannot_be_closed_does_not_stop_the_closing(house, caplog):
    house.manager.load_here("m", "1")
    engine = house.engines.pop(("m", "1"))
    engine.close = lambda timeout_s=10.0: (_ for _ in ()).throw(TimeoutError("its step does not end"))
    house.manager.load_here("m", "2")
    assert house.closed.acquire(timeout=WAIT_S)
    assert "could not be closed" in caplog.text
    house.manager.load_here("m", "1")
    assert house.closed.acquire(timeout=WAIT_S) and house.engines["m", "2"].closed == 1
