"""Many processes, one text; the control process's own figures, read from a loop that is only pretended."""

from types import SimpleNamespace
from typing import cast

from prometheus_client import CollectorRegistry, Counter, generate_latest

from tidegate.clock import ManualClock
from tidegate.control.api.describe import FunctionViews
from tidegate.control.api.prometheus import ControlCollector, render
from tidegate.control.rounds.wiring import ControlLoop
from tidegate.control.watch.gpus import Gpus
from tidegate.deploy.revocation import Revocations

WORKER = """# HELP tidegate_gateway_requests_total Requests that arrived.
# TYPE tidegate_gateway_requests_total counter
tidegate_gateway_requests_total{function="echo",revision="echo-00001"} %d
# HELP tidegate_gateway_oldest_waiting_seconds Age of the oldest waiting request.
# TYPE tidegate_gateway_oldest_waiting_seconds gauge
tidegate_gateway_oldest_waiting_seconds{function="echo",revision="echo-00001"} %s
# HELP tidegate_gateway_latency_seconds Latency.
# TYPE tidegate_gateway_latency_seconds histogram
tidegate_gateway_latency_seconds_bucket{function="echo",le="0.1"} 1
tidegate_gateway_latency_seconds_bucket{function="echo",le="+Inf"} 2
tidegate_gateway_latency_seconds_sum{function="echo"} 0.5
tidegate_gateway_latency_seconds_count{function="echo"} 2
# HELP tidegate_gateway_connections Open.
# TYPE tidegate_gateway_connections gauge
tidegate_gateway_connections{worker="%s"} 3
"""


def test_equal_series_add_up_and_ages_do_not() -> None:
    own = CollectorRegistry()
    Counter("tidegate_control_rounds", "Rounds.", registry=own).inc(7)
    text = render(own, [WORKER % (3, "0.5", "g0"), WORKER % (4, "0.2", "g1"), "this is { no exposition\n"]).decode()
    assert "tidegate_control_rounds_total 7.0" in text
    assert 'tidegate_gateway_requests_total{function="echo",revision="echo-00001"} 7.0' in text
    assert 'tidegate_gateway_oldest_waiting_seconds{function="echo",revision="echo-00001"} 0.5' in text
    assert 'tidegate_gateway_latency_seconds_bucket{function="echo",le="0.1"} 2.0' in text
    assert 'tidegate_gateway_latency_seconds_count{function="echo"} 4.0' in text
    assert 'tidegate_gateway_connections{worker="g0"} 3.0' in text
    assert 'tidegate_gateway_connections{worker="g1"} 3.0' in text
    assert text.count("# TYPE tidegate_gateway_requests_total counter") == 1
    assert "tidegate_control_unreadable_expositions 1" in text


def test_nobody_else_is_fine() -> None:
    assert b"unreadable_expositions 0" in render(CollectorRegistry(), [])


def test_learnt_service_rates_are_shown_by_group_and_unknown_ones_are_not() -> None:
    replicas = [
        SimpleNamespace(function="echo", revision="echo-00001", accelerator=name, state=SimpleNamespace(value="ready"))
        for name in ("t4", "t4", "v100")
    ]
    world = SimpleNamespace(
        backend=SimpleNamespace(replicas=lambda: replicas),
        registry=SimpleNamespace(all=lambda: ()),
        revocations=Revocations(),
    )
    loop = SimpleNamespace(
        world=world,
        autoscaler=SimpleNamespace(
            core=SimpleNamespace(mu_ips=lambda revision, accelerator: {"t4": 65.25}.get(accelerator))
        ),
        clock=ManualClock(0.0),
        instruments=SimpleNamespace(gpus=Gpus(None)),
    )
    views = cast("FunctionViews", SimpleNamespace())
    registry = CollectorRegistry()
    registry.register(
        ControlCollector(cast("ControlLoop", loop), views, epoch=1, gateways=lambda: (), faults=lambda: 0)
    )
    text = generate_latest(registry).decode()
    rates = [line for line in text.splitlines() if line.startswith("tidegate_group_service_rate{")]
    assert rates == ['tidegate_group_service_rate{function="echo",group="t4",revision="echo-00001"} 65.25']
