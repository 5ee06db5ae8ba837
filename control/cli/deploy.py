"""``deploy`` and ``delete``."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.control.cli.common import (
    AWAITED_S,
    JsonOption,
    StateOption,
    connect,
    console,
    exit_codes,
    guarded,
    print_json,
    say,
    seconds,
)
from tidegate.control.cli.flags import Flag, with_flags
from tidegate.control.cli.show import NameArgument
from tidegate.errors import Fault, InvalidInputError
from tidegate.manifest.annotations import ANNOTATIONS

if TYPE_CHECKING:
    from tidegate.control.sdk import Tidegate
    from tidegate.control.views.functions import CapacityView, DeployView

FLAGS = tuple(
    Flag(key=row.key, name=row.key, help=f"{row.description} [{row.kind.allowed}]", panel=row.topic)
    for row in ANNOTATIONS
)


@with_flags(FLAGS)
def deploy(
    file: Annotated[str, typer.Argument(help="A manifest, an ONNX file, or file.py[:Class].")],
    given: dict[str, str],
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the function (for model files; default: the file's).")
    ] = None,
    parameter: Annotated[
        list[str] | None, typer.Option("--policy-parameter", metavar="KEY=VALUE", help="A parameter of the policy.")
    ] = None,
    slo: Annotated[
        str | None, typer.Option("--slo", metavar="pN=LATENCY", help="Short for --percentile and --latency: p99=200ms.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="Short for --gpu-model; any: any accelerator that fits.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the function is ready, or print why it is not.")
    ] = False,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Deploy a function; every annotation is a flag too. Deploying again makes a new revision."""
    with exit_codes():
        faults: list[Fault] = []
        flags = _short(given, slo, gpu, faults) | given | _parameters(parameter or [], faults)
        text, base, source = _checked(file, name, flags, faults)
        with connect(state, awaited_s=AWAITED_S) as tidegate:
            deployed = tidegate.deploy(text, base=base, source=source, annotations=flags)
            if not json:
                _tell(deployed, tidegate)
            if wait:
                _wait(tidegate, deployed, quiet=json)
        if json:
            print_json(deployed)


def delete(name: NameArgument, state: StateOption = None, json: JsonOption = False) -> None:
    """Delete a function: its replicas finish their work and stop."""
    with connect(state) as tidegate:
        tidegate.delete(name)
    if json:
        print_json({"deleted": name})
    else:
        say(f"deleted {name}")


def register(app: typer.Typer) -> None:
    app.command("deploy")(deploy)
    app.command("delete")(guarded(delete))


def read(file: str, name: str | None, flags: Mapping[str, str] | None = None) -> tuple[str, Path, str]:
    """Returns (manifest text, folder of its relative paths, name of the source) for a manifest, an ONNX file or
    file.py[:Class].

    ``flags`` are annotations without their prefix. What they require and the file itself answers is filled in.
    """
    import sys

    from tidegate.deploy.builder import from_file, handler_in

    path = Path(file)
    if path.suffix == ".py":
        file = handler_in(file, _text(path))
    made = from_file(file, name=name, flags=flags, size_bytes=path.stat().st_size if path.is_file() else None)
    if made is not None:
        target = Path(file.rpartition(":")[0]) if ".py:" in file else path
        if not target.is_file():
            allowed = "a model file or file.py:Class that exists"
            raise InvalidInputError(file, [Fault("file", f"{target} (no such file)", allowed)])
        return made, Path.cwd(), file
    if name is not None:
        raise InvalidInputError(file, [Fault("--name", name, "only with model files; a manifest contains the name")])
    if file == "-":
        return sys.stdin.read(), Path.cwd(), "standard input"
    return _text(path), path.absolute().parent, file


def _checked(file: str, name: str | None, flags: Mapping[str, str], faults: list[Fault]) -> tuple[str, Path, str]:
    """Reads and checks like :func:`read`. Raises InvalidInputError with ``faults``, those of the command line so far,
    and all others."""
    found = None
    for named in dict.fromkeys((name, None)):
        try:
            found = read(file, named, flags)
            break
        except InvalidInputError as error:
            faults += [each for each in error.faults if each not in faults]
    if found is None or faults:
        raise InvalidInputError("command line", [*faults, *(_faults_in(*found, flags) if found else ())])
    return found


def _faults_in(text: str, base: Path, source: str, flags: Mapping[str, str]) -> tuple[Fault, ...]:
    """Returns the faults that the control process would report for a manifest. Only the control process knows the
    accelerators' names."""
    from tidegate.autoscaler.policies import registry
    from tidegate.manifest.builder import ParseContext
    from tidegate.manifest.reader import read as read_manifest

    try:
        read_manifest(text, source=source, context=ParseContext(base=str(base), policies=registry.names(), flags=flags))
    except InvalidInputError as error:
        return error.faults
    return ()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "not a text"
        raise InvalidInputError(
            str(path), [Fault("file", f"{path} ({what})", "a manifest, model.onnx or file.py:Class")]
        ) from error


def _short(given: dict[str, str], slo: str | None, gpu: str | None, faults: list[Fault]) -> dict[str, str]:
    """Returns the annotations that ``--slo`` and ``--gpu`` stand for."""
    from tidegate.deploy.builder import slo_flags

    meant: dict[str, str] = {}
    try:
        meant |= slo_flags(slo) if slo is not None else {}
    except InvalidInputError as error:
        faults += error.faults
    if gpu is not None and gpu != "any":
        meant["gpu-model"] = gpu
    faults += [Fault(f"--{key}", given[key], "once: --slo or --gpu sets it too") for key in meant if key in given]
    return meant


def _parameters(texts: list[str], faults: list[Fault]) -> dict[str, str]:
    from tidegate.manifest.annotations import PARAMETER_PREFIX

    pairs = {text: text.partition("=") for text in texts}
    faults += [
        Fault("--policy-parameter", text, "KEY=VALUE") for text, (key, is_, _) in pairs.items() if not (key and is_)
    ]
    return {PARAMETER_PREFIX + key: value for key, is_, value in pairs.values() if key and is_}


def _tell(deployed: "DeployView", tidegate: "Tidegate") -> None:
    for each in deployed.functions:
        console().print(f"[bold]{each.name}[/bold] is revision {each.revision}")
        for key, value in each.filled_in.items():
            say(f"  {key}: {value}")
        for line in _capacity(each.capacity):
            say(f"  {line}")
        for warning in each.warnings:
            say(f"  warning: {warning}")
        view = tidegate.function(each.name)
        if where := view.path_url or view.url:
            print(where)


def _capacity(view: "CapacityView | None") -> list[str]:
    """Compares the SLA with the capacity of the accelerators, as lines of text."""
    if view is None:
        return []
    lines = []
    for each in view.kinds:
        name = each.accelerator + (" (emulated)" if each.emulated else "")
        known = "nothing is known of it yet"
        if each.source != "unknown":
            one = "?" if each.one_s is None else seconds(each.one_s)
            target = {True: "meets the target", False: "misses the target", None: "no target"}[each.meets_latency]
            rate = "?" if each.mu_ips is None else f"{each.mu_ips:.4g}"
            known = f"one inference {one} ({target}), {rate} inferences/s a replica ({each.source})"
        lines.append(f"{name}: {known}; {each.free} of {each.places} places free, {each.price_per_hour:g} an hour")
    if view.provided:
        counts = " + ".join(f"{count} {name}" for name, count in view.provided.items())
        lines.append(
            f"target-ips {view.target_ips:g}: {counts} carry {view.provided_ips or 0.0:.4g} inferences/s, "
            f"for {view.price_per_hour or 0.0:g} an hour"
        )
    elif view.price_per_hour is not None and view.latency_s is not None:
        lines.append(
            f"from {view.price_per_hour:g} an hour: one replica on the cheapest that can meet {seconds(view.latency_s)}"
        )
    return lines


def _wait(tidegate: "Tidegate", deployed: "DeployView", quiet: bool) -> None:
    for each in deployed.functions:
        view = tidegate.wait_ready(each.name, each.revision)
        if quiet:
            continue
        starts = [start for start in tidegate.cold_starts(each.name) if start.revision == each.revision]
        took = f" after {seconds(starts[-1].total_s)}" if starts and starts[-1].total_s else ""
        say(f"{each.name} is {view.state.value}{took}")
