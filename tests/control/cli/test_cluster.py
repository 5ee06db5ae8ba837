"""What commands with ``--context`` name in place of what they do not do. ``tests/live/test_kubernetes_commands.py`` has
the rest."""

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from tidegate.control.cli.app import app
from tidegate.control.cli.cluster import commands
from tidegate.control.cli.cluster.client import Cluster
from tidegate.deploy.kubernetes.process.api import ClusterError

OF_THIS_MACHINE = {"up", "down", "gateway", "dev", "load", "profile"}
"""Commands that start or end processes here, or work with the files and the load of this machine."""


class Applied:
    """An API server with a pipeline ``line`` over ``first`` and ``second``, a function ``other``, and their Pods: the
    model server and the queue-proxy of each, ``other`` with six."""

    def __init__(self) -> None:
        self.deleted: list[str] = []

    async def get(self, path: str, **query: str) -> dict[str, Any]:
        if path.endswith("/pods"):
            return {"items": _pods(query["labelSelector"])}
        stages = {"stages": [{"function": "first"}, {"function": "second"}]}
        specs = {"line": stages} if path.endswith("/pipelines") else {name: {} for name in ("first", "second", "other")}
        return {"items": [{"metadata": {"name": name}, "spec": spec} for name, spec in specs.items()]}

    async def delete(self, path: str) -> None:
        self.deleted.append(path.rpartition("/")[2])

    def run(self, context: str, namespace: str | None, do: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        """In place of :func:`tidegate.control.cli.cluster.client.with_cluster`."""
        return asyncio.run(do(Cluster(self, namespace or "default")))  # type: ignore[arg-type]  # of an API what is called


def _pods(selector: str) -> list[dict[str, Any]]:
    """Returns the Pods that a label selector finds."""
    found = re.fullmatch(r"tidegate\.dev/function in \((.*)\)", selector)
    assert found is not None, selector
    names = [f"{name}-{number}" for name in found[1].split(",") for number in range(6 if name == "other" else 1)]
    return [{"metadata": {"name": name}, "spec": {"containers": [{}, {}]}} for name in names if name[:4] != "line"]


ENDS = "--prefix --tail=100"


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("first",), f"-l 'tidegate.dev/function in (first)' -c model-server {ENDS}"),
        (("line",), f"-l 'tidegate.dev/function in (first,second)' -c model-server {ENDS}"),
        (("line", "--source", "all"), f"-l 'tidegate.dev/function in (first,second)' --all-containers {ENDS}"),
        (("first", "--replica", "first-0", "--source", "proxy", "-n", "5"), "first-0 -c queue-proxy --prefix --tail=5"),
        (("other",), f"-l 'tidegate.dev/function in (other)' -c model-server {ENDS} --max-log-requests=6"),
        (
            ("other", "--source", "all"),
            f"-l 'tidegate.dev/function in (other)' --all-containers {ENDS} --max-log-requests=12",
        ),
        (("other", "--replica", "other-0"), f"other-0 -c model-server {ENDS}"),
    ],
)
def test_the_command_that_follows_finds_the_pods_of_a_function_or_of_stages(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], wanted: str
) -> None:
    monkeypatch.setattr(commands, "with_cluster", Applied().run)
    done = CliRunner().invoke(app, ["logs", *words, "--follow", "--context", "here", "--namespace", "models"])
    assert done.exit_code == 2
    assert done.stderr.strip().endswith(f"kubectl --context here -n models logs -f {wanted}")


def test_every_other_command_that_finds_a_deployment_takes_a_context() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # a group
    names = {name: {each.name for each in command.params} for name, command in commands.items()}
    found = {name for name, options in names.items() if "state" in options}
    assert {name for name in found if {"context", "namespace"} <= names[name]} == found - OF_THIS_MACHINE
    assert not {name for name in OF_THIS_MACHINE if "context" in names[name]}


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (
            ("traffic", "echo", "--to", "1=90", "--to", "2=10"),
            "exec deploy/tidegate -- tidegate traffic echo --to 1=90 --to 2=10",
        ),
        (("rollout", "echo", "--abort", "--json"), "exec deploy/tidegate -- tidegate rollout echo --abort --json"),
        (("explain", "echo", "-v"), "exec deploy/tidegate -- tidegate explain echo --verbose"),
        (
            ("invoke", "echo", "-d", "@-", "-H", "a: b"),
            "exec -i deploy/tidegate -- tidegate invoke echo --data @- --header 'a: b'",
        ),
        (("cost", "--by", "tenant"), "exec deploy/tidegate -- tidegate cost --by tenant"),
        (("restart",), "exec deploy/tidegate -- tidegate restart"),
        (("version",), "exec deploy/tidegate -- tidegate version"),
        (
            ("invoke", "echo", "-d", "@my body.json", "--async"),
            "exec -i deploy/tidegate -- tidegate invoke echo --data @- --async < 'my body.json'",
        ),
        (
            ("invoke", "echo", "-d", '{"to": "@me"}'),
            """exec deploy/tidegate -- tidegate invoke echo --data '{"to": "@me"}'""",
        ),
        (("invoke", "echo", "--data", ""), "exec deploy/tidegate -- tidegate invoke echo --data ''"),
        (
            ("invoke", "echo", "--file", "cat.jpg"),
            "exec -i deploy/tidegate -- tidegate invoke echo --file - < cat.jpg",
        ),
        (
            ("invoke", "echo", "--v2", "--input", "x=[1]", "--input", "y:UINT8=@y.raw"),
            "exec -i deploy/tidegate -- tidegate invoke echo --v2 --input 'x=[1]' --input y:UINT8=@- < y.raw",
        ),
        (
            ("invoke", "echo", "--v2", "--input", "x=@-"),
            "exec -i deploy/tidegate -- tidegate invoke echo --v2 --input x=@-",
        ),
        (("record", "echo", "-o", "here.jsonl"), "exec deploy/tidegate -- tidegate record echo > here.jsonl"),
        (("record", "echo"), "exec deploy/tidegate -- tidegate record echo"),
    ],
)
def test_what_the_control_process_alone_can_do_names_the_whole_command(words: tuple[str, ...], wanted: str) -> None:
    done = CliRunner().invoke(app, [*words, "--context", "here", "--namespace", "models"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.strip().endswith(f"run it in the control process: kubectl --context here -n models {wanted}")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (
            ("invoke", "echo", "--v2", "--input", "x=@x.raw", "--input", "y=@y.raw"),
            "--input: got y.raw; allowed: one file with --context, which goes through standard input: x.raw is the"
            " first",
        ),
        (
            ("invoke", "echo", "--cacert", "ca.pem"),
            "--cacert: got ca.pem; allowed: no such option with --context: the control process trusts the certificate"
            " of its gateway",
        ),
        (
            ("explain", "echo", "--log", "decisions.jsonl"),
            "--log: got decisions.jsonl; allowed: no such option with --context: the file is read here, and needs no"
            " cluster",
        ),
    ],
)
def test_files_that_cannot_reach_the_control_process_are_named(words: tuple[str, ...], wanted: str) -> None:
    done = CliRunner().invoke(app, [*words, "--context", "here"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert wanted in done.stderr
    assert "kubectl" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("get", "--revision", "echo-00001"),
        ("get", "--state", "here"),
        ("describe", "echo", "--state", "here"),
        ("diff", "f.yaml", "--name", "echo"),
        ("traffic", "echo", "--state", "here"),
        ("doctor", "--listen", "127.0.0.1:1"),
    ],
)
def test_an_option_of_this_machine_is_none_of_a_context(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, [*words, "--context", "here"])
    assert done.exit_code == 2
    assert f"{words[-2]}: got {words[-1]}; allowed: no such option with --context" in done.stderr
    done = CliRunner().invoke(app, [words[0], *words[1:-2], "--namespace", "models"])
    assert (done.exit_code, "only with --context" in done.stderr) == (2, True)


def test_a_diff_with_a_context_takes_manifests_alone() -> None:
    done = CliRunner().invoke(app, ["diff", "handler.py:Model", "--context", "here"])
    assert (done.exit_code, "allowed: a manifest" in done.stderr) == (2, True)


def test_a_revision_is_for_manifests_alone() -> None:
    done = CliRunner().invoke(app, ["get", "echo", "--revision", "1", "--state", "/nowhere"])
    assert (done.exit_code, "--revision: got 1; allowed: only with -o yaml" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "got"), [((), "nothing"), (("--reset", "--batch", "4"), "--reset with another figure")]
)
def test_a_resize_names_its_flags(words: tuple[str, ...], got: str) -> None:
    done = CliRunner().invoke(app, ["resize", "echo", *words, "--state", "/nowhere"])
    assert (done.exit_code, f"flags: got {got}; allowed: --cores, --batch" in done.stderr) == (2, True)


class Pods:
    """A cluster with the function ``echo``, whose Pods have these lines; those of None cannot be read."""

    def __init__(self, lines: dict[str, list[str] | None]) -> None:
        self._lines = lines

    async def get(self, name: str) -> dict[str, Any]:
        return {"metadata": {"name": name}}

    async def pods(self, each: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"metadata": {"name": each}} for each in self._lines]

    async def log(self, pod: str, container: str, tail: int) -> list[str]:
        found = self._lines[pod]
        if found is None:
            raise ClusterError("its node does not answer")
        return found


@pytest.mark.parametrize(
    ("lines", "code", "output", "said"),
    [
        ({"a": ["one", "two"]}, 0, '{"replica":"a","source":"model-server","line":"%s"}', ""),
        (
            {"a": ["one"], "b": None},
            0,
            '{"replica":"a","source":"model-server","line":"%s"}',
            "b: model-server: its node",
        ),
        ({"a": None, "b": None}, 1, "", "a: model-server: its node does not answer"),
        ({"a": None, "b": []}, 1, "", "a: model-server: its node does not answer"),
        ({"a": []}, 0, "", "echo has no line to read (--source server)"),
        ({}, 0, "", "echo has no line to read (--source server)"),
    ],
)
def test_logs_are_a_line_each_and_an_error_where_nothing_could_be_read(
    monkeypatch: pytest.MonkeyPatch, lines: dict[str, list[str] | None], code: int, output: str, said: str
) -> None:
    def run(context: str, namespace: str | None, do: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        return asyncio.run(do(Pods(lines)))

    monkeypatch.setattr(commands, "with_cluster", run)
    done = CliRunner().invoke(app, ["logs", "echo", "--context", "here", "--json"])
    assert (done.exit_code, said in done.stderr) == (code, True), done.stderr
    assert done.stdout.splitlines() == [output % each for each in lines.get("a") or ()]


@pytest.mark.parametrize(
    ("names", "deleted"),
    [
        (("other", "first", "second"), None),
        (("other",), ["other"]),
        (("first", "line"), ["line", "first"]),
    ],
)
def test_a_stage_is_deleted_with_its_pipeline_and_after_it(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], deleted: list[str] | None
) -> None:
    there = Applied()
    monkeypatch.setattr(commands, "with_cluster", there.run)
    done = CliRunner().invoke(app, ["delete", *names, "--context", "here"])
    assert (done.exit_code, there.deleted) == ((2, []) if deleted is None else (0, deleted)), done.stderr
    if deleted is None:
        assert "NAME: got first; allowed: no stage of a pipeline; delete line too" in done.stderr
        assert "NAME: got second; allowed: no stage of a pipeline; delete line too" in done.stderr
