"""``tidegate gateway``: a gateway on a machine or in a Pod without a control process."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.control.cli.common import StateOption, exit_codes
from tidegate.control.cli.flags import GroupedCommand, with_flags
from tidegate.control.cli.up import FLAGS, directory_of, read_settings

if TYPE_CHECKING:
    from tidegate.settings import Settings


@with_flags(FLAGS)
def gateway(
    given: dict[str, str],
    token_file: Annotated[
        Path,
        typer.Option(
            "--token-file",
            help="File with the deployment's token: STATE/link-token of its control process, or a Secret's.",
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="Name of this gateway, one of its kind (default: the host's name).")
    ] = None,
    admin_listen: Annotated[
        str, typer.Option("--admin-listen", help="HOST:PORT for the control process; port 0: any.")
    ] = "127.0.0.1:0",
    admin_host: Annotated[
        str | None,
        typer.Option("--admin-host", help="Address at which the control process finds it (default: HOST above)."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="Settings file (default: tidegate.toml where it exists).")
    ] = None,
    state: StateOption = None,
) -> None:
    """Run a gateway apart from its control process, joined by Redis. SIGTERM finishes its requests and ends it."""
    with exit_codes():
        settings = read_settings(config, given)
        name = _host_name() if name is None else name
        _check(settings, name, admin_listen, admin_host)
        from tidegate.control.main import set_up_log
        from tidegate.control.remote.gateway import GatewayPlace, run
        from tidegate.control.workers.from_settings import gateway_settings, worker_environment

        set_up_log(settings)
        host = admin_host or admin_listen.rpartition(":")[0].strip("[]")
        place = GatewayPlace(name=name, listen=admin_listen, host=host)
        run(
            place,
            state=directory_of(settings, state),
            settings=gateway_settings(settings, settings.gateway.workers or 1),
            url=settings.store.url,
            deployment=settings.store.name or "",
            token_file=token_file,
            environ=worker_environment(os.environ),
        )


def _host_name() -> str:
    import socket

    return socket.gethostname().partition(".")[0].lower()


def _check(settings: "Settings", name: str, admin_listen: str, admin_host: str | None) -> None:
    """Raises InvalidInputError with every fault."""
    import re

    from tidegate.aio.loop.sockets import host_port
    from tidegate.errors import Fault, InvalidInputError

    faults: list[Fault] = []
    if settings.store.url == "embedded":
        faults.append(Fault("store.url", "embedded", "the redis:// or rediss:// URL of its control process"))
    if settings.store.name is None:
        faults.append(Fault("store.name", "auto", "the name that its control process has (store.name)"))
    if re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name) is None:
        faults.append(Fault("--name", name, "1 to 63 of a-z, 0-9 and -, no - at either end"))
    if settings.gateway.workers == 0:
        faults.append(Fault("gateway.workers", "0", "at least 1"))
    try:
        host, _ = host_port(admin_listen)
    except ValueError:
        faults.append(Fault("--admin-listen", admin_listen, "HOST:PORT"))
    else:
        if admin_host is None and host in ("0.0.0.0", "::"):
            allowed = f"with --admin-listen {admin_listen} the address at which the control process finds this machine"
            faults.append(Fault("--admin-host", "none", allowed))
    if admin_host is not None and re.fullmatch(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}", admin_host) is None:
        faults.append(Fault("--admin-host", admin_host, "a name or address, without a port"))
    if faults:
        raise InvalidInputError("tidegate gateway", faults)


def register(app: typer.Typer) -> None:
    app.command("gateway", cls=GroupedCommand)(gateway)
