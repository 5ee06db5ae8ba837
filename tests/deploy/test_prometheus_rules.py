"""The shipped rules by Prometheus' own `promtool`: each alert fires on the series of its fault and clears after it; and
without it: each alert has its runbook, each rule and alert names metrics that there are."""

import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.live.prometheus_server import SHIPPED, alerts
from tidegate.metrics import CATALOGUE, MetricKind

D: Final = 'deployment="d"'
F: Final = f'{D},function="f"'
R: Final = f'{F},revision="f-00001"'
W: Final = f'{D},worker="g0"'
SLA: Final = ((f"tidegate_sla_objective_ratio{{{R}}}", "0.98x1200"),)
LATE: Final = (
    *SLA,
    (f'tidegate_gateway_ended_requests_total{{{R},outcome="answered"}}', "0+60x1200"),
    (f"tidegate_gateway_within_sla_requests_total{{{R}}}", "0+30x420 12600+60x780"),
)
"""Half of the requests are late for seven hours, then none is."""

FAULTS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "TidegateDown": ((f'up{{job="tidegate",{D}}}', "1x5 0x415 1x780"),),
    "TidegateSlaBurnsFast": LATE,
    "TidegateSlaBurns": LATE,
    "TidegateRequestsFail": (
        (f'tidegate_gateway_ended_requests_total{{{R},outcome="answered"}}', "0+60x1200"),
        (f'tidegate_gateway_ended_requests_total{{{R},outcome="failed"}}', "0+6x420 2520x780"),
    ),
    "TidegateWaitingTooLong": ((f"tidegate_gateway_oldest_waiting_seconds{{{R}}}", "0x5 0+60x415 0x780"),),
    "TidegateCircuitOpen": ((f"tidegate_gateway_circuit_open{{{R}}}", "0x5 1x415 0x780"),),
    "TidegateReplicasEjected": ((f"tidegate_gateway_ejected_replicas{{{R}}}", "0x5 1x415 0x780"),),
    "TidegateReplicasBreak": (
        (f'tidegate_replica_failures_total{{{R},accelerator="cpu",cause="killed"}}', "_x410 3+1x9 12x780"),
    ),
    "TidegateReplicasMissing": (
        (f"tidegate_desired_replicas{{{R}}}", "2x1200"),
        (f"tidegate_dry_run{{{R}}}", "0x1200"),
        (f'tidegate_replicas{{{R},accelerator="cpu",state="ready"}}', "_x5 1x415 2x780"),
    ),
    "TidegateStartsRevoked": (
        (f'tidegate_revoked_starts_total{{{D},revision="f-00001",accelerator="t4"}}', "_x415 1x785"),
    ),
    "TidegateGatewayRestarts": ((f"tidegate_control_gateway_restarts_total{{{W}}}", "0x415 1x785"),),
    "TidegateConnectionsShed": (
        (f'tidegate_gateway_shed_connections_total{{{W},limit="client"}}', "0+5x420 2100x780"),
    ),
    "TidegateFaults": ((f"tidegate_control_faults{{{D}}}", "0x5 1x415 0x780"),),
    "TidegateMetricsIncomplete": ((f"tidegate_control_unreadable_expositions{{{D}}}", "0x5 1x415 0x780"),),
    "TidegateDecisionsLate": (
        (f'tidegate_control_round_seconds_bucket{{{D},le="1"}}', "0x420 0+60x780"),
        (f'tidegate_control_round_seconds_bucket{{{D},le="2.5"}}', "0+60x1200"),
        (f'tidegate_control_round_seconds_bucket{{{D},le="+Inf"}}', "0+60x1200"),
    ),
    "TidegateQuotasLocal": ((f"tidegate_gateway_quotas_local{{{W}}}", "0x5 1x415 0x780"),),
    "TidegateRoomsLocal": ((f"tidegate_gateway_rooms_local{{{W}}}", "0x5 1x415 0x780"),),
    "TidegateAccessLogDropped": ((f"tidegate_gateway_access_log_dropped_lines_total{{{W}}}", "0+5x420 2100x780"),),
    "TidegateModelMetricsMissing": (
        (f'tidegate_app_metrics_up{{{R},group="cpu",replica="f-00001-a"}}', "1x5 0x415 1x780"),
    ),
    "TidegateJobsUnwritten": ((f"tidegate_gateway_jobs_unwritten{{{W}}}", "0x5 2x415 0x780"),),
}
"""Of each alert: series with a value a minute. At minute 420 the fault has lasted, at 1200 it is long over."""


def firing(name: str, at: str, count: int) -> dict[str, Any]:
    expression = f'count(ALERTS{{alertname="{name}",alertstate="firing"}})'
    return {"expr": expression, "eval_time": at, "exp_samples": [{"labels": "{}", "value": count}] if count else []}


def test_there_is_a_fault_for_every_alert() -> None:
    assert FAULTS.keys() == alerts().keys()


@pytest.mark.live
@pytest.mark.needs(tool="prometheus")
@pytest.mark.parametrize("name", FAULTS)
def test_an_alert_fires_by_its_fault_and_clears_after_it(name: str, tmp_path: Path) -> None:
    test = {
        "rule_files": [str(SHIPPED / "rules.yml"), str(SHIPPED / "alerts.yml")],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": series, "values": values} for series, values in FAULTS[name]],
                "promql_expr_test": [firing(name, "0m", 0), firing(name, "419m", 1), firing(name, "1200m", 0)],
            }
        ],
    }
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump(test))
    done = subprocess.run(("promtool", "test", "rules", str(path)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.live
@pytest.mark.needs(tool="prometheus")
def test_promtool_finds_nothing_wrong(tmp_path: Path) -> None:
    config = tmp_path / "prometheus.yml"
    (tmp_path / "token").touch()
    config.write_text((SHIPPED / "prometheus.yml").read_text().replace("STATE", str(tmp_path)))
    for name in ("rules.yml", "alerts.yml"):
        (tmp_path / name).write_text((SHIPPED / name).read_text())
    done = subprocess.run(("promtool", "check", "config", str(config)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_its_runbook() -> None:
    page = (SHIPPED.parents[1] / "docs" / "operate" / "runbooks.md").read_text()
    sections = {line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")}
    assert sections == alerts().keys()
    for name, alert in alerts().items():
        assert alert["annotations"]["runbook_url"] == f"docs/operate/runbooks.md#{name.lower()}"
        assert alert["labels"]["severity"] in ("critical", "warning")


def test_rules_and_alerts_name_metrics_that_there_are() -> None:
    known = {each.name for each in CATALOGUE}
    for each in CATALOGUE:
        if each.kind is MetricKind.HISTOGRAM:
            known |= {f"{each.name}_bucket", f"{each.name}_sum", f"{each.name}_count"}
    for name in ("rules.yml", "alerts.yml"):
        groups = yaml.safe_load((SHIPPED / name).read_text())["groups"]
        expressions = " ".join(rule["expr"] for group in groups for rule in group["rules"])
        named = set(re.findall(r"(?<![:\w])tidegate_\w+(?![\w:])", re.sub(r"\w+:tidegate_[\w:]+", "", expressions)))
        assert named <= known, named - known
