"""Lists and watches through every error: what is reported, what is asked again, and how soon."""

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any

from tidegate.deploy.kubernetes.process.api import (
    GONE,
    OPENED,
    PRESENT,
    SYNCED,
    ClusterError,
    ExpiredError,
    KubernetesApi,
    Object,
    RefusedError,
)
from tidegate.deploy.kubernetes.process.following import keep_following
from tidegate.deploy.kubernetes.process.retries import Retries


class EndOfScriptError(BaseException):
    """Ends a follower, which ends for nothing else."""


def thing(name: str, version: int = 1) -> Object:
    return {"metadata": {"uid": f"uid-{name}", "name": name, "resourceVersion": str(version)}}


class ScriptedApi(KubernetesApi):
    """Answers lists and watches in turn. An exception is raised where it stands."""

    def __init__(self, lists: Sequence[Any], watches: Sequence[Sequence[Any]]) -> None:
        self.pauses: list[float] = []
        self.clock = 0.0
        super().__init__(None, "here", random.Random(1), now=lambda: self.clock, sleep=self.pause)
        self._lists = list(lists)
        self._watches = list(watches)
        self.asked: list[str] = []

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def get(self, path: str, **query: str) -> Object:
        self.asked.append("list")
        if not self._lists:
            raise EndOfScriptError
        found = self._lists.pop(0)
        if isinstance(found, BaseException):
            raise found
        return {"metadata": {"resourceVersion": "10"}, "items": found} if isinstance(found, list) else found

    async def _watch(self, path: str, selector: str, version: str) -> AsyncGenerator[tuple[str, Object], None]:
        self.asked.append(f"watch {version}")
        for each in self._watches.pop(0) if self._watches else [ExpiredError(410, "", "the script ends")]:
            if isinstance(each, BaseException):
                raise each
            if isinstance(each, float):
                self.clock += each
            else:
                yield each


def followed(api: ScriptedApi) -> tuple[list[tuple[str, str]], list[str | None]]:
    """Events by name, and the troubles, until the script ends."""
    events: list[tuple[str, str]] = []
    troubles: list[str | None] = []

    async def run() -> None:
        async for kind, each in api.follow("/things", "", trouble=troubles.append):
            events.append((kind, each.get("metadata", {}).get("name", "")))

    with suppress(EndOfScriptError):
        asyncio.run(run())
    return events, troubles


def test_a_watch_that_ends_goes_on_after_its_last_change_without_a_list() -> None:
    watches: list[list[Any]] = [
        [(OPENED, {}), ("ADDED", thing("b", 11)), ("BOOKMARK", thing("", 12)), 240.0],
        [ExpiredError(410, "", "")],
    ]
    api = ScriptedApi([[thing("a")]], watches)
    events, _ = followed(api)
    assert api.asked == ["list", "watch 10", "watch 12", "list"]
    assert events == [(PRESENT, "a"), (SYNCED, ""), (PRESENT, "b")]


def test_what_is_gone_between_two_lists_is_reported() -> None:
    api = ScriptedApi([[thing("a"), thing("b")], [thing("b")]], [[ClusterError("broken")], [ClusterError("broken")]])
    events, _ = followed(api)
    assert (GONE, "a") in events[3:]
    assert (GONE, "b") not in events


def test_lists_that_succeed_do_not_shorten_the_pauses_of_watches_that_fail() -> None:
    """A server that answers lists and refuses watches is asked less and less often."""
    failing: list[BaseException] = [RefusedError(500, "", "no watch"), ExpiredError(410, "", ""), ClusterError("cut")]
    for error in failing:
        api = ScriptedApi([[]] * 12, [((OPENED, {}), error)] * 12)
        followed(api)
        assert len(api.pauses) == 12
        assert api.pauses[6] > 10 * api.pauses[0], f"{error!r}: {api.pauses}"
        assert max(api.pauses) < 14.0


def test_a_watch_that_ends_at_once_again_and_again_is_opened_less_and_less_often() -> None:
    api = ScriptedApi([[]], [[(OPENED, {})] for _ in range(10)] + [[ExpiredError(410, "", "")]])
    followed(api)
    assert api.pauses[6] > 10 * api.pauses[0]


def test_a_watch_that_has_held_ends_a_row_of_pauses() -> None:
    short = [[(OPENED, {}), ClusterError("cut")] for _ in range(6)]
    api = ScriptedApi([[] for _ in range(8)], [*short, [(OPENED, {}), 60.0, ClusterError("cut")]])
    followed(api)
    assert api.pauses[5] > 1.0
    assert api.pauses[6] < 0.2, "the seventh watch held for a minute"


def test_an_answer_that_cannot_be_read_is_trouble_and_no_end() -> None:
    api = ScriptedApi([{"kind": "Status"}, [thing("a")]], [])
    events, troubles = followed(api)
    assert (PRESENT, "a") in events
    assert any("cannot be read" in (each or "") for each in troubles)


def test_trouble_is_reported_and_taken_back() -> None:
    api = ScriptedApi([ClusterError("away"), []], [[(OPENED, {}), 60.0, ExpiredError(410, "", "")]])
    _, troubles = followed(api)
    assert troubles == ["away", None]


def test_pauses_vary_and_are_bounded() -> None:
    both = [[retries.next_s() for _ in range(20)] for retries in (Retries(random.Random(1)), Retries(random.Random(2)))]
    assert both[0] != both[1]
    assert all(7.0 <= each <= 13.0 for each in both[0][10:])


def test_an_event_that_is_not_coped_with_comes_again_and_holds_up_no_other() -> None:
    """An unexpected error in what is done with one object ends nothing: it is said, and tried again after a pause."""
    api = ScriptedApi(
        [[thing("bad"), thing("good")] for _ in range(3)],
        [[(OPENED, {}), ("MODIFIED", thing("good", 11)), 60.0, ExpiredError(410, "", "")]],
    )
    handled: list[str] = []
    notes: list[tuple[str, str | None]] = []
    fails = [KeyError("status"), ValueError("a figure")]

    async def handle(kind: str, each: Object) -> None:
        name = each.get("metadata", {}).get("name", kind)
        handled.append(name)
        if name == "bad" and fails:
            raise fails.pop()

    async def run() -> None:
        subject = "Pods"
        await keep_following(api, "/things", "", handle, subject, lambda *note: notes.append(note))

    with suppress(EndOfScriptError):
        asyncio.run(run())
    assert handled == ["bad", "good", SYNCED] * 3 + ["good"]
    assert ("Pods: handling", "bad: ValueError: a figure") in notes
    assert notes[-2:] == [("Pods: handling", None), ("Pods", None)]
    assert len(api.pauses) == 3


def test_a_deletion_that_is_not_coped_with_comes_again() -> None:
    api = ScriptedApi([[thing("a")], []], [[(OPENED, {}), ("DELETED", thing("a", 11))]])
    handled: list[tuple[str, str]] = []
    fails = [RuntimeError("once")]

    async def handle(kind: str, each: Object) -> None:
        handled.append((kind, each.get("metadata", {}).get("name", "")))
        if kind == GONE and fails:
            raise fails.pop()

    with suppress(EndOfScriptError):
        asyncio.run(keep_following(api, "/things", "", handle, "Pods", lambda *_: None))
    assert handled.count((GONE, "a")) == 2
