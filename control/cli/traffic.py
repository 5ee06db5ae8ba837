"""``tidegate traffic``, ``rollout`` and ``rollback``: the traffic split between revisions."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidegate.control.cli.cluster.elsewhere import in_control_process
from tidegate.control.cli.common import (
    JsonOption,
    StateOption,
    as_flags,
    connect,
    console,
    guarded,
    print_json,
    say,
    seconds,
)
from tidegate.control.cli.show import NameArgument

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tidegate.control.views.functions import RolloutView, ShadowView, SplitView, WindowView

FLAGS: Final = {
    "split": "--to",
    "to": "--to",
    "tag": "--tag",
    "untag": "--untag",
    "canary-steps": "--canary",
    "canary-window": "--window",
    "rollout-duration": "--over",
    "shadow-percent": "--shadow",
}
"""Flags by the names of the API."""
_ACTIONS = ("promote", "pause", "resume", "abort")
_TO = "REVISION=PERCENT with a percent of 0 to 100"


def traffic(
    name: NameArgument,
    to: Annotated[
        list[str] | None,
        typer.Option(
            "--to",
            metavar="REVISION=PERCENT",
            help="Share of a revision, named by id, number or tag; all add up to 100.",
        ),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="TAG=REVISION", help="A tag that requests can name the revision by."),
    ] = None,
    untag: Annotated[list[str] | None, typer.Option("--untag", metavar="TAG", help="Remove a tag.")] = None,
    latest: Annotated[
        bool, typer.Option("--latest", help="End the manual split: the newest revision takes over.")
    ] = False,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Show the share of requests of each revision, or set it by hand; it then stays until it is changed."""
    split, tags = _asked(to or [], tag or [])
    with as_flags(FLAGS), connect(state) as tidegate:
        if split or tags or untag or latest:
            view = tidegate.set_traffic(name, split, tags=tags, untag=tuple(untag or ()), follow=latest)
        else:
            view = tidegate.traffic(name)
    if json:
        print_json(view)
    else:
        console().print(_split(view))


def rollback(
    name: NameArgument,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="REVISION", help="Revision by id, number or tag; default: the one that served before."
        ),
    ] = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Return to an earlier revision, or abort the rollout under way."""
    with as_flags(FLAGS), connect(state) as tidegate:
        view = tidegate.rollback(name, to)
    if json:
        print_json(view)
        return
    console().print(_split(view))
    if view.is_returning:
        say(f"{view.candidate} starts; it gets the traffic when it is ready")


def rollout(
    name: NameArgument,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="REVISION", help="Revision; default: the one being rolled out, else the newest."),
    ] = None,
    canary: Annotated[
        str | None,
        typer.Option("--canary", metavar="STEPS", help="Canary steps in percent, judged one by one: 1,5,25,50."),
    ] = None,
    window: Annotated[str | None, typer.Option("--window", help="Shortest time at each step of --canary.")] = None,
    over: Annotated[
        str | None, typer.Option("--over", metavar="DURATION", help="Ramp over this time, without a judgement.")
    ] = None,
    shadow: Annotated[
        str | None,
        typer.Option(
            "--shadow", metavar="PERCENT", help="Shadow traffic: copies of requests, whose answers are discarded."
        ),
    ] = None,
    promote: Annotated[bool, typer.Option("--promote", help="All traffic to the new revision now.")] = False,
    pause: Annotated[bool, typer.Option("--pause", help="Pause: keep the present share.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume a paused rollout.")] = False,
    abort: Annotated[bool, typer.Option("--abort", help="Abort: all traffic back to the revision before.")] = False,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Show the rollout of a new revision, begin one, or act on the one under way."""
    plan = {"canary-steps": canary, "canary-window": window, "rollout-duration": over, "shadow-percent": shadow}
    given = {key: text for key, text in plan.items() if text is not None}
    chosen = [word for word, is_set in zip(_ACTIONS, (promote, pause, resume, abort), strict=True) if is_set]
    with as_flags(FLAGS), connect(state) as tidegate:
        action = _action(chosen, given, to)
        if action is None:
            view = tidegate.rollout(name)
        else:
            from tidegate.control.views.requests import RolloutAction

            view = tidegate.change_rollout(name, RolloutAction(action), to=to, plan=given)
    if json:
        print_json(view)
    else:
        console().print(*_rollout(view), sep="\n")


def register(app: typer.Typer) -> None:
    app.command("traffic")(guarded(in_control_process(traffic)))
    app.command("rollout")(guarded(in_control_process(rollout)))
    app.command("rollback")(guarded(in_control_process(rollback)))


def _asked(to: list[str], tag: list[str]) -> tuple[dict[str, float], dict[str, str]]:
    from tidegate.errors import Fault, InvalidInputError
    from tidegate.schema.units import UnreadableError, percent

    faults, split, tags = [], {}, {}
    for text in to:
        revision, _, amount = text.rpartition("=")
        if not revision or revision in split:
            faults.append(Fault("--to", text, f"{_TO}, each revision once"))
            continue
        try:
            split[revision] = percent(amount)
        except UnreadableError:
            faults.append(Fault("--to", text, _TO))
    for text in tag:
        word, is_there, revision = text.partition("=")
        if not (word and is_there and revision) or word in tags:
            faults.append(Fault("--tag", text, "TAG=REVISION, each tag once"))
        tags[word] = revision
    if faults:
        raise InvalidInputError("command line", faults)
    return split, tags


def _action(chosen: list[str], plan: dict[str, str], to: str | None) -> str | None:
    """Returns the one action to take; None only shows."""
    from tidegate.errors import Fault, InvalidInputError

    wanted = [*chosen, *(["begin"] if plan else [])]
    if len(wanted) > 1:
        allowed = "one of --promote, --pause, --resume, --abort, or a new plan"
        raise InvalidInputError("command line", [Fault("rollout", ", ".join(wanted), allowed)])
    if to is not None and not plan:
        allowed = "nothing, unless --canary, --over or --shadow is given"
        raise InvalidInputError("command line", [Fault("--to", to, allowed)])
    return next(iter(wanted), None)


def _split(view: "SplitView") -> "RenderableType":
    from rich.console import Group
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("REVISION", "TRAFFIC", "COPIES", "TAGS", "READY"):
        table.add_column(column)
    for each in view.parts:
        copies = f"{each.shadow_percent:g}%" if each.shadow_percent else "-"
        tags = ", ".join(each.tags) or "-"
        table.add_row(each.revision, f"{each.percent:g}%", copies, tags, "yes" if each.ready else "no")
    rest = [f"set by hand; `tidegate traffic {view.function} --latest` ends that"] if view.is_pinned else []
    return Group(table, *rest, f"kept: {', '.join(view.kept)}")


def _rollout(view: "RolloutView") -> "list[RenderableType]":
    from datetime import UTC, datetime

    from tidegate.records.rollout import ENDS

    is_copied = view.shadow_percent and view.phase not in ENDS
    percent = f"copies of {view.shadow_percent:g}%" if is_copied else f"{view.percent:g}% of the traffic"
    if view.phase in ENDS:
        percent = f"it has {percent} now"
    lines: list[RenderableType] = [
        f"[bold]{view.candidate}[/bold]  {view.strategy.value}, {view.phase.value}: {percent}; before: {view.base}"
    ]
    if view.steps:
        steps = ", ".join(
            f"[bold]{each:g}[/bold]" if n == view.step else f"{each:g}" for n, each in enumerate(view.steps, 1)
        )
        left = "" if view.window_left_s is None else f", {view.window_left_s:.0f} s of it left"
        lines.append(f"step {view.step} of {len(view.steps)} ({steps} %), window {seconds(view.window_s)}{left}")
    if view.duration_s is not None:
        lines.append(f"over {seconds(view.duration_s)}")
    lines.append(f"verdict: {view.verdict}")
    if view.new is not None and view.old is not None:
        lines.append(_windows(view.candidate, view.new, view.base, view.old))
    if view.shadow is not None:
        lines.append(_shadow(view.shadow))
    for event in view.events:
        at = datetime.fromtimestamp(event.at, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")
        lines.append(f"{at}  {event.code}  {event.detail}")
    return lines


def _windows(new_id: str, new: "WindowView", old_id: str, old: "WindowView") -> "RenderableType":
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("THIS WINDOW", "REQUESTS", "BAD", "FAILED", "REFUSED", "EXPIRED", "LATE", "OVERDUE"):
        table.add_column(column)
    for id_, each in ((new_id, new), (old_id, old)):
        row = (each.requests, each.bad, each.failed, each.refused, each.expired, each.late, each.overdue)
        table.add_row(id_, *(str(cell) for cell in row))
    return table


def _shadow(view: "ShadowView") -> str:
    return (
        f"{view.requests} pairs compared, {view.skipped} skipped: {view.failed} failed, {view.status_differs} with "
        f"another status, {view.output_differs} with another output; p50 {seconds(view.p50_s)} against "
        f"{seconds(view.served_p50_s)}, p98 {seconds(view.p98_s)} against {seconds(view.served_p98_s)}"
    )
