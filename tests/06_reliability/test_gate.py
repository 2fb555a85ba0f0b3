"""The door counts who is in, refuses cheaply and says when to come back."""

import pytest

from aie_reliability import AdmissionGate, DrainingError, OverloadedError, RateLimitedError, ReliabilityConfig
from aie_server import AdmitRequest

REQUEST = AdmitRequest(client_key="a", path="/v1/completions")


def test_bounded_in_flight(clock):
    gate = AdmissionGate(ReliabilityConfig(max_in_flight=2), clock=clock)
    first, second = gate.admit(REQUEST), gate.admit(REQUEST)
    with pytest.raises(OverloadedError) as refusal:
        gate.admit(REQUEST)
    assert refusal.value.status == 503 and refusal.value.retry_after_s > 0
    with first:
        pass
    assert gate.in_flight == 1
    with gate.admit(REQUEST), second:
        assert gate.in_flight == 2
    assert gate.in_flight == 0


@pytest.mark.parametrize("most", [1, None])
def test_predictions_have_room_of_their_own(clock, most):
    gate = AdmissionGate(ReliabilityConfig(max_in_flight=1, max_predictions=most), clock=clock)
    prediction = AdmitRequest("a", "/predict/m", is_prediction=True)
    with gate.admit(REQUEST), gate.admit(prediction):
        assert gate.in_flight == 2
        if most is None:  # their own queue says when it is full, and what then
            with gate.admit(prediction):
                assert gate.in_flight == 3
        else:
            with pytest.raises(OverloadedError, match="holds 1 requests"):
                gate.admit(prediction)
    assert gate.in_flight == 0


def test_a_place_is_given_back_once(clock):
    gate = AdmissionGate(ReliabilityConfig(), clock=clock)
    place = gate.admit(REQUEST)
    for _ in range(2):
        with place:
            pass
    assert gate.in_flight == 0


def test_a_place_is_given_back_when_the_handler_raises(clock):
    gate = AdmissionGate(ReliabilityConfig(), clock=clock)
    with pytest.raises(KeyError), gate.admit(REQUEST):
        raise KeyError
    assert gate.in_flight == 0


def test_rate_limit_takes_no_place(clock):
    gate = AdmissionGate(ReliabilityConfig(rate_limit_per_s=1.0, rate_limit_burst=1.0), clock=clock)
    with gate.admit(REQUEST):
        with pytest.raises(RateLimitedError):
            gate.admit(REQUEST)
        assert gate.in_flight == 1


def test_draining_refuses_and_is_not_ready(clock):
    gate = AdmissionGate(ReliabilityConfig(grace_s=20), clock=clock)
    assert gate.ready() == (True, "ready")
    gate.begin_drain()
    clock.advance(5)
    with pytest.raises(DrainingError) as refusal:
        gate.admit(REQUEST)
    assert refusal.value.retry_after_s == pytest.approx(15)
    assert gate.ready() == (False, "draining")


def test_not_ready_while_the_engine_is_not(clock):
    gate = AdmissionGate(ReliabilityConfig(), engines_ready=lambda: (False, "engine died"), clock=clock)
    assert gate.ready() == (False, "engine died")
