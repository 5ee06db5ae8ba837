"""``tidegate job``: a request that was sent with ``tidegate invoke --async``, and its answer."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.control.cli.cluster.elsewhere import in_control_process
from tidegate.control.cli.common import (
    JsonOption,
    StateOption,
    connect,
    escaped,
    fail,
    guarded,
    print_json,
    say,
)
from tidegate.control.cli.develop.activity import activity

if TYPE_CHECKING:
    from tidegate.control.sdk import Tidegate
    from tidegate.control.views.jobs import JobView


def job(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the job, as `invoke --async` printed it.")],
    result: Annotated[bool, typer.Option("--result", help="Wait until it is over and print its answer.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete it; work under way is cancelled.")] = False,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME: VALUE", help="A request header.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the answer.", min=0.001)] = 310.0,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Show a job, its answer, or delete it."""
    if result and delete:
        raise typer.BadParameter("--result and --delete exclude each other")
    headers = read_headers(header or [])
    with connect(state) as tidegate:
        if delete:
            tidegate.delete_job(job_id, headers=headers)
            if json:
                print_json({"deleted": [job_id]})
            else:
                say(f"{job_id} is deleted")
        elif result:
            _print_result(tidegate, job_id, headers, timeout, json=json)
        else:
            _print_job(tidegate.job(job_id, headers=headers), json=json)


def register(app: typer.Typer) -> None:
    app.command("job")(guarded(in_control_process(job)))


def print_new_job(
    tidegate: "Tidegate", name: str, path: str, body: bytes, headers: dict[str, str], *, json: bool
) -> None:
    """Sends a request as a job and prints its id."""
    view = tidegate.submit(name, body, path=path, headers=headers)
    if json:
        print_json(view)
    else:
        print(view.id)
        say(f"{view.state}: tidegate job {view.id} --result")


def _print_job(view: "JobView", *, json: bool) -> None:
    if json:
        print_json(view)
        return
    status = "" if view.status is None else f", status {view.status}, {view.bytes} bytes"
    kept = "" if view.expires is None else f", kept until {view.expires}"
    reason = "" if view.reason is None else f": {view.reason}"
    print(escaped(f"{view.function} {view.state}{status}{kept}{reason}"))


def _print_result(tidegate: "Tidegate", job_id: str, headers: dict[str, str], timeout_s: float, *, json: bool) -> None:
    from tidegate.control.sdk import InvokeError

    try:
        with activity(f"job {job_id}", is_silent=json):
            answer = tidegate.result(job_id, headers=headers, timeout_s=timeout_s)
    except InvokeError as error:
        if error.status == 202:
            fail(str(error.body.decode()))
        raise
    if json and not isinstance(answer, bytes):
        print_json(answer)
        return
    import json as jsons

    shown = answer if isinstance(answer, bytes) else jsons.dumps(answer).encode()
    sys.stdout.flush()
    sys.stdout.buffer.write(escaped(shown.decode(errors="replace")).encode() if sys.stdout.isatty() else shown)
    sys.stdout.buffer.write(b"" if shown.endswith(b"\n") else b"\n")
    sys.stdout.buffer.flush()


def read_headers(texts: list[str]) -> dict[str, str]:
    """Returns the fields of ``--header NAME: VALUE`` options."""
    found = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise typer.BadParameter(f"--header {text!r}: wanted NAME: VALUE")
        found[name.strip()] = value.strip()
    return found
