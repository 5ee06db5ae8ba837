"""Which recorded worker may go on, and when its settings are others than those of today."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from tidegate.control.state.directory import StateDirectory
from tidegate.control.state.notices import Faults
from tidegate.control.workers.launching import GatewaySettings, Launcher
from tidegate.control.workers.seats import ADDRESS, SCHEME
from tidegate.deploy.local.processes import ProcessTable
from tidegate.deploy.local.records import ProcessRecord

SETTINGS = GatewaySettings(listen="127.0.0.1:8080", workers=2, domain="localhost", limits={})


class Recorded:
    """A process record of which only the details are read."""

    def __init__(self, **details: str) -> None:
        self.details = details


def launcher(folder: Path, settings: GatewaySettings = SETTINGS) -> Launcher:
    return Launcher(
        state=StateDirectory(folder),
        processes=cast(ProcessTable, None),
        settings=settings,
        environment={},
        faults=Faults(),
    )


@pytest.mark.parametrize(
    ("listen", "address", "scheme", "fits"),
    [
        ("127.0.0.1:8080", "127.0.0.1:8080", "http", True),
        ("127.0.0.1:8080", "127.0.0.1:8081", "http", False),
        ("127.0.0.1:0", "127.0.0.1:8081", "http", True),
        ("127.0.0.1:0", "127.0.0.2:8081", "http", False),
        ("127.0.0.1:8080", "127.0.0.1:8080", "https", False),
        ("127.0.0.1:8080", "nonsense", "http", False),
    ],
)
def test_a_worker_goes_on_if_its_address_and_scheme_are_those_of_the_settings(
    listen: str, address: str, scheme: str, fits: bool, tmp_path: Path
) -> None:
    recorded = cast(ProcessRecord, Recorded(**{ADDRESS: address, SCHEME: scheme}))
    assert launcher(tmp_path, replace(SETTINGS, listen=listen)).fits(recorded) is fits


def test_the_fingerprint_changes_with_what_a_worker_is_started_with_and_with_nothing_else(tmp_path: Path) -> None:
    one = launcher(tmp_path)
    before = one.fingerprint()
    assert launcher(tmp_path).fingerprint() == before
    one.address = "127.0.0.1:9999"
    assert one.fingerprint() == before
    one.settings = replace(SETTINGS, access_sampling=0.5)
    assert one.fingerprint() != before
