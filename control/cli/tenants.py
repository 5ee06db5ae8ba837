"""``tidegate tenants``: tenants and their usage; ``tidegate tenant-key``: a new API key."""

import secrets
from typing import TYPE_CHECKING

import typer

from tidegate.control.cli.cluster.elsewhere import in_control_process
from tidegate.control.cli.common import JsonOption, StateOption, connect, console, guarded, print_json, say

if TYPE_CHECKING:
    from rich.table import Table

    from tidegate.control.views.deployment import TenantView

KEY_BYTES = 32
"""Bytes of randomness in a key: too many to find the key from its SHA-256."""


def tenants(state: StateOption = None, json: JsonOption = False) -> None:
    """Show the tenants: weight, priority, quotas, and what they have used since the control process started."""
    with connect(state) as tidegate:
        views = tidegate.tenants()
    if json:
        print_json(views)
    elif views:
        console().print(table(views))
    else:
        say("no tenants are configured: set [tenants] file in tidegate.toml, or use --tenants-file")


def tenant_key(json: JsonOption = False) -> None:
    """Make an API key: the key on standard output, its SHA-256 for the tenants' file on standard error. Neither is
    kept."""
    from tidegate.records.tenants import digest

    key = f"tg-{secrets.token_urlsafe(KEY_BYTES)}"
    known = f"sha256:{digest(key.encode())}"
    if json:
        print_json({"key": key, "sha256": known})
    else:
        say("the key for the caller is on standard output; for `keys` in the tenants' file:")
        say(f"  {known}")
        print(key)


def register(app: typer.Typer) -> None:
    app.command("tenants")(guarded(in_control_process(tenants)))
    app.command("tenant-key")(guarded(tenant_key))


def table(views: "tuple[TenantView, ...]") -> "Table":
    from rich.table import Table

    found = Table(box=None, pad_edge=False)
    for column in ("TENANT", "KEYS", "WEIGHT", "PRIORITY", "REQUESTS", "INFERENCES", "TOKENS", "REFUSED", "QUOTAS"):
        found.add_column(column, no_wrap=column != "QUOTAS")
    for view in views:
        figures = (view.requests, view.inferences, view.tokens, view.refused)
        found.add_row(
            view.name,
            str(view.keys),
            f"{view.weight:g}",
            "-" if view.priority is None else str(view.priority),
            *(f"{figure:,}" for figure in figures),
            ", ".join(f"{name} {amount:,}" for name, amount in view.quotas.items()) or "none",
        )
    return found
