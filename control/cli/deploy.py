"""``deploy``, ``resize``, ``delete`` and ``forget``."""

import json as jsons
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidegate.control.cli.cluster.elsewhere import in_control_process
from tidegate.control.cli.cluster.options import ContextOption, NamespaceOption, check
from tidegate.control.cli.common import (
    AWAITED_S,
    EXIT_FAILED,
    EXIT_WRONG_INPUT,
    JsonOption,
    StateOption,
    as_flags,
    connect,
    console,
    exit_codes,
    fail,
    guarded,
    interruptible,
    print_json,
    print_text,
    say,
    seconds,
    state_directory,
)
from tidegate.control.cli.develop import options
from tidegate.control.cli.develop.activity import activity
from tidegate.control.cli.flags import Flag, GroupedCommand, with_flags
from tidegate.control.cli.show import NameArgument, complete_function
from tidegate.control.sources import read_source
from tidegate.errors import Fault, InvalidInputError
from tidegate.manifest.annotations import ANNOTATIONS
from tidegate.schema.yaml_nodes import nearest

if TYPE_CHECKING:
    from tidegate.control.sdk import Tidegate
    from tidegate.control.views.functions import CapacityView, DeployView, SlaCostView

FLAGS = tuple(
    Flag(key=row.key, name=row.key, help=f"{row.description} [{row.kind.allowed}]", panel=row.topic)
    for row in ANNOTATIONS
)


STANDARD_INPUT: Final = "standard input"
SLACK_S: Final = 2.0
"""Time between the deploy and the wait for it, within which a place may have been taken."""
RESIZE_FLAGS: Final = {"cores": "--cores", "max_batch": "--batch", "batch_delay": "--batch-delay"}
OTHER_SOURCE: Final = "other_source"
"""Code of the API's answer for a function that was deployed from another file."""


@with_flags(FLAGS)
def deploy(
    file: Annotated[
        str, typer.Argument(help="A manifest, a model (model.onnx, model.joblib, a folder), or file.py[:Class].")
    ],
    given: dict[str, str],
    name: options.Name = None,
    parameter: options.PolicyParameter = None,
    slo: options.Slo = None,
    gpu: options.Gpu = None,
    python: options.Python = None,
    requirements: options.Requirements = None,
    env: options.Env = None,
    arg: options.Arg = None,
    accelerators: options.Accelerators = None,
    no_wait: Annotated[
        bool,
        typer.Option("--no-wait", help="Return when the revision is recorded; else when it is ready, or cannot be."),
    ] = False,
    is_replacement: options.Replace = False,
    profile: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What `tidegate profile` measured: first decisions go by it."),
    ] = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Deploy a function; every annotation is a flag too. Deploying again makes a new revision."""
    with exit_codes(), interruptible():
        faults: list[Fault] = []
        local = {"name": name, "python": python, "requirements": requirements, "profile": profile, "state": state}
        check(context, namespace, **local)
        flags = flags_of(given, parameter, slo, gpu, python, env, arg, accelerators, faults)
        if context is not None:
            if faults:
                raise InvalidInputError("command line", faults)
            from tidegate.control.cli.cluster import commands

            commands.deploy(context, namespace, file, flags, force=is_replacement, waits=not no_wait, json=json)
            return
        text, base, source = checked(file, name, flags, faults)
        with connect(state, awaited_s=AWAITED_S) as tidegate:
            if requirements is not None:
                flags["spec.python"] = installed(state, requirements, python, is_silent=json)
                if file != "-":
                    text, base, source = checked(file, name, flags, faults)
            with as_typed(gpu):
                deployed = deployed_view(
                    tidegate, text, base, source, flags, is_replacement, is_silent=json, profile=profile
                )
            if not json:
                _report(deployed, tidegate)
            ended = () if no_wait else _wait(tidegate, deployed, is_silent=json)
        if json:
            print_json(_record(deployed, ended))
        if any(each.fault is not None for each in ended):
            raise typer.Exit(EXIT_FAILED)


def delete(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Functions to delete.", autocompletion=complete_function)
    ],
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Delete functions: their replicas finish their work and stop. With an unknown name none is deleted."""
    if check(context, namespace, state=state) is not None:
        from tidegate.control.cli.cluster import commands

        commands.delete(context or "", namespace, names, json=json)
        return
    with connect(state) as tidegate:
        wanted = _deployed_of(names, tidegate, "delete")
        for name in wanted:
            tidegate.delete(name)
            if not json:
                say(f"deleted {name}")
    if json:
        print_json({"deleted": wanted})


def forget(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="Functions that stay deployed.", autocompletion=complete_function),
    ],
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Delete what the policies of functions have learnt of their load. With an unknown name nothing is deleted."""
    with connect(state) as tidegate:
        views = [tidegate.forget(name) for name in _deployed_of(names, tidegate, "forget")]
    if json:
        print_json(views)
        return
    for view in views:
        print_text(f"forgot of {view.function}:" if view.learnt else f"nothing was learnt of {view.function}")
        for each in view.learnt:
            print_text(f"  {each}")


def _deployed_of(names: list[str], tidegate: "Tidegate", command: str) -> list[str]:
    """Returns the names, each once. Raises InvalidInputError with every one that is not deployed."""
    wanted, known = list(dict.fromkeys(names)), [each.name for each in tidegate.list()]
    if unknown := [name for name in wanted if name not in known]:
        allowed = f"deployed functions: {', '.join(known) or 'there is none'}"
        raise InvalidInputError(command, [Fault("NAME", name, f"{allowed}{nearest(name, known)}") for name in unknown])
    return wanted


def resize(
    name: NameArgument,
    cores: Annotated[
        int | None, typer.Option("--cores", metavar="N", help="Cores of each running replica's model server.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", metavar="N", help="Largest batch it forms, at most batching.max.")
    ] = None,
    batch_delay: Annotated[
        str | None,
        typer.Option("--batch-delay", metavar="DURATION", help="How long a free model waits for more requests."),
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Back to what the function says.")] = False,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Change cores and batches of a function's running replicas while they serve, until its next deploy."""
    given = (cores, batch, batch_delay)
    if reset == any(each is not None for each in given):
        value = "--reset with another figure" if reset else "nothing"
        allowed = "--cores, --batch, --batch-delay or several of them; or --reset alone"
        raise InvalidInputError("resize", [Fault("flags", value, allowed)])
    with as_flags(RESIZE_FLAGS), connect(state) as tidegate:
        view = tidegate.resize(name, cores=cores, max_batch=batch, batch_delay=batch_delay, reset=reset)
    if json:
        print_json(view)
        return
    for each in view.replicas:
        held = f"{each.cores} core{'' if each.cores == 1 else 's'}" if each.cores else "any core"
        has = f"{held}, batches of at most {each.max_batch}, delay {seconds(each.batch_delay_s)}"
        if each.refused is None:
            console().print(f"{each.replica}: {has} (in {seconds(each.took_s)})")
        else:
            console().print(f"{each.replica} stays as it is, {has}: {each.refused}")


def register(app: typer.Typer) -> None:
    app.command("resize")(guarded(in_control_process(resize)))
    app.command("deploy", cls=GroupedCommand)(deploy)
    app.command("delete")(guarded(delete))
    app.command("forget")(guarded(in_control_process(forget)))


def deployed_view(
    tidegate: "Tidegate",
    text: str,
    base: Path,
    source: str,
    flags: Mapping[str, str],
    is_replacement: bool,
    *,
    is_silent: bool,
    profile: Path | None = None,
) -> "DeployView":
    """Deploys. On a terminal it asks before it replaces a function that came from another file."""
    from tidegate.control.sdk import ApiError

    origin = None if source == STANDARD_INPUT else source
    try:
        with activity(f"deploying {source}", is_silent=is_silent):
            return tidegate.deploy(
                text,
                base=base,
                source=source,
                annotations=flags,
                origin=origin,
                replace=is_replacement,
                profile=profile,
            )
    except ApiError as error:
        if error.detail.code != OTHER_SOURCE:
            raise
        why = str(error)
    if is_silent or not (sys.stdin.isatty() and sys.stderr.isatty()):
        other = "another metadata.name" if source.endswith((".yaml", ".yml", ".json")) else "--name for another name"
        fail(f"{why}; give {other}, or --replace", EXIT_WRONG_INPUT)
    typer.confirm(f"{why}. Replace it?", abort=True, err=True)
    return tidegate.deploy(
        text, base=base, source=source, annotations=flags, origin=origin, replace=True, profile=profile
    )


def read(file: str, name: str | None, flags: Mapping[str, str] | None = None) -> tuple[str, Path, str]:
    """Returns (manifest text, folder of its relative paths, name of the source); ``-`` is standard input."""
    return read_source(file, name, flags, standard_input=sys.stdin.read)


def checked(file: str, name: str | None, flags: Mapping[str, str], faults: list[Fault]) -> tuple[str, Path, str]:
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
        context = ParseContext(base=str(base), policies=registry.names(), images=True, flags=flags)
        read_manifest(text, source=source, context=context)
    except InvalidInputError as error:
        return error.faults
    return ()


def flags_of(
    given: dict[str, str],
    parameter: list[str] | None,
    slo: str | None,
    gpu: str | None,
    python: str | None,
    env: list[str] | None,
    arg: list[str] | None,
    accelerators: str | None,
    faults: list[Fault],
) -> dict[str, str]:
    """Returns the annotations and keys of ``spec`` that the options of ``deploy``, ``dev`` and ``diff`` stand for."""
    flags = short_flags(given, slo, gpu, faults) | given | policy_flags(parameter or [], faults)
    return flags | server_flags(python, env or [], arg or [], accelerators, faults)


def short_flags(given: dict[str, str], slo: str | None, gpu: str | None, faults: list[Fault]) -> dict[str, str]:
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


@contextmanager
def as_typed(gpu: str | None) -> Iterator[None]:
    """Names ``--gpu`` in the faults of a deploy, where it was typed instead of ``--gpu-model``."""
    from tidegate.control.sdk import ApiError

    try:
        yield
    except ApiError as error:
        if gpu is None:
            raise
        message = error.detail.message.replace("--gpu-model", "--gpu")
        raise ApiError(error.status, replace(error.detail, message=message)) from error.__cause__


def server_flags(
    python: str | None, env: list[str], arg: list[str], accelerators: str | None, faults: list[Fault]
) -> dict[str, str]:
    """Returns the keys of ``spec`` that ``--python``, ``--env``, ``--arg`` and ``--accelerators`` stand for."""
    from tidegate.control.cli.develop.environments import interpreter
    from tidegate.manifest.builder import SPEC_FLAG

    meant: dict[str, str] = {}
    if python is not None:
        try:
            meant["python"] = str(interpreter(python))
        except InvalidInputError as error:
            faults += error.faults
    if accelerators is not None:
        meant["accelerators"] = accelerators
    for flag, key, texts in (("--env", "env", env), ("--arg", "args", arg)):
        for text in texts:
            name, equals, value = text.partition("=")
            if name and equals:
                meant[f"{key}.{name}"] = value
            else:
                faults.append(Fault(flag, repr(text), "NAME=VALUE"))
    return {SPEC_FLAG + key: value for key, value in meant.items()}


def installed(state: Path | None, requirements: Path, python: str | None, *, is_silent: bool) -> str:
    """Returns the interpreter of the environment that has what ``requirements`` lists; it is installed first."""
    from tidegate.control.cli.develop.environments import interpreter, prepared

    with activity(f"{requirements} is installed", is_silent=is_silent) as shown:
        return str(prepared(state_directory(state).root, requirements, interpreter(python), shown.show))


def policy_flags(texts: list[str], faults: list[Fault]) -> dict[str, str]:
    """Returns the annotations of ``KEY=VALUE`` and ``policy.KEY=VALUE``, as ``--set`` and reasons write it."""
    from tidegate.manifest.annotations import PARAMETER_PREFIX

    pairs = {text: text.partition("=") for text in texts}
    faults += [
        Fault("--policy-parameter", text, "KEY=VALUE") for text, (key, is_, _) in pairs.items() if not (key and is_)
    ]
    return {
        PARAMETER_PREFIX + key.removeprefix(PARAMETER_PREFIX): value
        for key, is_, value in pairs.values()
        if key and is_
    }


def _report(deployed: "DeployView", tidegate: "Tidegate") -> None:
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
            if each.first_s is not None:
                one = f"{one}, its first token {seconds(each.first_s)}"
            target = {True: "meets the target", False: "misses the target", None: "no target"}[each.meets_latency]
            rate = "?" if each.mu_ips is None else f"{each.mu_ips:.4g}"
            known = f"one inference {one} ({target}), {rate} inferences/s a replica ({each.source})"
            if each.error is not None:
                how = f"{100 * each.error:.0f} %" if each.error < 1.0 else f"a factor of {1 + each.error:.2g}"
                if each.meets_latency is None and view.latency_s is not None:
                    target = "may miss the target"
                about = one if one.startswith("less than") else f"about {one}"
                known = f"one inference {about}, within {how} ({target}; predicted from {each.basis})"
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
    if view.sla_costs:
        rate = f"{view.sla_costs[0].requests_per_s:.3g} requests/s"
        places = {each.accelerator: each.places for each in view.kinds}
        costs = "; ".join(_sla_cost(each, places) for each in view.sla_costs)
        lines.append(f"at the load so far, {rate}: {costs}")
    return lines


def _sla_cost(cost: "SlaCostView", places: Mapping[str, int]) -> str:
    """Returns what one latency costs. ``places``: by accelerator."""
    target = seconds(cost.latency_s)
    if cost.per_token_s is not None:
        target = f"{target} to the first token and {seconds(cost.per_token_s)} a token"
    if cost.accelerator is None:
        return f"no accelerator is known to meet {target}"
    most = places.get(cost.accelerator, cost.replicas)
    beyond = f", which has {most} place{'' if most == 1 else 's'}" if cost.replicas > most else ""
    return f"{target} for {cost.price_per_hour:g} an hour ({cost.replicas} {cost.accelerator}{beyond})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """The end of the wait for one function: its state and a call that works as pasted, or the fault."""

    state: str
    fault: str | None = None
    call: str | None = None
    displaced: tuple[str, ...] = ()
    """A sentence for each function that gave up an idle replica for it."""


def _wait(tidegate: "Tidegate", deployed: "DeployView", *, is_silent: bool) -> tuple[_Ended, ...]:
    """Waits for every function that was deployed, also after one that does not come up."""
    from tidegate.control.cli.develop.example import example
    from tidegate.control.cli.develop.waiting import displaced, result, wait
    from tidegate.control.sdk import StartFailedError

    found, began = [], time.monotonic()
    for each in deployed.functions:
        try:
            view = wait(tidegate, each.name, each.revision, is_silent=is_silent)
        except StartFailedError as error:
            say(f"error: {error}")
            taken = displaced(tidegate.list(), each.name, time.monotonic() - began + SLACK_S)
            found.append(_Ended(state="failed", fault=str(error), displaced=tuple(taken)))
            for line in () if is_silent else taken:
                say(line)
            continue
        except KeyboardInterrupt:
            say(f"{each.revision} stays deployed; `tidegate status {each.name}` shows it, `--no-wait` does not wait")
            raise
        with activity(f"{each.name} is ready; its inputs are asked for", is_silent=is_silent):
            call, remark = example(tidegate, view) if view.ready else (None, None)
        taken = displaced(tidegate.list(), each.name, time.monotonic() - began + SLACK_S)
        found.append(_Ended(state=view.state.value, call=call, displaced=tuple(taken)))
        if not is_silent:
            say(result(tidegate, view, each.revision))
            for line in taken:
                say(line)
            if call is not None:
                say(f"try it{f' ({remark})' if remark else ''}:\n  {call}")
    return tuple(found)


def _record(deployed: "DeployView", ended: tuple[_Ended, ...]) -> object:
    """Returns what `--json` prints: the answer to the deploy, each function with the end of the wait."""
    from tidegate.records.codec import encode

    plain = jsons.loads(encode(deployed))
    for function, end in zip(plain["functions"], ended, strict=False):
        function |= asdict(end)
    return plain
