"""From text to functions. The folder `manifests` contains a file per rule: `good` ones, and `bad` ones with all
expected faults in their last lines."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tidegate.errors import InvalidInputError
from tidegate.function import (
    Batching,
    BatchRule,
    ConcurrencyUnit,
    DnnModel,
    Function,
    GpuNeeds,
    MetricsEndpoint,
    Protocol,
    Quantization,
    QueueBounds,
    Readiness,
    Resources,
    Routing,
    Scaling,
    Server,
    ServerKind,
    Sla,
    TaskClass,
)
from tidegate.manifest.builder import ParseContext
from tidegate.manifest.reader import parse, read
from tidegate.records.route_table import Binding, HeaderMatch, Hedging, OutlierRules, QueueOrder, RouteMatch, Spread
from tidegate.schema.files import Found, NamedFiles

FOLDER = Path(__file__).parent / "manifests"
MARK = "# fault: "


def names(kind: str) -> list[str]:
    return sorted(path.stem for path in (FOLDER / kind).glob("*.yaml"))


def good(name: str) -> str:
    return (FOLDER / "good" / f"{name}.yaml").read_text(encoding="utf-8")


def faults(text: str, context: ParseContext) -> list[str]:
    with pytest.raises(InvalidInputError) as raised:
        read(text, source="manifest.yaml", context=context)
    return [str(fault) for fault in raised.value.faults]


@pytest.mark.parametrize("name", names("bad"))
def test_a_bad_manifest_is_reported_all_its_faults(name: str, context: ParseContext) -> None:
    text, *expected = (FOLDER / "bad" / f"{name}.yaml").read_text(encoding="utf-8").split(MARK)
    assert expected, "the file lists the expected faults"
    assert faults(text, context) == [line.removesuffix("\n") for line in expected]


@pytest.mark.parametrize("name", names("good"))
def test_a_good_manifest_is_read(name: str, context: ParseContext) -> None:
    assert read(good(name), source=name, context=context).functions


def test_the_smallest_manifest_gets_every_default(context: ParseContext) -> None:
    (function,) = read(good("smallest"), source="smallest", context=context).functions
    assert function == Function(
        name="resnet",
        server=Server(kind=ServerKind.MODEL, target="/home/resnet50.onnx"),
        models=("resnet",),
        workdir="/home",
    )


def test_every_key_lands_in_the_function(context: ParseContext) -> None:
    assert read(good("everything"), source="everything", context=context).functions == (
        Function(
            name="resnet",
            server=Server(kind=ServerKind.HANDLER, target="/home/handler.py:Model"),
            protocol=Protocol.OPENAI,
            port=9000,
            models=("resnet", "org/resnet-50.v2"),
            concurrency=4,
            concurrency_unit=ConcurrencyUnit.INFERENCES,
            sla=Sla(latency_s=0.2, percentile=99.9, target_ips=50.0, drop_after=3.0),
            scaling=Scaling(policy="smif", min_scale=1, max_scale=8, initial_scale=2, scale_to_zero_after_s=90.0),
            batch_rule=BatchRule(header="x-batch", bytes_per_item=602112.0, overhead_bytes=120.5, max_batch=64),
            batching=Batching(max_size=32, delay_s=0.005),
            readiness=Readiness(path="/ready", start_timeout_s=600.0),
            warmup="/home/warmup.json",
            timeout_s=30.0,
            queue=QueueBounds(requests=100, bytes=64 * 2**20, max_wait_s=20.0),
            metrics=MetricsEndpoint(path="/stats", port=9002),
            accelerators=("t4", "h100"),
            resources=Resources(memory_bytes=2**31, threads=2),
            gpu=GpuNeeds(model="v100", memory_gb=4 * 2**30 / 10**9, mps=True, core_percentage=50, count=1),
            dnn=DnnModel(name="resnet50", quantization=Quantization.FP16, batch_size=16),
            task_class=TaskClass.THROUGHPUT_ORIENTED,
            user_metrics=True,
            env={"MODE": "on", "MASK": "0644", "EMPTY": ""},
            secrets={"TOKEN": "/home/token.txt"},
            workdir="/home/weights",
            python="/home/bin/python",
            idempotent=True,
            routing=Routing(
                spread=Spread.HASH,
                hash_on="cookie:Session",
                queue_order=QueueOrder.DEADLINE,
                binding=Binding.EARLY,
                priority=3,
                retry_percent=12.5,
                hedging=Hedging(percentile=None, after_s=0.05),
                outlier=OutlierRules(failures=3, ejection_s=2.0, max_percent=30),
                matches=(
                    RouteMatch(
                        host="models.example.com",
                        path_prefix="/vision",
                        headers=(HeaderMatch(name="x-model", value="resnet"), HeaderMatch(name="x-debug")),
                    ),
                    RouteMatch(path_prefix="/"),
                ),
            ),
        ),
    )


def test_volumes_are_refused_where_nothing_mounts_them_and_kept_on_kubernetes(context: ParseContext) -> None:
    text = good("smallest").replace("name:", "annotations: {tidegate.dev/volume-mounts: 'models:/models'}\n  name:", 1)
    (fault,) = faults(text, context)
    assert "volume-mounts: got 'models:/models'; allowed: it on Kubernetes only" in fault
    parsed = read(text, source="m", context=replace(context, images=True))
    assert (parsed.functions[0].volume_mounts, parsed.warnings) == ("models:/models", ())
    assert read(text.replace("models:/models", ""), source="m", context=context).warnings == ()


def test_what_is_kept_without_effect_is_reported(context: ParseContext) -> None:
    parsed = read(good("everything"), source="everything", context=context)
    here = "metadata.annotations.tidegate.dev"
    assert [str(note) for note in parsed.warnings] == [
        f"line 25: {here}/dnn-quantization: is kept, but has no effect: its server is no model repository",
        f"line 26: {here}/infer-batch-size: is kept, but has no effect: its server is no model repository",
        "line 31: metadata.annotations.example.com/owner: not an annotation of Tidegate; it has no effect here",
    ]
    assert read(good("smallest") + "  metrics: {}\n", source="m", context=context).warnings == ()


def test_a_latency_makes_tide_the_policy_where_it_exists(context: ParseContext) -> None:
    (function,) = read(good("command"), source="command", context=context).functions
    assert (function.sla.latency_s, function.scaling.policy) == (0.25, "tide")
    (function,) = read(good("command"), source="command", context=replace(context, policies=("kpa",))).functions
    assert function.scaling.policy == "kpa"


def test_what_a_server_is_ready_by_follows_its_protocol(context: ParseContext) -> None:
    for protocol, path in {"v2": "/v2/health/ready", "openai": "/health", "http": None, "grpc": None}.items():
        text = good("smallest") + f"  protocol: {protocol}\n"
        (function,) = read(text, source="m", context=context).functions
        assert function.readiness.path == path
    (function,) = read(good("smallest") + '  readiness: {path: ""}\n', source="m", context=context).functions
    assert function.readiness.path is None


def test_a_grpc_server_that_is_not_ours_takes_no_warm_up(context: ParseContext) -> None:
    ours = good("smallest") + "  protocol: grpc\n  warmup: warmup.json\n"
    (function,) = read(ours, source="m", context=context).functions
    assert function.warmup == "/home/warmup.json"
    theirs = re.sub(r"server: .*", "server: {command: [serve]}\n  port: 9000", ours)
    (reported,) = faults(theirs, context)
    assert "spec.warmup" in reported
    assert "no such key with protocol: grpc, except for a model or handler" in reported


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("key", ["hedge-after", "shadow-percent"])
def test_calls_of_a_grpc_function_may_have_copies_as_requests_over_http(
    context: ParseContext, key: str, protocol: str
) -> None:
    text = f"""apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata:
  name: plain
  annotations: {{tidegate.dev/{key}: {"p95" if key == "hedge-after" else "10"}, tidegate.dev/idempotent: "true"}}
spec: {{protocol: {protocol}, server: {{command: [serve]}}}}
"""
    assert not read(text, source="m", context=context).warnings


def test_the_initial_scale_follows_the_minimum(context: ParseContext) -> None:
    flags = {"min-scale": "3"}
    (function,) = read(good("smallest"), source="m", context=replace(context, flags=flags)).functions
    assert function.scaling.initial_scale == 3


def test_user_metrics_without_an_endpoint_means_the_usual_one(context: ParseContext) -> None:
    flags = {"user-metrics": "true"}
    (function,) = read(good("smallest"), source="m", context=replace(context, flags=flags)).functions
    assert function.metrics == MetricsEndpoint()
    (function,) = read(good("smallest") + "  metrics: {}\n", source="m", context=context).functions
    assert function.user_metrics


def test_images_are_read_where_they_can_run(context: ParseContext) -> None:
    text = (FOLDER / "bad" / "image-on-this-machine.yaml").read_text(encoding="utf-8")
    (function,) = read(text, source="m", context=replace(context, images=True)).functions
    assert function.server == Server(kind=ServerKind.IMAGE, target="registry/name:tag")


def test_the_models_owner_is_asked_only_within_one_text(context: ParseContext) -> None:
    functions = read(good("two-documents"), source="m", context=context).functions
    assert [function.name for function in functions] == ["one", "two"]
    assert functions[0].env == {"MODEL": "resnet50.onnx"}


# --- policies and their parameters -----------------------------------------------------------------------------------


def test_a_latency_means_the_sla_policy_unless_parameters_are_anothers(context: ParseContext) -> None:
    def policy(**annotations: str) -> str:
        keys = {key.replace("_", "-"): text for key, text in annotations.items()}
        (function,) = read(good("smallest"), source="m", context=replace(context, flags=keys)).functions
        return function.scaling.policy

    assert policy(latency="200ms") == "tide"
    assert policy(latency="200ms", **{"policy.sla-effort": "5"}) == "tide"
    assert policy(latency="200ms", **{"policy.cooldown": "30s"}) == "smif"
    assert policy(latency="200ms", **{"policy.target": "2"}) == "kpa"
    assert policy() == "kpa"


def test_a_time_per_output_token_needs_a_latency_and_tokens(context: ParseContext) -> None:
    text, paced = good("smallest"), {"time-per-output-token": "50ms"}
    with pytest.raises(InvalidInputError, match=r"no such key without tidegate\.dev/latency"):
        read(text, source="m", context=replace(context, flags=paced))
    flagged = replace(context, flags=paced | {"latency": "1s"})
    (warning,) = read(text, source="m", context=flagged).warnings
    assert warning.message == "is kept, but has no effect: tokens are counted with protocol: openai"
    (function,) = (found := read(text + "  protocol: openai\n", source="m", context=flagged)).functions
    assert (function.sla.per_token_s, function.scaling.policy, found.warnings) == (0.05, "tide", ())


def test_a_rate_to_provide_is_reported_to_have_no_effect_where_the_policy_ignores_it(context: ParseContext) -> None:
    flags = {"target-ips": "50", "latency": "200ms"}
    reported = {
        policy: [
            each.message for each in read(good("smallest"), source="m", context=replace(context, flags=more)).warnings
        ]
        for policy, more in (
            ("tide", flags),
            ("smif", flags | {"policy": "smif"}),
            ("kpa", flags | {"policy": "kpa"}),
        )
    }
    assert reported == {"tide": [], "smif": [], "kpa": ["is kept, but has no effect: its policy does not read it"]}


def test_parameters_of_the_kpa_keep_knatives_texts(context: ParseContext) -> None:
    (function,) = read(good("kpa-parameters"), source="m", context=context).functions
    assert function.scaling.parameters == {
        "metric": "concurrency",
        "target": "1e1",
        "target-utilization-percentage": "80",
        "target-burst-capacity": "-1",
        "window": "1m5s",
        "panic-window-percentage": "20",
        "panic-threshold-percentage": "150",
        "activation-scale": "2",
        "scale-down-delay": "30s",
        "scale-to-zero-pod-retention-period": "1500ms",
        "metric-aggregation-algorithm": "weighted-exponential",
    }


def test_a_policy_without_documented_parameters_has_none(context: ParseContext) -> None:
    own = replace(context, policies={"own"}, flags={"policy": "own", "policy.activation-scale": "x"})
    assert faults(good("smallest"), own) == [
        "--policy.activation-scale: got a parameter that own does not have; allowed: none"
    ]


# --- flags -----------------------------------------------------------------------------------------------------------


def test_flags_win_over_the_text(context: ParseContext) -> None:
    flags = {"latency": "1s", "timeout": "5s", "policy": "kpa", "policy.target": "7"}
    text = good("everything").replace("policy: smif", "policy: smif\n    tidegate.dev/policy.target: '3'")
    (function,) = read(text, source="m", context=replace(context, flags=flags)).functions
    assert (function.sla.latency_s, function.timeout_s) == (1.0, 5.0)
    assert (function.scaling.policy, function.scaling.parameters) == ("kpa", {"target": "7"})


def test_a_wrong_flag_is_reported_as_a_flag_and_once(context: ParseContext) -> None:
    """A manifest that was made from the flags repeats them; the fault is the flag's alone."""
    flags = {"latency": "fast", "drop-after": "3", "latencyy": "1s"}
    text = good("smallest").replace("name: resnet", "name: resnet\n  annotations: {tidegate.dev/latency: fast}")
    reported = faults(text, replace(context, flags=flags))
    assert reported[0].startswith("--latency: got 'fast'; allowed: none, or a duration")
    assert reported[1].startswith("--latencyy: got an unknown annotation 'latencyy'")
    assert len(reported) == 2


def test_weights_are_of_accelerators_that_the_function_may_use(context: ParseContext) -> None:
    here = replace(context, accelerators={"t4": "nvidia", "cpu": "cpu"}, flags={"group-weights": "t4=1,v100=2"})
    assert faults(good("smallest"), here) == [
        "--group-weights: got 't4=1,v100=2'; allowed: accelerators that the function may use (cpu, t4), not v100"
    ]
    for fine in (replace(here, accelerators=None), replace(here, flags={"group-weights": "equal"})):
        assert read(good("smallest"), source="m", context=fine).functions


def test_faults_of_all_documents_come_together(context: ParseContext) -> None:
    first, second = good("smallest"), good("smallest").replace("name: resnet", "name: other")
    text = first.replace("resnet50", "gone") + "---\n" + second.replace("model:", "modell:") + "  timeout: 0s\n"
    assert [fault.partition(":")[0] for fault in faults(text, context)] == ["line 6", "line 13", "line 13", "line 14"]


# --- parse -----------------------------------------------------------------------------------------------------------


def test_parse_gives_the_functions() -> None:
    files = NamedFiles({"/srv/m.onnx": Found.FILE})
    text = good("smallest").replace("resnet50", "m")
    (function,) = parse(text, source="m", base="/srv", policies={"kpa"}, files=files)
    assert function.server.target == "/srv/m.onnx"


def test_parse_looks_at_the_disk_unless_asked_otherwise(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"resnet50\.onnx is missing"):
        parse(good("smallest"), source="m", base=str(tmp_path), policies={"kpa"})
    (tmp_path / "resnet50.onnx").write_bytes(b"")
    assert parse(good("smallest"), source="m", base=str(tmp_path), policies={"kpa"})
