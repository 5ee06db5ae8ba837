"""A worker's configuration file, and the limits in it."""

import json

import pytest

from tidegate.aio.proxy.limits import LimitValue, read_limits
from tidegate.aio.proxy.server import Limits
from tidegate.errors import InvalidInputError
from tidegate.gateway.config import read_config

FILE = {"worker": "g12", "listen_fd": 3, "admin": "/run/g12.sock", "table_file": "/s/routes.json", "token": "t"}


def test_a_file_is_read_and_what_is_absent_has_defaults() -> None:
    config = read_config(json.dumps(FILE).encode(), "g12.json")
    assert (config.index, config.admin_address, config.domain) == (12, "unix:/run/g12.sock", "localhost")
    assert read_limits(config.limits, "limits") == Limits()
    assert read_config(json.dumps(FILE | {"admin": "unix:/a", "worker": "g"}).encode(), "g").admin_address == "unix:/a"


def test_limits_are_named_as_in_the_settings() -> None:
    limits: dict[str, LimitValue] = {"head_bytes": 4096, "idle_timeout_s": 5, "trusted_proxies": ["10.0.0.0/8"]}
    chosen = read_limits(limits, "limits")
    assert (chosen.head_bytes, chosen.idle_timeout_s, chosen.trusted_proxies) == (4096, 5.0, ("10.0.0.0/8",))


def test_every_wrong_limit_is_reported() -> None:
    wrong = {"limits": {"head-bytes": 1, "headers": 0, "idle_timeout_s": "5", "body_bytes": 1.5}}
    with pytest.raises(InvalidInputError) as caught:
        read_config(json.dumps(FILE | wrong).encode(), "g0.json")
    assert [fault.where for fault in caught.value.faults] == [f"limits.{name}" for name in wrong["limits"]]


def test_a_file_that_is_none_is_reported() -> None:
    with pytest.raises(InvalidInputError, match=r"g0\.json"):
        read_config(b'{"worker": "g0"}', "g0.json")
