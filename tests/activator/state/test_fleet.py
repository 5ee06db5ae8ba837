"""A health question about a revision: the room opens the channels to its replicas and starts none."""

from tests.support.worlds.routes import table
from tests.support.worlds.waiting_room import F, Lobby


def test_who_watches_opens_the_channels_once_and_asks_for_nothing() -> None:
    one = Lobby(table([("a", "cpu")]))
    one.room.open_channels(F, 1.0)
    assert one.did(1.0) == ["link a"]
    one.room.open_channels(F, 2.0)
    assert one.did(2.0) == []
    assert one.ready("a", 1) == []
    assert one.room.ready_replicas(F) == 1


def test_an_unknown_or_sleeping_revision_stays_as_it_is() -> None:
    one = Lobby(table([]))
    one.room.open_channels(F, 1.0)
    one.room.open_channels("unknown-00001", 1.0)
    assert one.did(1.0) == []
