"""Probing a start: often at first, then less, never past the start timeout; Knative's probes by their headers."""

import pytest

from tidegate.queue_proxy.probes import (
    KnativeProbe,
    LivenessCount,
    LivenessProbe,
    StartProbe,
    knative_probe,
    liveness_answer,
    readiness_answer,
)


def test_pauses_grow_with_the_age_of_the_start() -> None:
    probe = StartProbe(100.0, 120.0)
    assert [probe.failed(100.0 + age, "refused") for age in (0.0, 9.9, 10.0, 59.0, 60.0)] == [
        0.010,
        0.010,
        0.025,
        0.025,
        0.050,
    ]


def test_it_gives_up_at_the_start_timeout_and_says_what_it_saw_last() -> None:
    probe = StartProbe(0.0, 5.0)
    assert probe.failed(4.9, "refused") == pytest.approx(0.010)
    assert probe.failed(4.995, "readiness answered 503") == pytest.approx(0.005)
    assert probe.failed(5.005, "no answer within 0.01 s") is None, "the start timeout has cut this attempt short"
    assert probe.message() == "not ready within 5 s (3 attempts; last: readiness answered 503)"


def test_the_only_attempt_of_a_start_is_what_it_saw_last() -> None:
    probe = StartProbe(0.0, 1.0)
    assert probe.failed(1.0, "no answer within 1 s") is None
    assert probe.message() == "not ready within 1 s (1 attempts; last: no answer within 1 s)"


def test_an_attempt_never_outlives_the_timeout() -> None:
    probe = StartProbe(0.0, 5.0)
    assert probe.attempt_timeout(0.0) == 2.0
    assert probe.attempt_timeout(4.0) == 1.0
    assert probe.attempt_timeout(6.0) == 0.010


def test_only_2xx_is_ready() -> None:
    assert readiness_answer(200) is None
    assert readiness_answer(204) is None
    assert readiness_answer(302) == "readiness answered 302"


@pytest.mark.parametrize(
    ("agent", "network", "digest", "kind"),
    [
        (b"kube-probe/1.30", b"queue", None, KnativeProbe.QUEUE),
        (b"Knative-Activator-Probe", b"queue", None, KnativeProbe.QUEUE),
        (b"kube-probe/1.30", None, None, KnativeProbe.BAD),
        (b"kube-probe/1.30", b"probe", b"x", KnativeProbe.BAD),
        (b"curl", b"probe", b"abc", KnativeProbe.NETWORK),
        (None, b"probe", None, KnativeProbe.BAD),
        (b"curl", b"queue", None, KnativeProbe.NONE),
        (None, None, None, KnativeProbe.NONE),
    ],
)
def test_knatives_probes(agent: bytes | None, network: bytes | None, digest: bytes | None, kind: KnativeProbe) -> None:
    assert knative_probe(agent, network, digest) is kind


def test_a_liveness_probe_gives_up_after_failures_in_a_row() -> None:
    count = LivenessCount(LivenessProbe(path="/live", failures=3))
    assert [count.probed("it answered 500") for _ in range(2)] == [None, None]
    assert count.probed(None) is None, "one success resets the count"
    assert [count.probed("no answer within 1 s") for _ in range(2)] == [None, None]
    assert count.probed("it answered 500") == (
        "its liveness probe (/live) failed 3 times in a row; last: it answered 500"
    )
    assert LivenessCount(LivenessProbe(path=None, failures=1)).probed("refused") == (
        "its liveness probe (a connection) failed once; last: refused"
    )


def test_a_redirect_is_alive_and_an_error_is_not() -> None:
    assert liveness_answer(302) is None
    assert liveness_answer(404) == "it answered 404"
