"""``get``, ``describe`` and ``diff`` with ``--context``: what is applied, as manifests."""

import difflib
from collections.abc import Mapping

import typer

from tidegate.control.cli.cluster.client import Cluster, with_cluster
from tidegate.control.cli.cluster.commands import Object, converted_manifest, print_function, print_table, shown
from tidegate.control.cli.common import EXIT_FAILED, print_json, print_text, show_changes
from tidegate.deploy.kubernetes.resources.states import manifest_of


def get(context: str, namespace: str | None, names: list[str], *, as_yaml: bool, as_json: bool, as_names: bool) -> None:
    """Lists Functions and Pipelines, as a table or as manifests."""
    where = ""

    async def run(cluster: Cluster) -> list[Object]:
        nonlocal where
        where = cluster.namespace
        return [await cluster.get(name) for name in dict.fromkeys(names)] if names else await cluster.all()

    found = with_cluster(context, namespace, run)
    if as_json:
        print_json(list(map(shown, found)))
    elif as_yaml:
        print_text("---\n".join(map(manifest_of, found)).rstrip("\n"))
    else:
        print_table(found, context, namespace, where, as_names=as_names)


def describe(context: str, namespace: str | None, name: str, *, json: bool) -> None:
    """Shows a function with its conditions, Pods and manifest."""

    async def run(cluster: Cluster) -> tuple[Object, list[Object]]:
        found = await cluster.get(name)
        return found, await cluster.pods(found)

    found, pods = with_cluster(context, namespace, run)
    manifest = manifest_of(found)
    if json:
        print_json({"function": shown(found), "pods": list(map(shown, pods)), "manifest": manifest})
        return
    print_function(found, pods)
    print_text("\nmanifest")
    print_text("".join(f"  {line}\n" for line in manifest.splitlines()).rstrip("\n"))


def diff(context: str, namespace: str | None, file: str, flags: Mapping[str, str], *, json: bool) -> None:
    """Shows what a deploy of a manifest would change, as the API server says without doing it. Exit code 1: something
    would change."""
    converted, source = converted_manifest(file, flags)

    async def run(cluster: Cluster) -> dict[str, list[str]]:
        there = {each["metadata"]["name"]: each for each in await cluster.all()}
        wanted = await cluster.preview(converted.objects, source=source)
        return {each["metadata"]["name"]: changes(there.get(each["metadata"]["name"]), each) for each in wanted}

    found = with_cluster(context, namespace, run)
    if json:
        print_json({"changes": found, "is_same": not any(found.values())})
    else:
        show_changes(found)
    if any(found.values()):
        raise typer.Exit(EXIT_FAILED)


def changes(applied: Object | None, wanted: Object) -> list[str]:
    """Returns the lines of a unified diff of two manifests."""
    before = [] if applied is None else manifest_of(applied).splitlines()
    label = "not applied" if applied is None else "applied"
    return list(difflib.unified_diff(before, manifest_of(wanted).splitlines(), label, "to apply", lineterm=""))
