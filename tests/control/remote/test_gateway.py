"""Where others reach a remote gateway. ``tests/live/test_remote_gateways.py`` has the rest."""

import pytest

from tidegate.control.remote.gateway import reached


@pytest.mark.parametrize(
    ("address", "host", "wanted"),
    [
        ("0.0.0.0:8080", "10.0.0.7", "10.0.0.7:8080"),
        ("[::]:8080", "fd00::7", "[fd00::7]:8080"),
        ("127.0.0.1:8080", "10.0.0.7", "127.0.0.1:8080"),
        ("edge1:8080", "10.0.0.7", "edge1:8080"),
    ],
)
def test_every_address_of_a_machine_is_reached_at_its_host(address: str, host: str, wanted: str) -> None:
    assert reached(address, host) == wanted
