"""The tenants in force and their usage: the tenants' file, and the counts of all gateway workers."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Final

from tidegate import tenants_file
from tidegate.control.state.notices import Faults
from tidegate.control.views.deployment import TenantView
from tidegate.errors import Fault, InvalidInputError
from tidegate.records.gateway_sample import GatewaySample
from tidegate.records.tenants import Tenant, TenantSeen
from tidegate.schema.files import read_start
from tidegate.schema.yaml_nodes import MAX_BYTES
from tidegate.settings import Settings

LARGEST_KEY_FILE: Final = 4096
WARNED: Final = "tenants file"


def tenants_of(settings: Settings, warn: Callable[[str], None] | None = None) -> tuple[Tenant, ...]:
    """Returns the tenants that the settings' file declares. ``warn`` is called with what is allowed and probably not
    meant. Raises InvalidInputError with every fault."""
    file = settings.tenants.file
    if file is None:
        return ()
    try:
        text = read_start(file, MAX_BYTES + 1).decode()  # the reader reports a larger one
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "no UTF-8"
        fault = Fault("tenants.file", f"{file} ({why})", "a file of tenants")
        raise InvalidInputError("settings", [fault]) from error
    return tenants_file.parse(text, source=file, base=str(Path(file).parent), read_key=_read_key, warn=warn)


def reported_tenants(settings: Settings, faults: Faults) -> tuple[Tenant, ...]:
    """Returns the tenants as :func:`tenants_of` does; its warnings are logged, and shown in the status until they are
    gone."""
    warnings: list[str] = []
    found = tenants_of(settings, warnings.append)
    if warnings:
        faults.set(WARNED, "; ".join(warnings))
    else:
        faults.clear(WARNED)
    return found


def _read_key(path: str) -> bytes:
    return read_start(path, LARGEST_KEY_FILE)


def differences(before: Sequence[Tenant], after: Sequence[Tenant]) -> tuple[str, ...]:
    """Returns the changes, one sentence each."""
    old, new = {each.name: each for each in before}, {each.name: each for each in after}
    changes = [f"tenant {name}: new" for name in new if name not in old]
    changes += [f"tenant {name}: gone, its keys open nothing any more" for name in old if name not in new]
    for name in new.keys() & old.keys():
        was, now = old[name], new[name]
        changed = [each.name for each in fields(Tenant) if getattr(was, each.name) != getattr(now, each.name)]
        if changed:
            changes.append(f"tenant {name}: other {', '.join(changed)}")
    return tuple(sorted(changes))


class Tenancy:
    """The tenants in force. ``put`` hands them to the gateways."""

    def __init__(self, tenants: tuple[Tenant, ...], put: Callable[[tuple[Tenant, ...]], None]) -> None:
        self.tenants = tenants
        self._put = put
        self._last: dict[str, tuple[str, dict[str, TenantSeen]]] = {}
        """By worker: its incarnation, and its last counts of each tenant."""
        self._totals: dict[str, list[int]] = {}
        put(tenants)

    def change(self, tenants: tuple[Tenant, ...]) -> tuple[str, ...]:
        """Puts other tenants into force; returns the changes, one sentence each."""
        changes = differences(self.tenants, tenants)
        if changes:
            self.tenants = tenants
            names = {each.name for each in tenants}
            self._totals = {name: total for name, total in self._totals.items() if name in names}
            self._put(tenants)
        return changes

    def seen(self, sample: GatewaySample) -> None:
        """Takes a sample of a worker."""
        incarnation, before = self._last.get(sample.worker, ("", {}))
        if incarnation != sample.incarnation:
            before = {}
        now = {each.tenant: each for each in sample.tenants}
        names = {each.name for each in self.tenants}
        for name, each in now.items():
            if name not in names:
                continue
            total = self._totals.setdefault(name, [0, 0, 0, 0])
            for place, (value, last) in enumerate(zip(_figures(each), _figures(before.get(name)), strict=True)):
                total[place] += max(0, value - last)
        self._last[sample.worker] = (sample.incarnation, now)

    def forget_worker(self, worker: str) -> None:
        """Takes the end of a worker; its counts stay."""
        self._last.pop(worker, None)

    def views(self) -> tuple[TenantView, ...]:
        """Returns every tenant, in the file's order."""
        return tuple(self._view(each) for each in self.tenants)

    def _view(self, tenant: Tenant) -> TenantView:
        requests, inferences, tokens, refused = self._totals.get(tenant.name, (0, 0, 0, 0))
        return TenantView(
            name=tenant.name,
            keys=len(tenant.keys),
            weight=tenant.weight,
            priority=tenant.priority,
            functions=tenant.functions,
            quotas={limit.name: limit.amount for limit in tenant.quotas.limits()},
            requests=requests,
            inferences=inferences,
            tokens=tokens,
            refused=refused,
        )

    def __repr__(self) -> str:
        return f"<Tenancy {len(self.tenants)} tenants>"


def _figures(seen: TenantSeen | None) -> tuple[int, int, int, int]:
    return (0, 0, 0, 0) if seen is None else (seen.requests, seen.inferences, seen.tokens, seen.refused)
