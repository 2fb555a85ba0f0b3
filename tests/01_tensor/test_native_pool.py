"""The threads of a plan under stress: many short phases, more threads than cores, and waits that always end in sleep.

A lost wake-up shows as a hang, a piece of work that is done twice or never as a wrong sum. Both need an unlucky moment,
so one build of the kernels never spins, which makes every wait a chance to miss the wake-up, and loses time at random
in front of its atomic operations (shaken_atomics.h). `sanitize.py` in this folder runs the kernels' tests under
ThreadSanitizer and AddressSanitizer, by hand.
"""

import ctypes
import hashlib
import threading
from pathlib import Path

import numpy as np
import pytest

from aie_tensor import native
from aie_tensor.native.build import target_flags
from aie_tensor.native.structs import StepC

pytestmark = [pytest.mark.native, pytest.mark.timeout(120)]

NUM_PHASES, WIDTH = 40, 256


@pytest.fixture(scope="module")
def shaken_lib(native_lib):
    """The kernels with threads that sleep at once and stumble; `native_lib` skips where there is no compiler."""
    header = Path(__file__).with_name("shaken_atomics.h")
    digest = hashlib.sha256(header.read_bytes()).hexdigest()[:8]  # the cache of kernels knows flags, not this header
    options = ("-O1", "-DWAIT_SPINS=0", "-DIDLE_SPINS=0", f"-DHEADER_{digest}", "-include", str(header))
    return native.load(flags=(*target_flags()[0], *options))


class Adder:
    """A plan of NUM_PHASES operators that each add 1 to every token's row, and one step of it, ready for C."""

    def __init__(self, bench, lib, num_threads, num_tokens):
        self.lib, self.num_tokens, self.num_runs = lib, num_tokens, 0
        self.bench = bench(lib, num_threads=num_threads, max_tokens=num_tokens)
        self.x = self.bench.buffer(np.zeros((num_tokens, WIDTH), np.float32))
        one = self.bench.buffer(np.ones((num_tokens, WIDTH), np.float32))
        for _ in range(NUM_PHASES):
            self.bench.builder.add(self.x, one, self.x)
        self.plan = self.bench.builder.build()
        self.bench.plan = self.plan

    def run(self, times):
        step = StepC(num_tokens=self.num_tokens, num_sequences=1)
        for _ in range(times):
            self.lib.c.aie_plan_run(self.plan._handle, ctypes.byref(step))
        self.num_runs += times

    def check(self):
        np.testing.assert_array_equal(self.bench.array(self.x), float(self.num_runs * NUM_PHASES))


@pytest.mark.parametrize("num_threads", [1, 2, 3, 4])
def test_thousands_of_short_phases_end_and_do_every_piece_once(bench, shaken_lib, num_threads):
    adder = Adder(bench, shaken_lib, num_threads, num_tokens=9)
    adder.run(400)
    adder.check()


def test_more_threads_than_cores_end_too(bench, native_lib, shaken_lib):
    adders = [Adder(bench, lib, 4, num_tokens=16) for lib in (native_lib, shaken_lib, native_lib)]
    threads = [threading.Thread(target=adder.run, args=(150,)) for adder in adders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for adder in adders:
        adder.check()


def test_pools_come_and_go(bench, shaken_lib):
    for num_runs in (0, 1, 2) * 20:
        adder = Adder(bench, shaken_lib, 4, num_tokens=5)
        adder.run(num_runs)
        adder.check()
        adder.plan.close()
