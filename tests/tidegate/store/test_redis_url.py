"""The URL of a Redis: its parts; a bad one is shown whole except for its password."""

from pathlib import Path

import pytest

from tidegate.errors import InvalidInputError
from tidegate.store.redis_link import RedisLink, read_url


def test_what_is_read() -> None:
    plain = read_url("redis://cache")
    assert (plain.host, plain.port, plain.database, plain.tls) == ("cache", 6379, 0, False)
    full = read_url("rediss://tide:p%40ss@[::1]:7000/3?ssl_ca_certs=/etc/ca.pem")
    assert (full.user, full.password, full.host, full.port, full.database) == ("tide", "p@ss", "::1", 7000, 3)
    assert full.authorities == "/etc/ca.pem"


def test_the_password_is_never_shown() -> None:
    assert str(read_url("redis://tide:secret@cache:7000/3")) == "redis://tide:***@cache:7000/3"


@pytest.mark.parametrize(
    "url",
    [
        "redis://:pa/SECRET@cache:6379/0",
        "redis://:SECRET/12@cache",
        "redis://SECRET:12#SECRET@cache/0",
        "redis://:12?SECRET@cache",
        "redis://cache?password=SECRET",
        "redis://cache:6379/SECRET",
        "redis://:SECRET@cache:SECRET",
    ],
)
def test_no_piece_of_a_password_is_shown_where_it_is_written_wrongly(url: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_url(url)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "places"),
    [
        ("http://cache", ["scheme"]),
        ("redis://", ["host"]),
        ("redis://cache:port/one?db=2", ["port", "database", "db"]),
        ("redis://cache:0", ["port"]),
        ("redis://cache:70000", ["port"]),
        ("redis://[::1", ["host"]),
        ("redis://cache?ssl_ca_certs=/a", ["ssl_ca_certs"]),
        ("redis://cache/0#x", ["fragment"]),
    ],
)
def test_every_fault_is_reported(url: str, places: list[str]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_url(url)
    assert [fault.where for fault in caught.value.faults] == places


def test_a_file_of_authorities_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    for name in ("absent.pem", "empty.pem"):
        with pytest.raises(InvalidInputError, match=f"ssl_ca_certs: got .*{name}"):
            RedisLink(f"rediss://cache?ssl_ca_certs={tmp_path / name}")
