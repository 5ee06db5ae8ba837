"""Which settings a hot restart of the gateway workers puts into force. Pure."""

from dataclasses import replace
from typing import Any, Final

from tidegate.settings import SETTINGS, Settings

RENEWABLE: Final = ("gateway.trusted_proxies", "gateway.tls_cert", "gateway.tls_key", "limits.", "log.access_sampling")
"""What only workers act on. The rest belongs to the control process, or to all processes together."""


def renewed(running: Settings, read: Settings) -> tuple[Settings, tuple[str, ...]]:
    """``running`` with what fresh workers take over from ``read``, and the keys of all else that differs.

    TLS is not switched on or off this way: old and new workers serve one port together for a while.
    """
    stays = {"gateway.tls_cert", "gateway.tls_key"}
    if (running.gateway.tls_cert is None) == (read.gateway.tls_cert is None):
        stays = set()
    needs_up = []
    found = running
    for row in SETTINGS:
        section, _, name = row.lands.partition(".")
        value = getattr(getattr(read, section), name)
        if value == getattr(getattr(running, section), name):
            continue
        if row.lands.startswith(RENEWABLE) and row.lands not in stays:
            changed: Any = replace(getattr(found, section), **{name: value})
            found = replace(found, **{section: changed})
        else:
            needs_up.append(row.key)
    return found, tuple(needs_up)
