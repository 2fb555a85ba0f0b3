"""The log of a running server holds nobody up: not when its reader is slow, and not when there is none."""

import json
import logging
import threading

import pytest

from aie.service_log import ServiceLog

WAIT_S = 5


def test_lines_come_out_in_order_and_close_waits_for_them():
    written = []
    log = ServiceLog(written.append)
    logger = logging.Logger("test")
    logger.addHandler(log)
    log.line("first")
    logger.warning("and %d", 2)
    log.close()
    log.close()
    assert written == ["first\n", "and 2\n"]


def test_a_reader_that_does_not_read_costs_lines_and_not_the_server():
    written, is_stuck, may_go_on = [], threading.Event(), threading.Event()

    def write(text):
        is_stuck.set()
        assert may_go_on.wait(WAIT_S)
        written.append(text)

    log = ServiceLog(write, max_lines=2)
    log.line("0")
    assert is_stuck.wait(WAIT_S)
    for number in range(1, 10):  # comes back at once, though nothing can be written
        log.line(str(number))
    may_go_on.set()
    log.close()
    assert written[:2] == ["0\n", "(7 lines of the log were dropped: nobody took them)\n"]
    assert written[2:] == ["1\n", "2\n"]


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(28, "No space left on device")])
def test_a_failing_write_is_dropped_and_counted(error):
    written, failures = [], [error, error]

    def write(text):
        if failures:
            raise failures.pop()
        written.append(text)

    log = ServiceLog(write)
    for number in range(3):
        log.line(str(number))
    log.close()
    assert written == ["2\n", "(2 lines of the log were dropped: nobody took them)\n"]


def test_as_json_the_lines_of_the_service_and_the_dropped_ones_are_objects():
    written, is_stuck, may_go_on = [], threading.Event(), threading.Event()

    def write(text):
        is_stuck.set()
        assert may_go_on.wait(WAIT_S)
        written.append(text)

    log = ServiceLog(write, max_lines=1, as_json=True)
    log.line('Ready "now"\n')
    assert is_stuck.wait(WAIT_S)
    for _ in range(3):
        log.line("more", "warning", "stderr")
    may_go_on.set()
    log.close()
    ready, dropped, more = [json.loads(text) for text in written]
    assert all(text.count("\n") == 1 for text in written)
    assert (ready["message"], ready["level"], ready["logger"]) == ('Ready "now"\n', "info", "aie.serve")
    assert (dropped["dropped"], dropped["level"], more["logger"]) == (2, "warning", "stderr")
