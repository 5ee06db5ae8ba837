"""``tidegate simulate`` of pipelines: the load is the pipeline's, the replicas are its stages'."""

import json
from pathlib import Path

import pytest

from tests.control.cli.test_commands import tidegate

FUNCTION = """\
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata: {name: NAME}
spec:
  server: {command: [serve]}
  concurrency: 1
"""
PIPELINE = """\
apiVersion: tidegate.dev/v1alpha1
kind: Pipeline
metadata:
  name: both
  annotations: {tidegate.dev/latency: 400ms, tidegate.dev/percentile: "98"}
spec:
  stages: [{function: first}, {function: second}]
"""
ACCELERATORS = """\
accelerators:
  - {name: t4, kind: emulated, count: 12, memory: 16Gi, price-per-hour: 0.5, profile: {base: 20ms, per-item: 10ms}}
"""


@pytest.fixture
def case(tmp_path: Path) -> list[str]:
    """The options that name the files."""
    documents = [FUNCTION.replace("NAME", name) for name in ("first", "second")]
    (tmp_path / "f.yaml").write_text("---\n".join([*documents, PIPELINE]))
    (tmp_path / "a.yaml").write_text(ACCELERATORS)
    return ["--function", str(tmp_path / "f.yaml"), "--accelerators", str(tmp_path / "a.yaml"), "--for", "20s"]


def test_a_pipelines_requests_run_through_its_stages(case: list[str]) -> None:
    flags = ["--ready", "2", "--policy", "tide", "--policy", "horizontal-only", "--json"]
    done = tidegate("simulate", *case, "--rate", "20", *flags)
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["notes"][-1] == "no bound: of a pipeline none is known"
    for policy in found["policies"]:
        whole, each = policy["figures"], policy["functions"]
        assert whole["requests"] == each["both"]["requests"] > 300 and each["first"]["requests"] == 0
        assert 0.06 <= whole["p50_s"] < 0.2, "30 ms in each stage"
        seconds = [each[name]["replica_seconds"] for name in ("first", "second")]
        assert each["both"]["replica_seconds"] == pytest.approx(sum(seconds))
        assert each["both"]["cost_dollars"] == pytest.approx(whole["cost_dollars"])
        assert "workload_tau_percent" not in whole, "demand of stages is not known"
    assert [each["policy"] for each in found["policies"]] == ["tide", "horizontal-only"]


def test_a_stage_may_have_callers_of_its_own_and_text_and_csv_name_all(case: list[str], tmp_path: Path) -> None:
    csv = tmp_path / "seconds.csv"
    loads = ["--rate", "both=10", "--rate", "first=5", "--ready", "first=1"]
    done = tidegate("simulate", *case, *loads, "--seed", "7", "--csv", str(csv))
    assert done.exit_code == 0, done.output
    assert "second: no callers of its own" in done.output and "seed      7" in done.output
    assert "both: open loop, 10 requests/s, poisson; 98 % within 400 ms" in done.output
    assert {line.split(",")[1] for line in csv.read_text().splitlines()[1:]} == {"first", "second", "both"}


def test_closed_loops_call_pipelines(case: list[str]) -> None:
    done = tidegate("simulate", *case, "--callers", "2", "--ready", "1", "--json")
    figures = json.loads(done.output)["policies"][0]["figures"]
    assert figures["failures"] == 0 and 500 <= figures["requests"] <= 700, "two at a time, 60 ms each"


def test_what_cannot_be_simulated_is_refused_with_every_fault(case: list[str], tmp_path: Path) -> None:
    wrong = PIPELINE.replace("{function: second}", "{function: secnd, when: {field: x, above: 1}}")
    (tmp_path / "f.yaml").write_text("---\n".join([FUNCTION.replace("NAME", "second"), wrong]))
    done = tidegate("simulate", *case, "--rate", "20", "--ready", "both=1")
    assert done.exit_code == 2
    assert "both: spec.stages[0].function: got 'first'" in done.output
    assert "did you mean `second`" in done.output and "no condition: answers are not simulated" in done.output
    assert "--ready: got both; allowed: a function: a pipeline has the replicas of its stages" in done.output
