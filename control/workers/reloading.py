"""Settings, accelerators and tenants that change in operation: read again when their files change, or on request.

Put into force at once: the accelerators (kinds, counts, prices), the tenants and the log level. Settings that only
gateway workers use need fresh ones (``tidegate restart``), the rest another ``tidegate up``; both are named. A file
with a fault changes nothing at all.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tidegate.control.state.notices import Faults
from tidegate.control.workers.renewal import Reloaded, differences, reloaded
from tidegate.control.workers.tenants import reported_tenants
from tidegate.deploy.devices.discovered import Inventory, inventory_of_cluster, take_inventory
from tidegate.deploy.placement.ledger import Accelerator
from tidegate.errors import Fault, InvalidInputError
from tidegate.records.tenants import Tenant
from tidegate.settings import Settings

LOOK_EVERY_S: Final = 2.0
"""Time for which a changed file must have stayed the same before it is read: editors write in pieces."""
SUBJECT: Final = "settings"

_log = logging.getLogger("tidegate")

SetTenants = Callable[[tuple[Tenant, ...]], tuple[str, ...]]
Signature = tuple[tuple[int, int, int] | None, ...]


class Reloading:
    """The settings in force."""

    def __init__(
        self,
        settings: Settings,
        *,
        reread: Callable[[], Settings],
        config: Path | None,
        accelerators: Callable[[], Sequence[Accelerator]],
        set_accelerators: Callable[[Inventory], None],
        faults: Faults,
        set_tenants: SetTenants = lambda tenants: (),
    ) -> None:
        """``reread`` reads the settings again; ``config`` is their file. ``accelerators`` returns those in force.
        ``set_accelerators`` and ``set_tenants`` put others into force; the latter returns what has changed."""
        self.settings = settings
        self._reread = reread
        self._config = config
        self._accelerators = accelerators
        self._set_accelerators = set_accelerators
        self._faults = faults
        self._set_tenants = set_tenants
        self._reading = asyncio.Lock()

    async def reload(self) -> Reloaded:
        """Reads the files and puts into force what can be. Raises InvalidInputError with the faults of all."""
        async with self._reading:
            read, inventory, tenants = await asyncio.to_thread(self._read)
            self.settings, found = reloaded(self.settings, read)
            before = [each for each in self._accelerators() if each.count]
            changes = differences(before, inventory.accelerators)
            if changes:
                self._set_accelerators(inventory)
            changes = (*changes, *self._set_tenants(tenants))
            logging.getLogger().setLevel(self.settings.log.level.value.upper())
            self._faults.clear(SUBJECT)
            for change in (*found.in_force, *changes):
                _log.info("in force: %s", change)
            return Reloaded(
                in_force=(*found.in_force, *changes),
                needs_restart=found.needs_restart,
                needs_up=found.needs_up,
                overridden=read.overridden,
            )

    def _read(self) -> tuple[Settings, Inventory, tuple[Tenant, ...]]:
        wrong: list[InvalidInputError] = []
        read = self.settings
        try:
            read = self._reread()
        except InvalidInputError as error:
            wrong.append(error)
        inventory = None
        try:
            inventory = inventory_of(read)
        except InvalidInputError as error:
            wrong.append(error)
        tenants: tuple[Tenant, ...] = ()
        try:
            tenants = reported_tenants(read, self._faults)
        except InvalidInputError as error:
            wrong.append(error)
        if wrong or inventory is None:
            raise joined(wrong, read)
        return read, inventory, tenants

    async def watch(self) -> None:
        """Reloads when a file has changed and has then stayed the same for ``LOOK_EVERY_S``; until cancelled."""
        known = seen = await asyncio.to_thread(self._signature)
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            last, seen = seen, await asyncio.to_thread(self._signature)
            if seen == known or seen != last:
                continue
            known = seen
            try:
                await self.reload()
            except InvalidInputError as error:
                self._faults.set(SUBJECT, str(error))

    def _signature(self) -> Signature:
        files = (self.settings.accelerators.file, self.settings.tenants.file)
        return tuple(_state(path) for path in (self._config, *(None if file is None else Path(file) for file in files)))


def joined(errors: Sequence[InvalidInputError], settings: Settings) -> InvalidInputError:
    """Returns one error with the faults of all. A fault of a setting's value names where the value came from."""
    sources = dict.fromkeys(each.source for each in errors)
    return InvalidInputError(
        " and ".join(sources), list(settings.sourced([each for error in errors for each in error.faults]))
    )


def inventory_of(settings: Settings) -> Inventory:
    """Returns the accelerators that the settings declare, or that are found. Replicas that are Pods have those that are
    declared. Raises InvalidInputError."""
    file = settings.accelerators.file
    try:
        if file is not None and settings.kubernetes.image is not None:
            return inventory_of_cluster(Path(file))
        return take_inventory(None if file is None else Path(file), _log.info)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "no UTF-8"
        fault = Fault("accelerators.file", f"{file} ({why})", "a file of accelerators")
        raise InvalidInputError("settings", [fault]) from error


def _state(path: Path | None) -> tuple[int, int, int] | None:
    """Returns a value that changes whenever the file does; None if there is no file."""
    try:
        found = None if path is None else path.stat()
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)
