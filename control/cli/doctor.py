"""``tidegate doctor``: checks what this machine offers and what would fail, before it does."""

import os
import random
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.control.cli.cluster.options import ContextOption, NamespaceOption, check
from tidegate.control.cli.common import (
    EXIT_FAILED,
    JsonOption,
    StateOption,
    console,
    guarded,
    print_json,
    print_text,
    state_directory,
)

if TYPE_CHECKING:
    from tidegate.control.state.directory import StateDirectory
    from tidegate.deploy.placement.ledger import Accelerator
    from tidegate.settings import Settings

OLDEST = (3, 11)
SHOWN = 3
"""Model servers that one finding names."""
FILES = 1024
"""Limit of open files below which many connections cannot be served."""


class CheckVerdict(StrEnum):
    OK = "ok"
    NOTE = "note"
    """Works, with less than the full feature."""
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    verdict: CheckVerdict
    text: str


def doctor(
    listen: Annotated[
        str | None, typer.Option(help="Address of the front door to check (default: the settings').")
    ] = None,
    control_listen: Annotated[
        str | None, typer.Option(help="Address of the API to check (default: the settings').")
    ] = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Check this machine, and what `tidegate.toml` here would start on it: interpreter, event loop, sockets,
    accelerators, ports, certificate, store, tenants, state directory, leftovers. With --context: what a cluster has
    and lacks. Exit code 1: something that is needed does not work (bad)."""
    if check(context, namespace, state=state, listen=listen, control_listen=control_listen) is None:
        findings = list(examine(state_directory(state), listen, control_listen))
    else:
        import asyncio

        findings = asyncio.run(examine_cluster(context or "", namespace))
    if json:
        print_json(findings)
    else:
        colours = {CheckVerdict.OK: "green", CheckVerdict.NOTE: "yellow", CheckVerdict.BAD: "red"}
        for each in findings:
            console().print(f"[{colours[each.verdict]}]{each.verdict.value:<4}[/] {each.check}: ", end="")
            print_text(each.text)
    if any(each.verdict is CheckVerdict.BAD for each in findings):
        raise typer.Exit(EXIT_FAILED)


def register(app: typer.Typer) -> None:
    app.command("doctor")(guarded(doctor))


def examine(directory: "StateDirectory", listen: str | None, control_listen: str | None) -> Iterator[Finding]:
    """Runs every check; one that fails unexpectedly is a finding too. ``listen`` and ``control_listen`` None: the
    addresses of the settings here."""
    from tidegate.control.cli.up import read_settings
    from tidegate.control.state.directory import StateError
    from tidegate.errors import InvalidInputError
    from tidegate.settings import Settings

    try:
        settings = read_settings(None, {})
    except InvalidInputError as error:
        yield Finding("settings", CheckVerdict.BAD, str(error))
        settings = Settings()

    try:
        running = directory.holder() is not None
    except StateError:  # a finding of the check of the state directory
        running = False
    checks: list[tuple[str, Callable[[], tuple[CheckVerdict, str]]]] = [
        ("python", _python),
        ("head grammar", _grammar),
        ("event loop", _loop),
        ("unix sockets", lambda: _unix_sockets(directory)),
        ("shared ports", _reuse_port),
        ("process watching", _pidfd),
        ("open files", _open_files),
        ("confinement", _confinement),
        ("open ports", lambda: _open_ports(directory)),
        (
            "onnx runtime",
            lambda: _module("onnxruntime", "models in ONNX files cannot be served: pip install 'tidegate[onnx]'"),
        ),
        ("accelerators", lambda: _accelerators(settings)),
        ("power", _power),
        ("certificate", lambda: _certificate(directory, settings)),
        ("store", lambda: _store(settings)),
        ("tenants", lambda: _tenants(settings)),
        ("state directory", lambda: _state(directory)),
        ("leftovers", lambda: _leftovers(directory)),
    ]
    if not running:
        addresses = (listen or str(settings.gateway.listen), control_listen or str(settings.control.listen))
        checks += [(f"port {address}", lambda address=address: _port(address, directory)) for address in addresses]  # type: ignore[misc]
    for name, examined in checks:
        try:
            verdict, text = examined()
        except Exception as error:  # a broken check must not hide the others
            verdict, text = CheckVerdict.BAD, f"{type(error).__name__}: {error}"
        yield Finding(name, verdict, text)


async def examine_cluster(context: str, namespace: str | None) -> list[Finding]:
    """Asks a cluster what it has and lacks; a cluster that cannot be asked is the finding."""
    from tidegate.clock import wall
    from tidegate.deploy.kubernetes.process.api import ClusterError, KubernetesApi
    from tidegate.deploy.kubernetes.process.survey import Answer, survey
    from tidegate.deploy.kubernetes.webhook.process.survey import survey_webhook

    verdicts = {
        Answer.HAS: CheckVerdict.OK,
        Answer.LACKS_LITTLE: CheckVerdict.NOTE,
        Answer.LACKS: CheckVerdict.BAD,
    }
    try:
        api = await KubernetesApi.connect(random.Random(), context=context)
    except ClusterError as error:
        return [Finding("cluster", CheckVerdict.BAD, str(error))]
    try:
        place = namespace or api.namespace
        found = [each async for each in survey(api, place)]
        found.append(await survey_webhook(api, place, wall()))
        return [Finding(each.subject, verdicts[each.answer], each.text) for each in found]
    finally:
        await api.close()


def _python() -> tuple[CheckVerdict, str]:
    text = f"{sys.version.split()[0]} at {sys.executable}"
    return (CheckVerdict.OK if sys.version_info >= OLDEST else CheckVerdict.BAD), text


def _grammar() -> tuple[CheckVerdict, str]:
    from tidegate.wire.http1.grammar import self_test

    self_test()
    return CheckVerdict.OK, "the regular expressions of request heads work on this interpreter"


def _loop() -> tuple[CheckVerdict, str]:
    verdict, text = _module("uvloop", "uvloop is not installed: asyncio's own loop serves about a quarter less")
    return verdict, f"uvloop {text}" if verdict is CheckVerdict.OK else text


def _unix_sockets(directory: "StateDirectory") -> tuple[CheckVerdict, str]:
    if not hasattr(socket, "AF_UNIX"):
        return CheckVerdict.BAD, "this system has none"
    own = directory.run.is_relative_to(directory.root)
    place = "in the state directory" if own else "elsewhere, the state directory's path is too long"
    return CheckVerdict.OK, f"{directory.run} ({place})"


def _reuse_port() -> tuple[CheckVerdict, str]:
    with socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        first.bind(("127.0.0.1", 0))
        second.bind(first.getsockname())
    return CheckVerdict.OK, "several gateway workers can share a port"


def _pidfd() -> tuple[CheckVerdict, str]:
    if not hasattr(os, "pidfd_open"):
        return CheckVerdict.NOTE, "no pidfd here: the end of adopted processes is asked for four times a second"
    os.close(os.pidfd_open(os.getpid()))
    return CheckVerdict.OK, "pidfd"


def _confinement() -> tuple[CheckVerdict, str]:
    import json
    import subprocess

    from tidegate.runtime import confine

    command = [sys.executable, "-I", "-S", confine.__file__]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=10, text=True).stdout)
    missing = [
        f"{what}: {found[name]}"
        for name, what in (
            ("hide", "the state directory cannot be hidden from model servers"),
            ("landlock", "model servers can trace and signal other processes of this user"),
        )
        if found[name] is not None
    ]
    if missing:
        return CheckVerdict.NOTE, "; ".join(missing)
    return CheckVerdict.OK, "model servers are kept from the state directory and from other processes of this user"


def _open_ports(directory: "StateDirectory") -> tuple[CheckVerdict, str]:
    """Names the model servers on TCP ports: any user of this machine calls them past the limits and the access rule of
    their function."""
    from tidegate.deploy.local.records import RecordStore

    records = RecordStore(directory.processes).read_all()[0] if Path(directory.processes).exists() else []
    details = {each.replica.id: each.replica.upstream for each in records if each.replica is not None}
    ports = [f"{replica} at {upstream}" for replica, upstream in sorted(details.items()) if ":/" not in upstream]
    if not ports:
        return CheckVerdict.OK, "no model server listens on a TCP port"
    more = f" and {len(ports) - SHOWN} more" if len(ports) > SHOWN else ""
    return CheckVerdict.NOTE, (
        f"every user of this machine can call {', '.join(ports[:SHOWN])}{more}, past queue_proxy and access rule; "
        "{socket} in a command gives it a unix socket"
    )


def _open_files() -> tuple[CheckVerdict, str]:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    verdict = CheckVerdict.OK if soft > FILES else CheckVerdict.NOTE
    return verdict, f"{soft} (at most {hard}); each connection takes one"


def _module(name: str, without: str) -> tuple[CheckVerdict, str]:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return CheckVerdict.OK, version(name)
    except PackageNotFoundError:
        return CheckVerdict.NOTE, without


def _accelerators(settings: "Settings") -> tuple[CheckVerdict, str]:
    """Checks the accelerators that the settings' file declares, else those that are found."""
    from tidegate.deploy.devices.discovered import inventory_of_cluster, take_inventory
    from tidegate.errors import InvalidInputError

    complaints: list[str] = []
    file = settings.accelerators.file
    try:
        if file is not None and settings.kubernetes.image is not None:
            found = inventory_of_cluster(Path(file))
        else:
            found = take_inventory(None if file is None else Path(file), complaints.append)
    except InvalidInputError as error:
        return CheckVerdict.BAD, str(error)
    except OSError as error:
        return CheckVerdict.BAD, f"{file}: {error.strerror or error}"
    listed = ", ".join(_accelerator(each) for each in found.accelerators)
    return (CheckVerdict.NOTE if complaints else CheckVerdict.OK), "; ".join([listed or "none", *complaints])


def _power() -> tuple[CheckVerdict, str]:
    """Says whether the power of processors and of NVIDIA devices can be read. Nothing depends on it."""
    from tidegate.deploy.devices.rapl import Packages
    from tidegate.deploy.devices.usage import nvml

    packages = Packages()
    packages.read(0.0)
    devices = "by NVML" if nvml() is not None else "not read: the package nvidia-ml-py is missing"
    return CheckVerdict.OK, f"processors: {packages.fault or 'by RAPL'}; NVIDIA devices: {devices}"


def _accelerator(found: "Accelerator") -> str:
    facts = (
        found.kind.value,
        found.compute_capability and f"compute {found.compute_capability}",
        found.driver and f"driver {found.driver}",
    )
    return f"{found.count} x {found.name} ({', '.join(fact for fact in facts if fact)})"


def _certificate(directory: "StateDirectory", settings: "Settings") -> tuple[CheckVerdict, str]:
    """Checks the certificate of the running front door, else of the one that ``tidegate.toml`` here would start."""
    from tidegate.clock import LiveClock
    from tidegate.control.workers.certificates import check, oddities
    from tidegate.errors import InvalidInputError

    now = LiveClock().now()
    try:
        holder = directory.holder()
        if holder is not None and holder.api is not None:
            used = holder.certificate
            odd = () if used is None else oddities(used, now)
        else:
            used, odd = settings.gateway.tls_cert, check(settings.gateway, now)
    except InvalidInputError as error:
        return CheckVerdict.BAD, str(error)
    if used is None:
        return CheckVerdict.OK, "none: the front door speaks plain HTTP"
    return (CheckVerdict.NOTE, "; ".join(odd)) if odd else (CheckVerdict.OK, used)


def _store(settings: "Settings") -> tuple[CheckVerdict, str]:
    """Checks that the Redis of the settings answers and accepts the credentials."""
    import asyncio

    from tidegate.errors import TidegateError

    url = settings.store.url
    if url == "embedded":
        return CheckVerdict.OK, "embedded, in the state directory"
    from tidegate.store.opening import open_store

    async def look() -> str:
        store = await open_store(url, Path(), settings.store.name or "")
        await store.close()
        return store.place

    try:
        return CheckVerdict.OK, asyncio.run(look())
    except TidegateError as error:
        return CheckVerdict.BAD, str(error)


def _tenants(settings: "Settings") -> tuple[CheckVerdict, str]:
    from tidegate.control.workers.tenants import tenants_of
    from tidegate.errors import InvalidInputError

    try:
        warnings: list[str] = []
        found = tenants_of(settings, warnings.append)
    except InvalidInputError as error:
        return CheckVerdict.BAD, str(error)
    if warnings:
        return CheckVerdict.NOTE, "; ".join(warnings)
    keyless = sum(not each.keys for each in found)
    return CheckVerdict.OK, f"{len(found)}, {keyless} of them without a key" if found else "none"


def _state(directory: "StateDirectory") -> tuple[CheckVerdict, str]:
    holder = directory.holder()
    if holder is not None:
        return CheckVerdict.OK, f"{directory.root}, in use by process {holder.pid} since {holder.since}"
    root = directory.root
    if not root.exists():
        parent = next(path for path in root.parents if path.exists())
        refused = _why_not_writable(parent)
        return (
            (CheckVerdict.OK, f"{root} will be made") if refused is None else (CheckVerdict.BAD, f"{root}: {refused}")
        )
    refused = _why_not_writable(root)
    if refused is None and root.stat().st_uid != os.getuid():
        refused = "belongs to another user"
    return (CheckVerdict.OK, str(root)) if refused is None else (CheckVerdict.BAD, f"{root}: {refused}")


def _why_not_writable(folder: Path) -> str | None:
    """Returns why a folder cannot be written; None if it can. Writes a file: permission bits do not show what root may
    do on a read-only or virtual file system."""
    import tempfile

    if not folder.is_dir():
        return f"{folder} is not a folder"
    try:
        tempfile.TemporaryDirectory(dir=folder, prefix=".tidegate-doctor-").cleanup()
    except OSError as error:
        return f"nothing can be made in {folder}: {error.strerror or error}"
    return None


def _leftovers(directory: "StateDirectory") -> tuple[CheckVerdict, str]:
    from tidegate.deploy.local.records import RecordStore
    from tidegate.deploy.local.recovery import survey

    if not Path(directory.processes).exists():
        return CheckVerdict.OK, "none"
    found = survey(RecordStore(directory.processes))
    count = len(found.living) + len(found.strangers)
    if directory.holder() is not None:
        return CheckVerdict.OK, f"none; {count} processes belong to the running deployment"
    if count == 0:
        return CheckVerdict.OK, "none"
    return (
        CheckVerdict.NOTE,
        f"{count} processes of a control process that was killed; `tidegate up` adopts, `down` ends them",
    )


def _port(address: str, directory: "StateDirectory") -> tuple[CheckVerdict, str]:
    """Checks that an address is free. One that a leftover of this state directory holds is no fault: the next `up`
    takes it over."""
    from tidegate.aio.loop.sockets import listen
    from tidegate.control.cli.develop.ports import holder_of
    from tidegate.deploy.local.records import RecordStore
    from tidegate.deploy.local.recovery import survey

    try:
        listen(address).close()
    except OSError as error:
        holder = holder_of(int(address.rpartition(":")[2]))
        if holder is None:
            return CheckVerdict.BAD, f"{error.strerror}; choose another with a flag of `tidegate up`"
        left = survey(RecordStore(directory.processes)).living if Path(directory.processes).exists() else ()
        record = next((each for each in left if each.pid == holder.pid), None)
        if record is not None:
            text = f"held by {record.id} (process {holder.pid}), left over from a control process that was killed"
            return CheckVerdict.NOTE, f"{text}; `tidegate up` takes it over, `tidegate down` ends it"
        whose = "a process of another deployment of Tidegate" if holder.is_ours else "a foreign process"
        text = f"held by {whose}: {holder.pid} ({holder.program})"
        return CheckVerdict.BAD, f"{text}; choose another address with a flag of `tidegate up`"
    return CheckVerdict.OK, "free"
