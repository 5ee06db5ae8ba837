"""Knative Services: the result of each part, and the warnings about parts without effect here."""

from dataclasses import replace
from pathlib import Path

import pytest

from tidegate.errors import InvalidInputError
from tidegate.function import Function, Liveness, Protocol, Readiness, Resources, Scaling, Server, ServerKind, Sla
from tidegate.manifest.builder import ParseContext
from tidegate.manifest.foreign.knative import expand
from tidegate.manifest.reader import Parsed, read
from tidegate.records.rollout import RolloutPlan

GOOD = (Path(__file__).parent / "manifests" / "good" / "knative.yaml").read_text(encoding="utf-8")
PLAIN = """\
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: hello}
spec:
  template:
    spec:
      containers:
        - command: [python, server.py]
"""


def service(context: ParseContext, *, container: str = "", annotations: str = "", top: str = "") -> Parsed:
    """Returns the plain Service with lines added to its container, its template's annotations and its top."""
    metadata = f"    metadata: {{annotations: {{{annotations}}}}}\n" if annotations else ""
    text = PLAIN.replace("  template:\n", f"  template:\n{metadata}")
    return read(
        text + "".join(f"          {line}\n" for line in container.splitlines()) + top, source="s", context=context
    )


def one(parsed: Parsed) -> Function:
    (function,) = parsed.functions
    return function


def test_a_service_with_a_command_runs_on_this_machine(context: ParseContext) -> None:
    assert one(read(GOOD, source="s", context=context)) == Function(
        name="hello",
        server=Server(
            kind=ServerKind.COMMAND,
            argv=("python", "server.py", "--port", "{port}", "--greet=Go", "$(TARGET)", "$(UNKNOWN)"),
        ),
        protocol=Protocol.HTTP,
        models=("hello",),
        concurrency=10,
        sla=Sla(latency_s=0.3),
        scaling=Scaling(
            policy="kpa",
            min_scale=2,
            max_scale=5,
            initial_scale=2,
            parameters={
                "metric": "rps",
                "target": "150",
                "target-utilization-percentage": "80",
                "activation-scale": "3",
                "window": "40s",
                "scale-down-delay": "15m",
            },
        ),
        readiness=Readiness(path="/healthz", start_timeout_s=90.0),
        timeout_s=120.0,
        accelerators=("h100", "t4", "v100"),
        resources=Resources(memory_bytes=2**30, threads=2),
        env={"TARGET": "Go", "GREETING": "Hello Go", "NOTHING": ""},
        workdir="/home",
        rollout=RolloutPlan(duration_s=60.0),
    )


def test_everything_without_effect_is_reported(context: ParseContext) -> None:
    assert [str(note) for note in read(GOOD, source="s", context=context).warnings] == [
        "line 6: metadata.namespace: has no effect here",
        "line 17: spec.template.metadata.annotations.autoscaling.knative.dev/minScale: "
        "has no effect: min-scale is given as well",
        "line 29: spec.template.spec.serviceAccountName: has no effect here",
        "line 32: spec.template.spec.containers[0].image: is not used: the command runs on this machine",
        "line 35: spec.template.spec.containers[0].ports: each replica gets a free port as PORT, as in Knative, "
        "but not this one",
        "line 40: spec.template.spec.containers[0].readinessProbe.periodSeconds: has no effect here",
        "line 43: spec.template.spec.containers[0].resources.requests.cpu: has no effect here",
    ]


def test_on_kubernetes_the_image_runs(context: ParseContext) -> None:
    function = one(read(GOOD, source="s", context=replace(context, images=True)))
    assert function.server.kind is ServerKind.IMAGE
    assert function.server.target == "ghcr.io/knative/helloworld-go:latest"
    assert (function.server.argv[0], function.port) == ("python", 8080)


def test_an_image_that_is_none_is_one_fault(context: ParseContext) -> None:
    text = PLAIN.replace("command: [python, server.py]", "image: 'docker.io/{username}/hello'")
    with pytest.raises(InvalidInputError) as caught:
        read(text, source="s", context=replace(context, images=True))
    (fault,) = caught.value.faults
    assert fault.where.endswith("containers[0].image")


def test_arguments_do_not_replace_the_program_of_an_image(context: ParseContext) -> None:
    """In a Pod, arguments without a command are those of the image's own program, which is not known here."""
    images = replace(context, images=True)
    text = PLAIN.replace("command: [python, server.py]", "{image: r/hello:1, args: [--port, '8080']}")
    with pytest.raises(InvalidInputError, match=r"args: got args without a command; allowed: none without a command"):
        read(text, source="s", context=images)
    assert one(read(text.replace("args: [--port, '8080']", "args: []"), source="s", context=images)).server.argv == ()


def test_the_plain_service_has_knatives_defaults(context: ParseContext) -> None:
    assert one(service(context)) == Function(
        name="hello",
        server=Server(kind=ServerKind.COMMAND, argv=("python", "server.py")),
        protocol=Protocol.HTTP,
        models=("hello",),
        concurrency=0,
        scaling=Scaling(policy="kpa"),
        readiness=Readiness(path=None, start_timeout_s=600.0),
        workdir="/home",
    )


def test_the_policy_is_knatives_unless_one_is_named(context: ParseContext) -> None:
    function = one(service(context, annotations="tidegate.dev/latency: 1s"))
    assert function.scaling.policy == "kpa"
    function = one(service(context, annotations="tidegate.dev/latency: 1s, tidegate.dev/policy: smif"))
    assert function.scaling.policy == "smif"
    hpa = replace(context, policies=("kpa", "hpa"))
    function = one(service(hpa, annotations="autoscaling.knative.dev/class: hpa.autoscaling.knative.dev"))
    assert function.scaling.policy == "hpa"


def test_an_initial_scale_above_the_maximum_is_cut(context: ParseContext) -> None:
    """Knative lets a revision start above its maximum; here the maximum holds from the start."""
    keys = "autoscaling.knative.dev/"
    parsed = service(context, annotations=f"{keys}initial-scale: 5, {keys}max-scale: 3")
    assert one(parsed).scaling.initial_scale == 3
    assert "is above max-scale" in str(parsed.warnings[0])


def test_an_unknown_annotation_is_reported_with_the_nearest_one(context: ParseContext) -> None:
    parsed = service(context, annotations="autoscaling.knative.dev/min-scal: 1")
    assert [note.message for note in parsed.warnings] == ["is unknown and has no effect (did you mean `min-scale`?)"]


def test_an_algorithm_that_knative_does_not_check_is_reported(context: ParseContext) -> None:
    parsed = service(context, annotations="autoscaling.knative.dev/metric-aggregation-algorithm: median")
    assert one(parsed).scaling.parameters == {}
    assert [note.message for note in parsed.warnings] == ["is unknown; the average is linear"]


@pytest.mark.parametrize(
    ("probe", "path"),
    [
        ("httpGet: {path: healthz}", "/healthz"),
        ("httpGet: {}", "/"),
        ("tcpSocket: {port: 8080}", None),
        ("tcpSocket: {port: 0}", None),
    ],
)
def test_readiness_probes(context: ParseContext, probe: str, path: str | None) -> None:
    parsed = service(context, container=f"readinessProbe: {{{probe}}}")
    assert one(parsed).readiness.path == path
    assert not parsed.warnings


@pytest.mark.parametrize("probe", ["exec: {command: [true]}", "grpc: {}"])
def test_probes_that_are_not_run_here_are_reported(context: ParseContext, probe: str) -> None:
    parsed = service(context, container=f"readinessProbe: {{{probe}}}")
    assert one(parsed).readiness.path is None
    assert [note.message for note in parsed.warnings] == [
        "is not run here: the server is ready when its port accepts connections"
    ]


def test_a_port_that_the_command_itself_names_is_fixed(context: ParseContext) -> None:
    parsed = service(context, container="args: [--port, '9000']\nports: [{containerPort: 9000, name: h2c}]")
    assert (one(parsed).port, one(parsed).protocol) == (9000, Protocol.GRPC)
    assert any("one replica per machine" in note.message for note in parsed.warnings)
    parsed = service(context, container="args: [--port, '19000']\nports: [{containerPort: 9000}]")
    assert one(parsed).port is None


def test_memory_is_its_limit_or_else_what_is_requested(context: ParseContext) -> None:
    parsed = service(context, container="resources: {requests: {memory: 64Mi}}")
    assert one(parsed).resources == Resources(memory_bytes=2**26)
    parsed = service(context, container="resources: {limits: {nvidia.com/gpu: 2, cpu: 100m}}")
    assert (one(parsed).gpu.count, one(parsed).resources.threads) == (2, 1)


def test_what_asks_for_a_gpu_is_not_put_on_a_cpu(context: ParseContext) -> None:
    asked = "resources: {limits: {nvidia.com/gpu: 1}}"
    assert one(service(context, container=asked)).accelerators == ("h100", "t4", "v100")
    assert one(service(context, container="resources: {requests: {nvidia.com/gpu: 1}}")).accelerators == ()
    parsed = service(replace(context, accelerators={"cpu-1core": "cpu"}), container=asked)
    assert one(parsed).accelerators == ()
    assert "there is no GPU here" in parsed.warnings[0].message


def test_a_port_of_the_name_h2c_speaks_grpc(context: ParseContext) -> None:
    parsed = service(context, container="ports: [{containerPort: 9000, name: h2c}]")
    assert one(parsed).protocol is Protocol.GRPC
    assert not any("grpc" in note.message.lower() for note in parsed.warnings)


def test_traffic_to_the_latest_revision_is_what_happens_anyway(context: ParseContext) -> None:
    assert not service(context, top="  traffic: [{latestRevision: true, percent: 100}]\n").warnings
    parsed = service(context, top="  traffic: [{latestRevision: true, percent: 100, tag: now}]\nstatus: {url: x}\n")
    assert [note.where for note in parsed.warnings] == ["spec.traffic[0].tag", "status"]


def test_a_timeout_of_zero_means_knatives_default(context: ParseContext) -> None:
    text = PLAIN.replace("    spec:\n", "    spec:\n      timeoutSeconds: 0\n")
    assert one(read(text, source="s", context=context)).timeout_s == 300.0


def test_flags_win_over_a_service_too(context: ParseContext) -> None:
    flags = {"min-scale": "3", "concurrency": "2", "policy.window": "30s"}
    function = one(read(GOOD, source="s", context=replace(context, flags=flags)))
    assert (function.scaling.min_scale, function.concurrency) == (3, 2)
    assert function.scaling.initial_scale == 3
    assert function.scaling.parameters["window"] == "30s"


def test_references_are_expanded_as_kubernetes_does() -> None:
    variables = {"A": "1", "PORT": "{port}"}
    assert expand("$(A)-$(PORT)-$(B)-$$(A)-$A-$", variables) == "1-{port}-$(B)-$(A)-$A-$"


def test_a_liveness_probe_is_kubernetes_own(context: ParseContext) -> None:
    probe = "livenessProbe: {httpGet: {path: healthz}, periodSeconds: 5, failureThreshold: 2, initialDelaySeconds: 3}"
    parsed = service(context, container=probe)
    assert one(parsed).liveness == Liveness(path="/healthz", period_s=5.0, timeout_s=1.0, failures=2)
    assert [note.where.rpartition(".")[2] for note in parsed.warnings] == ["initialDelaySeconds"]
    assert one(service(context, container="livenessProbe: {tcpSocket: {}}")).liveness.path == "tcp"
    unserved = service(context, container="livenessProbe: {exec: {command: [ls]}}")
    assert one(unserved).liveness.path is None
    assert "has no liveness probe" in str(unserved.warnings[0])
