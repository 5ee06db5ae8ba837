"""Where Prometheus finds this deployment: a file for its ``file_sd_configs``, which it reads again when it changes.

The file stays when the deployment ends, so that Prometheus notices its end as a target that is down.
"""

import asyncio
import json
from pathlib import Path
from typing import Final

from tidegate.control.state.directory import write_atomically
from tidegate.control.state.notices import Faults

SUBJECT: Final = "Prometheus targets"
RETRY_S: Final = 1.0
EVERY_HOST: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "[::]": "[::1]"}


def targets(api: str, deployment: str) -> list[dict[str, object]]:
    """Returns the content of the file. ``api``: ``http://HOST:PORT``; ``deployment``: the label that distinguishes
    this one from others of one Prometheus."""
    host, _, port = api.partition("://")[2].rpartition(":")
    return [{"targets": [f"{EVERY_HOST.get(host, host)}:{port}"], "labels": {"deployment": deployment}}]


async def write_targets(path: Path, api: str, deployment: str, faults: Faults) -> None:
    """Writes the file. One that cannot be written is a fault, and is tried again each second until it is."""
    while True:
        try:
            write_atomically(path, json.dumps(targets(api, deployment), indent=1).encode() + b"\n")
        except OSError as error:
            faults.set(SUBJECT, f"{path}: {error.strerror}")
        else:
            faults.clear(SUBJECT)
            return
        await asyncio.sleep(RETRY_S)
