"""Commands with ``--context``, and ``kubectl``, over a real API server and a control process that follows it."""

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live.cluster import Node, control_process, install_resources, namespace_of
from tests.support.live.control_plane import ControlPlane, folder
from tests.support.live.deployment import Deployment

pytestmark = [pytest.mark.live, pytest.mark.needs(tool="cluster"), pytest.mark.timeout(300)]
FUNCTION = """\
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata:
  name: echo
  annotations:
    tidegate.dev/min-scale: 1
spec:
  server: {handler: HANDLER}
  retry-budget: 2.5
"""
KSERVE = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: iris}
spec:
  predictor:
    minReplicas: 0
    serviceAccountName: sa
    model:
      modelFormat: {name: sklearn}
      storageUri: pvc://models/iris/model.joblib
"""


class Commands:
    """``tidegate COMMAND --context``, as the person who installed the cluster."""

    def __init__(self, live: Deployment, plane: ControlPlane) -> None:
        self.live = live
        self._plane = plane
        self.space = namespace_of(live)

    def run(
        self, *words: str, text: str = "", code: int = 0, context: str = "tests", config: str = ""
    ) -> subprocess.CompletedProcess[str]:
        environment = self._environment(config)
        done = subprocess.run(
            self._command(*words, context=context),
            input=text,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=environment,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def begin(self, *words: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(self._command(*words), stdout=pipe, stderr=pipe, text=True, env=self._environment())

    def _command(self, *words: str, context: str = "tests") -> list[str]:
        # `command` puts --state behind the first word, which has no meaning with a context.
        first, *rest = self.live.command(*words, "--context", context, "--namespace", self.space)
        where = rest.index("--state")
        return [first, *rest[:where], *rest[where + 2 :]]

    def _environment(self, config: str = "") -> dict[str, str]:
        return {"KUBECONFIG": config or str(self._plane.kubeconfig), "PATH": "/usr/bin:/bin", "HOME": "/nothing"}


@pytest.fixture(scope="module")
def node(plane: ControlPlane) -> Iterator[Node]:
    with Node(plane).running() as found:
        found.do(install_resources)
        yield found


@pytest.fixture
def commands(plane: ControlPlane, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    with control_process(plane, node, tmp_path) as live:
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        yield Commands(live, plane)


def test_a_manifest_is_deployed_shown_and_deleted(commands: Commands, node: Node) -> None:
    live = commands.live
    live.up(as_program=True)
    manifest = FUNCTION.replace("HANDLER", live.handler())
    done = commands.run("deploy", "-", text=manifest)
    assert "echo is revision echo-00001" in done.stdout
    assert "echo is ready" in done.stderr
    assert live.infer().status_code == 200, "it was waited for"
    (listed,) = json.loads(commands.run("list", "--json").stdout)
    assert "managedFields" not in listed["metadata"]
    assert listed["spec"]["retry-budget"] == "2.5", "a number with a fraction is a text there"
    assert listed["metadata"]["annotations"] == {"tidegate.dev/min-scale": "1"}
    assert "echo" in commands.run("list").stdout
    shown = commands.run("status", "echo").stdout
    assert "Ready True Ready" in shown
    see_its_manifest(commands, manifest)
    assert f"{node.pods[0]}  Running" in shown
    done = commands.run("deploy", "-", "--timeout", "1m", text=manifest)
    assert "echo is revision echo-00002" in done.stdout
    hint = f"kubectl --context tests -n {commands.space} exec deploy/tidegate -- tidegate explain echo"
    assert hint in commands.run("explain", "echo", code=2).stderr
    hint = f"kubectl --context tests -n {commands.space} logs -f -l 'tidegate.dev/function in (echo)' -c model-server"
    assert hint in commands.run("logs", "echo", "--follow", code=2).stderr
    assert "applied functions: echo" in commands.run("delete", "echo", "other", code=2).stderr
    commands.run("delete", "echo")
    live.until(lambda: not node.pods, 30.0, "no Pod")


def test_a_pipeline_is_shown_with_the_pods_of_its_stages_and_deleted_with_them(commands: Commands, node: Node) -> None:
    live = commands.live
    live.up(as_program=True)
    pipeline = "---\napiVersion: tidegate.dev/v1alpha1\nkind: Pipeline\nmetadata: {name: line}\n"
    text = f"{FUNCTION.replace('HANDLER', live.handler())}{pipeline}spec: {{stages: [{{function: echo}}]}}\n"
    done = commands.run("deploy", "-", text=text)
    assert "line is revision line-00001" in done.stdout
    shown = json.loads(commands.run("status", "line", "--json").stdout)
    assert shown["function"]["status"]["url"] in done.stdout.splitlines()
    assert [each["metadata"]["name"] for each in shown["pods"]] == node.pods
    hint = commands.run("logs", "line", "--follow", code=2).stderr
    words = shlex.split(hint.partition("allowed: ")[2])
    selector = words[words.index("-l") + 1]
    found = node.do(lambda api: api.get(f"/api/v1/namespaces/{commands.space}/pods", labelSelector=selector))
    assert [each["metadata"]["name"] for each in found["items"]] == node.pods
    assert "allowed: no stage of a pipeline; delete line too" in commands.run("delete", "echo", code=2).stderr
    commands.run("delete", "echo", "line")
    live.until(lambda: not node.pods, 30.0, "no Pod")


def see_its_manifest(commands: Commands, manifest: str) -> None:
    """``get``, ``describe`` and ``diff`` of a function that is applied."""
    assert "echo" in commands.run("get", "echo").stdout
    text = commands.run("get", "echo", "-o", "yaml").stdout
    assert "nothing would change" in commands.run("diff", "-", text=text).stderr, "it can be applied again"
    assert json.loads(commands.run("get", "--json").stdout) == json.loads(commands.run("list", "-o", "json").stdout)
    assert commands.run("get", "-o", "name").stdout == "echo\n"
    described = commands.run("describe", "echo").stdout
    assert "Ready True Ready" in described
    assert "  tidegate.dev/min-scale: '1'" in described
    assert json.loads(commands.run("describe", "echo", "--json").stdout)["manifest"] == text
    changes = commands.run("diff", "-", "--timeout", "1m", text=manifest, code=1).stdout
    assert "+    tidegate.dev/timeout: 1m" in changes or "timeout" in changes
    other = json.loads(commands.run("diff", "-", "--json", text=manifest.replace("echo", "other"), code=1).stdout)
    assert other["changes"]["other"][0] == "--- not applied"
    assert "got other; allowed: echo" in commands.run("describe", "other", code=2).stderr
    assert "run it in the control process: kubectl" in commands.run("traffic", "echo", code=2).stderr


def test_what_cannot_serve_is_the_error_of_the_deploy(commands: Commands) -> None:
    live = commands.live
    live.up(as_program=True)
    manifest = FUNCTION.replace("HANDLER", live.handler())
    done = commands.run("deploy", "-", "--accelerators", "h100", text=manifest, code=1)
    assert "echo is refused" in done.stderr
    assert "h100" in done.stderr
    done = commands.run(
        "deploy", "-", "--timeout", "soon", text=manifest.replace("min-scale: 1", "min-scale: x"), code=2
    )
    assert "--timeout: got 'soon'; allowed: a duration" in done.stderr
    assert "line 6: metadata.annotations.tidegate.dev/min-scale: got 'x'" in done.stderr


def test_what_is_not_there_is_said(commands: Commands, tmp_path: Path) -> None:
    assert f"no function is applied in namespace {commands.space}" in commands.run("list").stderr
    assert "no context other; kubeconfig has tests" in commands.run("list", context="other", code=1).stderr
    missing = str(tmp_path / "none")
    assert f"there is no kubeconfig at {missing}" in commands.run("list", config=missing, code=1).stderr


def test_a_namespace_that_is_not_there_is_said(commands: Commands) -> None:
    commands.space = "nowhere"
    manifest = FUNCTION.replace("HANDLER", commands.live.handler())
    said = commands.run("deploy", "-", text=manifest, code=1).stderr
    assert 'namespaces "nowhere" not found; make it first (kubectl create namespace nowhere)' in " ".join(said.split())


def test_a_context_is_found_without_a_current_one_and_what_is_no_kubeconfig_is_said(
    commands: Commands, plane: ControlPlane, tmp_path: Path
) -> None:
    own = json.loads(plane.kubeconfig.read_text())
    for number, current in enumerate((None, "", "gone")):
        place = tmp_path / f"config-{number}"
        place.write_text(json.dumps(own | {"current-context": current}))
        assert f"in namespace {commands.space}; " in commands.run("list", config=str(place)).stderr
        assert "no context other; kubeconfig has tests" in commands.run("list", context="other", code=1).stderr
    for number, text in enumerate(("", "a: [b", "text", "[]", "contexts: [{}]")):
        place = tmp_path / f"broken-{number}"
        place.write_text(text)
        assert str(place) in commands.run("list", config=str(place), code=1).stderr


def test_a_deploy_that_no_control_process_takes_up_says_so_and_goes_on(commands: Commands, tmp_path: Path) -> None:
    live = commands.live
    file = tmp_path / "manifest.yaml"
    file.write_text(FUNCTION.replace("HANDLER", live.handler()))
    with commands.begin("deploy", str(file)) as process:
        assert process.stderr is not None
        assert f"no control process of namespace {commands.space} has taken it up" in process.stderr.readline()
        live.up(as_program=True)
        output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "echo is revision echo-00001" in output


def test_an_inference_service_of_kserve_is_converted(commands: Commands, node: Node) -> None:
    done = commands.run("deploy", "-", "--no-wait", text=KSERVE)
    assert "spec.predictor.serviceAccountName: has no effect here" in done.stderr
    (listed,) = json.loads(commands.run("list", "--json").stdout)
    assert (listed["kind"], listed["metadata"]["name"]) == ("Function", "iris")
    assert listed["spec"]["server"] == {"model": "/mnt/models/iris/model.joblib"}
    assert listed["metadata"]["annotations"]["tidegate.dev/volume-mounts"] == "models:/mnt/models:ro"


def test_kubectl_and_the_command_apply_the_same_and_neither_overwrites_the_other_silently(
    commands: Commands, tmp_path: Path
) -> None:
    binaries = folder()
    assert binaries is not None
    names = ("kubectl", "kubectl-lite")
    kubectl = next((binaries / name for name in names if (binaries / name).exists()), None)
    assert kubectl is not None, f"no kubectl in {binaries}"
    file = tmp_path / "manifest.yaml"
    file.write_text(
        FUNCTION.replace("HANDLER", "/h.py:H").replace("min-scale: 1", 'min-scale: "1"').replace("2.5", '"2.5"')
    )
    words = [str(kubectl), "--kubeconfig", str(commands.live.folder / "admin"), "-n", commands.space, "apply"]
    (commands.live.folder / "admin").write_text(commands._plane.kubeconfig.read_text())
    done = subprocess.run([*words, "--server-side", "-f", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (before,) = json.loads(commands.run("list", "--json").stdout)
    commands.run("deploy", str(file), "--no-wait")
    (after,) = json.loads(commands.run("list", "--json").stdout)
    assert after["metadata"]["generation"] == before["metadata"]["generation"], "the same object"
    done = commands.run("deploy", str(file), "--no-wait", "--min-scale", "2", code=1)
    assert "--replace" in done.stderr
    commands.run("deploy", str(file), "--no-wait", "--min-scale", "2", "--replace")
    file.write_text(file.read_text().replace("handler: /h.py:H", "handler: nothing"))
    done = subprocess.run([*words, "-f", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "spec.server.handler" in done.stderr
    assert "allowed: " in done.stderr, done.stderr
