"""The settings that a hot restart of the gateway workers, or a reload, puts into force. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tidegate.deploy.placement.ledger import Accelerator
from tidegate.settings import SETTINGS, Settings

RENEWABLE: Final = (
    "gateway.trusted_proxies",
    "gateway.tls_cert",
    "gateway.tls_key",
    "cors.",
    "limits.",
    "jobs.",
    "log.access_sampling",
    "metrics.http_server",
    "tracing.",
)
"""Settings that only workers use. The rest belongs to the control process, or to all processes together."""
RELOADABLE: Final = ("accelerators.file", "log.level", "tenants.file")
"""Settings that the control process puts into force while it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloaded:
    """The result of a reload: changed settings and accelerators, in words."""

    in_force: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()
    """Keys that fresh gateway workers put into force."""
    needs_up: tuple[str, ...] = ()
    """Keys that need another ``tidegate up``."""
    overridden: tuple[str, ...] = ()
    """Values of the file that a flag of ``tidegate up`` overrides, a sentence each."""


def reloaded(running: Settings, read: Settings) -> tuple[Settings, Reloaded]:
    """Returns ``running`` with the settings that can be put into force now, and what happened to each changed one."""
    rest, needs_up = renewed(running, read)
    in_force, found = [], running
    for row in SETTINGS:
        section, _, name = row.field.partition(".")
        before, value = (getattr(getattr(each, section), name) for each in (running, read))
        if row.field in RELOADABLE and value != before:
            changed: Any = replace(getattr(found, section), **{name: value})
            found = replace(found, **{section: changed})
            in_force.append(f"{row.key}: {_word(before)} -> {_word(value)}")
    restart = [
        row.key
        for row in SETTINGS
        if row.key not in needs_up
        and row.field not in RELOADABLE
        and _value(rest, row.field) != _value(running, row.field)
    ]
    kept = tuple(key for key in needs_up if key.replace("-", "_") not in RELOADABLE)
    return found, Reloaded(in_force=tuple(in_force), needs_restart=tuple(restart), needs_up=kept)


def differences(before: Sequence[Accelerator], after: Sequence[Accelerator]) -> tuple[str, ...]:
    """Returns the changes of the accelerators, one sentence each."""
    old, new = {each.name: each for each in before}, {each.name: each for each in after}
    changes = [f"accelerator {name}: new, {new[name].count} units" for name in new if name not in old]
    changes += [f"accelerator {name}: gone, its replicas drain" for name in old if name not in new]
    for name in new.keys() & old.keys():
        was, now = old[name], new[name]
        if was.count != now.count:
            changes.append(f"accelerator {name}: {was.count} -> {now.count} units")
        if was.price_per_hour != now.price_per_hour:
            changes.append(f"accelerator {name}: {was.price_per_hour:g} -> {now.price_per_hour:g} an hour")
        if replace(was, count=now.count, price_per_hour=now.price_per_hour) != now:
            changes.append(f"accelerator {name}: changed, for replicas to come")
    return tuple(sorted(changes))


def _value(settings: Settings, field: str) -> object:
    section, _, name = field.partition(".")
    return getattr(getattr(settings, section), name)


def _word(value: object) -> str:
    return "none" if value is None else str(value)


def renewed(running: Settings, read: Settings) -> tuple[Settings, tuple[str, ...]]:
    """Returns ``running`` with the settings that fresh workers take from ``read``, and the keys of all other changed
    ones.

    TLS is not switched on or off this way: old and new workers serve one port together for a while.
    """
    stays = {"gateway.tls_cert", "gateway.tls_key"}
    if (running.gateway.tls_cert is None) == (read.gateway.tls_cert is None):
        stays = set()
    needs_up = []
    found = running
    for row in SETTINGS:
        section, _, name = row.field.partition(".")
        value = getattr(getattr(read, section), name)
        if value == getattr(getattr(running, section), name):
            continue
        if row.field.startswith(RENEWABLE) and row.field not in stays:
            changed: Any = replace(getattr(found, section), **{name: value})
            found = replace(found, **{section: changed})
        else:
            needs_up.append(row.key)
    return found, tuple(needs_up)
