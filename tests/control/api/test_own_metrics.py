"""The control process's own figures, read from a round that is only pretended."""

from types import SimpleNamespace
from typing import cast

from prometheus_client import CollectorRegistry, generate_latest

from tidegate.clock import ManualClock
from tidegate.control.api.own_metrics import ControlCollector
from tidegate.control.rounds.round import Round
from tidegate.control.watch.gpus import Gpus
from tidegate.deploy.revocation import Revocations


def test_learnt_service_rates_are_shown_by_group_and_unknown_ones_are_not() -> None:
    replicas = [
        SimpleNamespace(function="echo", revision="echo-00001", accelerator=name, state=SimpleNamespace(value="ready"))
        for name in ("t4", "t4", "v100")
    ]
    world = SimpleNamespace(
        backend=SimpleNamespace(replicas=lambda: replicas),
        registry=SimpleNamespace(all=lambda: ()),
        autoscaler=SimpleNamespace(mu_ips=lambda revision, accelerator: {"t4": 65.25}.get(accelerator)),
        clock=ManualClock(0.0),
        gpus=Gpus(None),
        revocations=Revocations(),
    )
    registry = CollectorRegistry()
    registry.register(ControlCollector(cast("Round", world), epoch=1, gateways=lambda: (), faults=lambda: 0))
    text = generate_latest(registry).decode()
    rates = [line for line in text.splitlines() if line.startswith("tidegate_group_service_rate{")]
    assert rates == ['tidegate_group_service_rate{function="echo",group="t4",revision="echo-00001"} 65.25']
