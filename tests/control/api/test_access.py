"""The names by which the control API may be addressed."""

import pytest

from tidegate.control.api.access import host_name


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost", "localhost"),
        ("127.0.0.1:8081", "127.0.0.1"),
        ("[::1]:8081", "[::1]"),
        ("[::1].evil.example", None),
        ("[::1", None),
        ("localhost:80.evil.example", None),
        ("localhost:", None),
        ("localhost:80@evil.example", None),
        ("evil@localhost", None),
        ("", None),
    ],
)
def test_a_host_is_a_name_with_perhaps_a_port_and_nothing_else(host: str, name: str | None) -> None:
    assert host_name(host) == name
