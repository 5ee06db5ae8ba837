"""What `tidegate profile` reads: the model, and times from metrics."""

import os
from pathlib import Path

import pytest

from tidegate.control.cli.profile.run import executions, most_memory, target_of
from tidegate.errors import InvalidInputError

METRICS = """
# TYPE tidegate_queue_proxy_execution_seconds histogram
tidegate_queue_proxy_execution_seconds_bucket{function="m-profile",replica="a",le="0.01"} 7
tidegate_queue_proxy_execution_seconds_sum{function="m-profile",replica="a"} 1.5
tidegate_queue_proxy_execution_seconds_count{function="m-profile",replica="a"} 10
tidegate_queue_proxy_execution_seconds_sum{function="m-profile",replica="b"} 0.5
tidegate_queue_proxy_execution_seconds_count{function="m-profile",replica="b"} 5
tidegate_queue_proxy_execution_seconds_sum{function="m",replica="c"} 9
tidegate_queue_proxy_wait_seconds_sum{function="m-profile",replica="a"} 4
"""
MANIFEST = """
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata:
  name: {name}
  annotations: {{tidegate.dev/latency: 50ms, tidegate.dev/max-scale: "4"}}
spec:
  server: {{handler: "model.py:Model"}}
  match: [{{host: resnet.example}}]
"""


def test_times_are_summed_over_the_replicas_of_one_function() -> None:
    assert executions(METRICS, "m-profile") == (2.0, 15.0)
    assert executions("", "m-profile") == (0.0, 0.0)


def test_the_memory_of_a_process_is_seen_and_of_none_it_is_not() -> None:
    seen = most_memory((os.getpid(),))
    assert seen is None or seen > 1 << 20
    assert most_memory((2**22 + 1,)) is None
    assert most_memory(()) is None


def test_it_runs_beside_the_function_of_its_name_without_its_sla_and_routes(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("class Model: pass\n")
    file = tmp_path / "m.yaml"
    file.write_text(MANIFEST.format(name="resnet"))
    target = target_of(str(file), None, {}, None, [], [])
    alone = target.function
    assert (target.name, alone.name, alone.models) == ("resnet", "resnet-profile", ("resnet-profile",))
    assert (alone.scaling.min_scale, alone.scaling.max_scale) == (1, 1)
    assert alone.sla.latency_s is None
    assert not alone.routing.matches
    again = target_of(str(file), None, {}, None, [], [])
    assert again.digest == target.digest
    other = target_of(str(file), None, {}, None, ["THREADS=2"], [])
    assert other.digest != target.digest, "results of another model do not count"


def test_a_long_name_stays_a_name(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("class Model: pass\n")
    file = tmp_path / "m.yaml"
    file.write_text(MANIFEST.format(name="a" * 54 + "-b" + "c" * 7))
    assert target_of(str(file), None, {}, None, [], []).function.name == "a" * 54 + "-profile"


def test_several_functions_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("class Model: pass\n")
    file = tmp_path / "m.yaml"
    file.write_text(MANIFEST.format(name="a") + "---" + MANIFEST.format(name="b"))
    with pytest.raises(InvalidInputError, match="2 functions; allowed: one function"):
        target_of(str(file), None, {}, None, [], [])
