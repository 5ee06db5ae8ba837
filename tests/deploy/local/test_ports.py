"""Fixed ports: who is_required on one is learnt from how its server fails."""

from dataclasses import replace

import pytest

from tests.support.live.backends import revision
from tidegate.deploy.local.fixed_ports import FixedPorts, is_replaceable, lost_port, port_hint
from tidegate.deploy.local.replica import metrics_port
from tidegate.function import Function, MetricsEndpoint, Server, ServerKind

WORDS = ["OSError: [Errno 98] Address already in use"]


def fixed(*words: str) -> Function:
    return replace(revision(port=9000).function, server=Server(kind=ServerKind.COMMAND, argv=("server", *words)))


@pytest.mark.parametrize(
    "words",
    [
        "listen tcp :9000: bind: address already in use",
        "Error: listen EADDRINUSE :::9000",
        "Port 9000 is in use",
        "2026-11-22 13:22:59,123 ERROR OSError: [Errno 98] Address already in use",
        "[2026-11-22 13:22:59 +0000] [12345] [ERROR] bind failed: Address already in use",
        "2026-11-22T13:22:59.1234Z main.go:1234: listen tcp 10.0.0.12:9000: bind: address already in use",
        "server.py:1234: address already in use",
        *WORDS,
    ],
)
def test_a_server_that_fails_for_its_port_insists_on_it(words: str) -> None:
    ports = FixedPorts()
    assert not ports.is_required(fixed())
    assert ports.has_failed_for_it(fixed(), 41000, ["starting", words])
    assert ports.is_required(fixed())
    assert [ports.is_wanted(port) for port in (9000, 9001, None)] == [True, False, False]
    assert not ports.is_required(replace(fixed(), name="other"))
    assert not ports.is_required(replace(fixed(), port=9001))
    assert not ports.is_required(fixed("--port", "{port}")), "another command is asked anew"


def test_other_failures_teach_nothing() -> None:
    ports = FixedPorts()
    assert not ports.has_failed_for_it(fixed(), 41000, ["no such weights"])
    assert not ports.has_failed_for_it(fixed(), 9000, WORDS), "it had its port: somebody else's fault"
    assert not ports.has_failed_for_it(fixed("--port", "{port}"), 41000, WORDS), "it takes any port"
    assert not ports.has_failed_for_it(replace(fixed(), port=None), 41000, WORDS)
    for other in ("address ('0.0.0.0', 8002): address", "listen tcp 0.0.0.0:8002: address", "port 8002: address"):
        assert not ports.has_failed_for_it(fixed(), 41000, [f"12:00:59 [Errno 98] {other} already in use"])
    assert not ports.is_required(fixed())
    assert is_replaceable(fixed("{port}"))
    assert not is_replaceable(fixed())


def test_a_placeholder_gives_each_replica_a_metrics_port_of_its_own() -> None:
    function = replace(fixed("--metrics={metrics_port}"), metrics=MetricsEndpoint())
    one = metrics_port(function, False, set())
    assert one is not None
    assert metrics_port(function, False, {one}) not in (None, one)
    wanted = replace(function, metrics=MetricsEndpoint(port=one))
    assert metrics_port(wanted, False, set()) == one
    assert metrics_port(wanted, False, {one}) != one


def test_without_it_the_metrics_are_where_the_manifest_says() -> None:
    assert metrics_port(fixed(), False, set()) is None
    assert metrics_port(replace(fixed(), metrics=MetricsEndpoint()), False, set()) is None
    assert metrics_port(replace(fixed(), metrics=MetricsEndpoint(port=9002)), False, {9002}) == 9002
    assert metrics_port(replace(fixed("{metrics_port}"), metrics=MetricsEndpoint(port=9002)), True, set()) is None


@pytest.mark.parametrize(
    ("given", "holder", "hint"),
    [
        (9000, None, None),
        (41000, "a-00001-x", "port 9000 is held by a-00001-x, so it was given 41000 instead (PORT)"),
        (41000, None, "port 9000 is held by another program, so it was given 41000 instead (PORT)"),
    ],
)
def test_a_fixed_port_that_was_lost_is_named_with_its_holder(given: int, holder: str | None, hint: str | None) -> None:
    assert lost_port(fixed(), given, holder) == hint
    assert lost_port(fixed("{port}"), given, holder) is None, "any port does"


def test_a_server_that_listens_elsewhere_has_another_hint_than_one_that_lost_its_port() -> None:
    assert port_hint(9000, (80, 9000), "lost") is None
    assert port_hint(9000, (), None) == "it listens on no port, 9000 was expected (PORT, {port})"
    assert port_hint(9000, (80, 81), None) == "it listens on port 80, 81, 9000 was expected (PORT, {port})"
    assert port_hint(9000, (80,), "lost") == "lost"
