"""``tidegate up``, ``down``, ``restart`` and ``reload``: start and end of the deployment, and changes of its front
door."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.control.cli.cluster.elsewhere import in_control_process
from tidegate.control.cli.common import (
    JsonOption,
    StateOption,
    connect,
    exit_codes,
    fail,
    guarded,
    print_json,
    say,
    state_directory,
)
from tidegate.control.cli.develop.activity import activity
from tidegate.control.cli.flags import Flag, GroupedCommand, with_flags
from tidegate.settings import SETTINGS

if TYPE_CHECKING:
    from tidegate.control.main import Addresses
    from tidegate.control.state.directory import Holder, StateDirectory
    from tidegate.settings import Settings

FLAGS = tuple(
    Flag(
        key=row.flag.removeprefix("--"),
        name=row.flag.removeprefix("--"),
        help=f"{row.description} [{row.kind.allowed}; default {row.default}]",
        panel=f"Settings of [{row.key.partition('.')[0]}]",
    )
    for row in SETTINGS
)
DEFAULT_CONFIG = Path("tidegate.toml")
REMOTE = "of remote gateways"
"""Said of the gateway's address where no workers are here."""
START_S = 60.0
"""Seconds that a detached control process has to answer."""
DOWN_S = 120.0
"""Seconds that a control process has to end after it was asked to."""


@with_flags(FLAGS)
def up(
    given: dict[str, str],
    config: Annotated[
        Path | None, typer.Option("--config", help="Settings file (default: tidegate.toml where it exists).")
    ] = None,
    state: StateOption = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Run in the background; return when the deployment answers.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Run the deployment: control process, gateway workers, replicas. Ctrl-C ends it in order."""
    with exit_codes():
        settings = read_settings(config, given)
        for warning in _check_files(settings):
            say(f"warning: {warning}")
        directory = directory_of(settings, state)
        if detach:
            _detach(directory, json)
            return
        from tidegate.control.main import run

        def ready(addresses: "Addresses") -> None:
            if json:
                print_json(
                    {"gateway": addresses.gateway, "api": addresses.api, "state_directory": str(addresses.state)}
                )
                sys.stdout.flush()
            else:
                say(f"gateway {addresses.gateway or REMOTE}   api {addresses.api}   state {addresses.state}")
                say("deploy a function: tidegate deploy FILE    console: tidegate open    stop: Ctrl-C")

        file = (config or DEFAULT_CONFIG).absolute()
        run(settings, directory, os.environ, ready, reread=lambda: read_settings(config, given), config=file)


def down(state: StateOption = None, json: JsonOption = False) -> None:
    """End the deployment: requests are finished, then every process stops."""
    directory = state_directory(state)
    holder = directory.holder()
    if holder is not None:
        with activity(f"control process {holder.pid} ends: requests are finished, then every process", is_silent=json):
            _ask_to_end(directory, holder)
    # One that died instead of ending in order has left its workers and replicas behind.
    ended = [f"control process {holder.pid}"] if holder is not None else []
    if directory.holder() is None:
        ended += _end_leftovers(directory)
    if json:
        print_json({"ended": ended})
    elif ended:
        say(f"ended: {', '.join(ended)}")
    else:
        say(f"no deployment is running in {directory.root}")


def restart(state: StateOption = None, json: JsonOption = False) -> None:
    """Replace the gateway workers by fresh processes, with the settings as they are now, while they serve."""
    with connect(state) as tidegate, activity("gateway workers are replaced", is_silent=json):
        view = tidegate.restart()
    if json:
        print_json(view)
        return
    for each in view.replaced:
        say(f"{each.worker} (process {each.pid}) serves, {each.old} ({each.old_pid or 'down'}) finishes its requests")
    if view.needs_up:
        say(f"needs another `tidegate up` to take effect: {', '.join(view.needs_up)}")


def reload(state: StateOption = None, json: JsonOption = False) -> None:
    """Read settings, accelerators and the TLS certificate now (their files are looked at every 2 s)."""
    with connect(state) as tidegate:
        view = tidegate.reload()
    if json:
        print_json(view)
    else:
        for change in view.in_force:
            say(f"in force: {change}")
        if view.needs_restart:
            say(f"needs `tidegate restart` to take effect: {', '.join(view.needs_restart)}")
        if view.needs_up:
            say(f"needs another `tidegate up` to take effect: {', '.join(view.needs_up)}")
        for sentence in view.overridden:
            say(f"not in force: {sentence}")
        if view.reloaded:
            say(f"certificate in use by: {', '.join(view.reloaded)}")
        if not (
            view.in_force or view.needs_restart or view.needs_up or view.overridden or view.reloaded or view.faults
        ):
            say("nothing has changed")
    if view.faults:
        fail("\n".join(f"{worker}: {why}" for worker, why in view.faults.items()))


def register(app: typer.Typer) -> None:
    app.command("up", cls=GroupedCommand)(up)
    app.command("down")(guarded(down))
    app.command("restart")(guarded(in_control_process(restart)))
    app.command("reload")(guarded(in_control_process(reload)))


def read_settings(config: Path | None, flags: dict[str, str]) -> "Settings":
    """Returns the settings of a file (named, or ``tidegate.toml`` here) overridden by the flags. Raises
    InvalidInputError."""
    from tidegate.errors import Fault, InvalidInputError
    from tidegate.settings import read

    path = config or DEFAULT_CONFIG
    text = ""
    try:
        if config is not None or path.exists():
            text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(str(path), [Fault("--config", str(path), "a TOML file that can be read")]) from error
    base = str(path.absolute().parent)
    source = str(path) if text else "command line"
    return read(text, source=source, base=base, flags=flags, cwd=str(Path.cwd()))


def _check_files(settings: "Settings") -> tuple[str, ...]:
    """Reads the files that the settings name, and returns warnings about the certificate. Raises InvalidInputError
    with the faults of all of them."""
    from tidegate.errors import InvalidInputError

    gateway, wrong = settings.gateway, list[InvalidInputError]()
    warnings: tuple[str, ...] = ()
    if gateway.tls_cert is not None:
        from tidegate.clock import LiveClock
        from tidegate.control.workers.certificates import check

        try:
            warnings = check(gateway, LiveClock().now())
        except InvalidInputError as error:
            wrong.append(error)
    if settings.metrics.token_file is not None:
        from tidegate.control.metrics.listener import TokenFile

        try:
            TokenFile(Path(settings.metrics.token_file), lambda: 0.0).token()
        except InvalidInputError as error:
            wrong.append(error)
    if settings.accelerators.file is None and settings.tenants.file is None and not wrong:
        return warnings
    from tidegate.control.workers.reloading import inventory_of, joined
    from tidegate.control.workers.tenants import tenants_of

    for read in (*((inventory_of,) if settings.accelerators.file is not None else ()), tenants_of):
        try:
            read(settings)
        except InvalidInputError as error:
            wrong.append(error)
    if wrong:
        raise joined(wrong, settings)
    return warnings


def directory_of(settings: "Settings", given: Path | None) -> "StateDirectory":
    """Returns the state directory of the settings, unless another one is given."""
    named = settings.state.directory
    return state_directory(given if given is not None or named is None else Path(named))


def _detach(directory: "StateDirectory", json: bool) -> None:
    """Starts this command without ``--detach`` in a session of its own and waits until the deployment answers."""
    import subprocess
    import time

    from tidegate.control.state.directory import StateLockedError, usable

    directory.prepare()
    if (holder := directory.holder()) is not None:
        raise StateLockedError(directory.root, holder)
    log = directory.control_log
    arguments = [argument for argument in sys.argv[1:] if argument not in ("--detach", "--json")]
    with usable(log):
        began = log.stat().st_size if log.exists() else 0
        output = log.open("ab")
    with output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidegate.control.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    holder = None
    end = time.monotonic() + START_S
    with activity("the control process starts", is_silent=json) as shown:
        while time.monotonic() < end and process.poll() is None:
            holder = directory.holder()
            if holder is not None and holder.api is not None:
                break
            if holder is not None:
                shown.show(f"control process {holder.pid} starts its gateway workers")
            time.sleep(0.05)
    if holder is not None and holder.api is not None:
        if json:
            print_json({"gateway": holder.gateway, "api": holder.api, "state_directory": str(directory.root)})
        else:
            say(f"gateway {holder.gateway or REMOTE}   api {holder.api}   state {directory.root}   log {log}")
        return
    lines = log.read_bytes()[began:].decode(errors="replace").splitlines()[-5:]
    fail("\n".join(["the control process did not start; last lines of its log:", *lines]))


def _ask_to_end(directory: "StateDirectory", holder: "Holder") -> None:
    import signal
    import time

    from tidegate.control.sdk import NotRunningError, Tidegate
    from tidegate.errors import TidegateError

    try:
        with Tidegate.local(directory.root, patience_s=0.0) as tidegate:
            tidegate.shut_down()
    except NotRunningError:
        if holder.pid and directory.holder() is not None:
            with suppress(ProcessLookupError):
                os.kill(holder.pid, signal.SIGINT)  # SIGTERM would leave Pods.
    end = time.monotonic() + DOWN_S
    while directory.holder() is not None or _is_there(holder.pid):
        if time.monotonic() > end:
            raise TidegateError(f"the control process {holder.pid} has not ended after {DOWN_S:g} s")
        time.sleep(0.05)


def _is_there(pid: int) -> bool:
    """Returns whether the process exists; its lock is released a moment before its end. A zombie has ended."""
    try:
        return pid > 0 and Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _end_leftovers(directory: "StateDirectory") -> list[str]:
    """Ends what a killed control process left behind, from the state directory alone."""
    if not directory.root.exists():
        return []
    from tidegate.deploy.local.recovery import end_all

    lock = directory.lock()
    try:
        ended = [f"{each.id} ({each.pid})" for each in end_all(directory.processes)]
        directory.clear()
        return ended
    finally:
        lock.release()
