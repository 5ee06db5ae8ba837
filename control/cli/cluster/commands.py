"""What the commands with ``--context`` do and print."""

import shlex
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import typer

from tidegate.control.cli.cluster.client import (
    CONTAINERS,
    Cluster,
    condition,
    selector_of,
    stages_of,
    with_cluster,
)
from tidegate.control.cli.cluster.elsewhere import kubectl
from tidegate.control.cli.common import (
    EXIT_FAILED,
    PIPE_WIDTH,
    console,
    escaped,
    print_json,
    print_text,
    print_yaml,
    say,
)
from tidegate.control.cli.develop.activity import activity
from tidegate.control.sdk import StartFailedError
from tidegate.deploy.kubernetes.process.api import ClusterError
from tidegate.deploy.kubernetes.resources.objects import Converted, objects_of
from tidegate.deploy.kubernetes.resources.states import LATEST, READY, STARTS
from tidegate.errors import Fault, InvalidInputError

if TYPE_CHECKING:
    from rich.table import Table

Object = dict[str, Any]
KUBECTL_STREAMS: Final = 5
"""Logs that ``kubectl logs -f`` follows at once without ``--max-log-requests``."""
MANIFESTS: Final = (".yaml", ".yml", ".json")


def deploy(
    context: str,
    namespace: str | None,
    file: str,
    flags: Mapping[str, str],
    *,
    force: bool,
    waits: bool,
    json: bool,
) -> None:
    """Applies a manifest, waits for its functions, and prints what came of them."""
    converted, source = converted_manifest(file, flags)

    async def run(cluster: Cluster) -> list[Object]:
        applied = await cluster.apply(converted.objects, source=source, force=force)
        for note in converted.warnings:
            say(f"warning: {note}")
        found = []
        for each in applied:
            name = each["metadata"]["name"]
            if not waits:
                found.append(each)
                if not json:
                    print_text(f"{name} is applied")
                continue
            with activity(f"{name}: waits for its newest revision", is_silent=json) as shown:
                try:
                    ended = await cluster.wait(
                        each, lambda now: shown.show(_phase(now)), partial(_say_late, context, cluster.namespace, name)
                    )
                except StartFailedError as error:
                    say(f"error: {error}")
                    found.append(each | {"fault": str(error)})
                    continue
            found.append(ended)
            if not json:
                _report(ended)
        return found

    ended = with_cluster(context, namespace, run)
    if json:
        print_json(list(map(shown, ended)))
    if any("fault" in each for each in ended):
        raise typer.Exit(EXIT_FAILED)


def converted_manifest(file: str, flags: Mapping[str, str]) -> "tuple[Converted, str]":
    """Returns the custom resources of a manifest, and the name of their source. Raises InvalidInputError."""
    from tidegate.autoscaler.policies import registry
    from tidegate.control.sources import read_source

    if file != "-" and not file.endswith(MANIFESTS):
        allowed = "a manifest: the files of this machine are not in the images of a cluster"
        raise InvalidInputError("command line", [Fault("FILE", file, allowed)])
    text, _, source = read_source(file, None, {}, standard_input=sys.stdin.read)
    return objects_of(text, source=source, policies=registry.names(), flags=flags), source


def _say_late(context: str, namespace: str, name: str) -> None:
    command = f"{kubectl(context, namespace)} get deployment tidegate"
    say(f"{name}: no control process of namespace {namespace} has taken it up; it is waited for ({command})")


def _phase(now: Object) -> str:
    latest = condition(now, LATEST)
    waiting = f"{now['metadata']['name']}: waits for the control process of its namespace"
    return str(latest["message"]) if latest.get("reason") == STARTS else waiting


def _report(ended: Object) -> None:
    """Prints what the deploy on one machine prints of a function."""
    name, status = ended["metadata"]["name"], ended.get("status", {})
    if "revision" in status:
        console().print(f"[bold]{name}[/bold] is revision {status['revision']}")
    say(f"{name} is {condition(ended, READY).get('reason', '').lower() or 'ready'}")
    if status.get("url"):
        print_text(status["url"])


def show_all(
    context: str, namespace: str | None, *, as_json: bool = False, as_yaml: bool = False, as_names: bool = False
) -> None:
    """Lists the Functions and Pipelines."""
    where = ""

    async def run(cluster: Cluster) -> list[Object]:
        nonlocal where
        where = cluster.namespace
        return await cluster.all()

    found = with_cluster(context, namespace, run)
    if as_json:
        print_json(list(map(shown, found)))
    elif as_yaml:
        print_yaml(list(map(shown, found)))
    else:
        print_table(found, context, namespace, where, as_names=as_names)


def print_table(found: list[Object], context: str, namespace: str | None, where: str, *, as_names: bool) -> None:
    """Prints Functions and Pipelines of the namespace ``where`` as a table, or their names."""
    if as_names:
        for each in found:
            print_text(each["metadata"]["name"])
    elif not found:
        there = f"--context {context}" + ("" if namespace is None else f" --namespace {namespace}")
        say(f"no function is applied in namespace {where}; apply one with `tidegate deploy FILE {there}`")
    else:
        console(PIPE_WIDTH).print(_table(found))


def shown(found: Object) -> Object:
    """Returns an object without what the API server keeps of its writers, as kubectl shows it."""
    return found | {"metadata": {key: each for key, each in found["metadata"].items() if key != "managedFields"}}


def _table(found: list[Object]) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("FUNCTION", "READY", "STATE", "REVISION", "READY REPLICAS", "WANTED", "URL"):
        table.add_column(column, no_wrap=True)
    for each in found:
        status, ready = each.get("status", {}), condition(each, READY)
        cells = [ready.get("status", "-"), ready.get("reason", "not seen by a control process")]
        cells += [str(status.get(key, "-")) for key in ("revision", "readyReplicas", "replicas", "url")]
        table.add_row(each["metadata"]["name"], *cells)
    return table


def show(context: str, namespace: str | None, name: str | None, *, json: bool) -> None:
    """Shows one function with its conditions and Pods, or all."""
    if name is None:
        show_all(context, namespace, as_json=json)
        return

    async def run(cluster: Cluster) -> tuple[Object, list[Object]]:
        found = await cluster.get(name)
        return found, await cluster.pods(found)

    found, pods = with_cluster(context, namespace, run)
    if json:
        print_json({"function": shown(found), "pods": list(map(shown, pods))})
        return
    print_function(found, pods)


def print_function(found: Object, pods: list[Object]) -> None:
    """Prints a function with its conditions and Pods."""
    console(PIPE_WIDTH).print(_table([found]))
    for each in found.get("status", {}).get("conditions", []):
        text = f": {each['message']}" if each["message"] else ""
        print_text(f"{each['type']} {each['status']} {each['reason']}{text}")
    for pod in pods:
        status = pod.get("status", {})
        where = f" on {pod['spec']['nodeName']}" if pod["spec"].get("nodeName") else ""
        why = next(
            (
                each["message"]
                for each in status.get("conditions", [])
                if each["status"] == "False" and each.get("message")
            ),
            "",
        )
        print_text(f"{pod['metadata']['name']}  {status.get('phase', '-')}{where}{f': {why}' if why else ''}")


def delete(context: str, namespace: str | None, names: list[str], *, json: bool) -> None:
    """Deletes objects; with an unknown name, or a function that a pipeline needs, none is deleted."""

    async def run(cluster: Cluster) -> list[str]:
        there = {each["metadata"]["name"]: each for each in await cluster.all()}
        wanted = list(dict.fromkeys(names))
        if unknown := [name for name in wanted if name not in there]:
            allowed = f"applied functions: {', '.join(sorted(there)) or 'there is none'}"
            raise InvalidInputError("delete", [Fault("NAME", name, allowed) for name in unknown])
        users = {name: stages_of(each) for name, each in there.items() if name not in wanted}
        if faults := [
            Fault("NAME", name, f"no stage of a pipeline; delete {', '.join(found)} too")
            for name in wanted
            if (found := [user for user, stages in users.items() if name in stages])
        ]:
            raise InvalidInputError("delete", faults)
        for name in sorted(wanted, key=lambda name: not stages_of(there[name])):  # Pipelines first.
            await cluster.delete(there[name])
            if not json:
                say(f"deleted {name}")
        return wanted

    deleted = with_cluster(context, namespace, run)
    if json:
        print_json({"deleted": deleted})


def logs(
    context: str, namespace: str | None, name: str, *, tail: int, replica: str | None, source: str, json: bool
) -> None:
    """Prints the last lines of a function's Pods, of a pipeline those of its stages. One that has none to read says
    why; if that is so of each, the exit code is 1."""
    from tidegate.records.codec import encode

    clean = escaped if sys.stdout.isatty() else str
    faults = 0

    async def run(cluster: Cluster) -> list[dict[str, str]]:
        nonlocal faults
        pods = [each["metadata"]["name"] for each in await cluster.pods(await cluster.get(name))]
        if replica is not None and replica not in pods:
            allowed = ", ".join(pods) or "none is there"
            raise InvalidInputError("logs", [Fault("--replica", replica, allowed)])
        found = []
        for pod in pods if replica is None else [replica]:
            for container in CONTAINERS[source]:
                try:
                    lines = await cluster.log(pod, container, tail)
                except ClusterError as error:
                    say(f"{pod}: {container}: {error}")
                    faults += 1
                    continue
                found += [{"replica": pod, "source": container, "line": line} for line in lines]
        return found

    lines = with_cluster(context, namespace, run)
    for line in lines:
        if json:
            print(clean(encode(line).decode()))
        else:
            place = line["replica"] if source != "all" else f"{line['replica']} {line['source']}"
            print(clean(f"{place} | {line['line']}"))
    if faults and not lines:
        raise typer.Exit(EXIT_FAILED)
    if not lines and tail:
        say(f"{name} has no line to read (--source {source})")


def follow(
    context: str, namespace: str | None, name: str, *, tail: int, replica: str | None, source: str
) -> InvalidInputError:
    """Returns why the output of a cluster's function is not followed from here, with the command that does: of a
    pipeline with the Pods of its stages."""

    async def run(cluster: Cluster) -> tuple[Object, list[Object]]:
        found = await cluster.get(name)
        return found, await cluster.pods(found)

    found, there = with_cluster(context, namespace, run)
    words = ["-l", selector_of(found)] if replica is None else [replica]
    words += ["--all-containers"] if source == "all" else ["-c", CONTAINERS[source][0]]
    words += ["--prefix", f"--tail={tail}"]
    streams = sum(map(_containers, there)) if source == "all" else len(there)
    if replica is None and streams > KUBECTL_STREAMS:
        words.append(f"--max-log-requests={streams}")
    command = f"{kubectl(context, namespace)} logs -f {shlex.join(words)}"
    return InvalidInputError("logs", [Fault("--follow", "the flag", f"no such option with --context: {command}")])


def _containers(pod: Object) -> int:
    return len(pod["spec"]["containers"]) + len(pod["spec"].get("initContainers", ()))
