"""The places of client connections."""

import pytest

from tidegate.aio.loop.places import Places, connection_limit


@pytest.mark.parametrize(
    ("wanted", "descriptors", "limit"),
    [
        (0, 1024, 512),
        (0, 20_000, 11_808),
        (0, 1 << 20, 100_000),
        (0, 64, 16),
        (0, -1, 100_000),
        (300, 1024, 300),
        (5000, 1024, 960),
    ],
)
def test_descriptors_are_kept_for_other_work(wanted: int, descriptors: int, limit: int) -> None:
    assert connection_limit(wanted, descriptors) == limit


def test_there_is_a_limit_in_all_and_one_for_each_client() -> None:
    places = Places(4, 2)
    assert [places.take(b"1.1.1.1") for _ in range(3)] == [True, True, False]
    assert places.take(b"2.2.2.2")
    assert not places.take(b"3.3.3.3", others=1), "tunnels count"
    assert places.take(None), "a trusted proxy stands for many clients"
    assert not places.take(b"3.3.3.3")
    assert (places.shed_by_client, places.shed_by_limit) == (1, 2)
    places.leave(b"1.1.1.1")
    assert places.take(b"1.1.1.1")
    places.leave(None)
    assert places.used == 3
