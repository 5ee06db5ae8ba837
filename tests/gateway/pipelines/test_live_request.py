"""The answers that a request keeps for its stages, and the collection of one, within the budget of bodies."""

from typing import cast

from tests.support.worlds.fake_exchange import FakeExchange, request
from tidegate.aio.proxy.exchange import BodyBudget
from tidegate.gateway.pipelines.bodies import StageBody
from tidegate.gateway.pipelines.graph import Graph
from tidegate.gateway.pipelines.live_request import LiveRequest, LiveStage, StageAnswer
from tidegate.records.pipeline import PipelineRoute, Stage


class Events:
    """Notes what the request and its stages report."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def stage_ended(self, stage: LiveStage) -> None:
        self.log.append(f"ended {stage.stage_name}")

    def stage_broke(self, stage: LiveStage) -> None:
        self.log.append(f"broke {stage.stage_name}")

    def leave(self, live: LiveRequest) -> None:
        self.log.append("leave")


def live_request(*stages: Stage, events: Events | None = None) -> LiveRequest:
    head = request("POST /v2/models/p/infer HTTP/1.1\r\nHost: h\r\nContent-Type: text/a\r\nContent-Length: 2\r\n\r\n")
    exchange = FakeExchange(None, head, b"{}", complete=True, now=0.0)
    graph = Graph(PipelineRoute(stages=stages or (Stage(function="a"), Stage(function="b")), body_bytes=10))
    live = LiveRequest((events or Events()).leave, exchange, graph, 1, None, 300.0)
    live.head = head
    live.body = live.first = StageBody(b"{}")
    return live


def answer(data: bytes, block: bytes = b"") -> StageAnswer:
    return StageAnswer(200, block, StageBody(data))


def budget(live: LiveRequest) -> BodyBudget:
    return cast(FakeExchange, live.exchange).budget


def test_an_answer_is_collected_piece_by_piece_within_the_budget() -> None:
    events = Events()
    live = live_request(events=events)
    stage = LiveStage(events, live, 0)
    stage.body(b"abc")
    stage.body(b"")
    stage.body(memoryview(b"de"))
    assert budget(live).used == 5
    stage.ended()
    assert events.log == ["ended a"]
    assert stage.collected() == b"abcde" and budget(live).used == 0
    assert stage.collected() == b"" and budget(live).used == 0


def test_an_answer_beyond_a_limit_is_dropped_at_once() -> None:
    live = live_request()
    large, crowded, late = (LiveStage(Events(), live, 0) for _ in range(3))
    large.body(b"x" * 11)
    large.body(b"y")
    assert large.too_large and not large.crowded and large.collected() == b"" and budget(live).used == 0
    budget(live).limit = 4
    crowded.body(b"12345")
    assert crowded.crowded and not crowded.too_large and budget(live).used == 0
    live.is_over = True
    late.body(b"1")
    assert late.collected() == b"" and budget(live).used == 0


def test_an_answer_is_kept_until_the_stages_that_need_it_have_begun() -> None:
    live = live_request()
    live.keep(0, answer(b"12345"))
    live.drop_used()
    assert (live.kept, budget(live).used) == (5, 5), "b has not begun"
    live.running[1] = LiveStage(Events(), live, 1)
    live.drop_used()
    assert (live.answers, live.kept, budget(live).used) == ({0: None}, 0, 0)
    assert live.body is None, "a has had it"
    del live.running[1]
    live.keep(1, answer(b"123"))
    live.drop_used()
    assert live.ends() == {1: answer(b"123")} and budget(live).used == 3, "the last one is for the client"
    live.drop_all()
    live.drop_all()
    assert (live.kept, budget(live).used) == (0, 0)


def test_the_client_gets_the_answer_after_which_nothing_ran() -> None:
    live = live_request()
    live.keep(0, answer(b"1"))
    live.skipped.add(1)
    live.drop_used()
    assert live.ends() == {0: answer(b"1")}


def test_a_client_that_leaves_ends_the_request_from_any_stage() -> None:
    events = Events()
    live = live_request(events=events)
    live.leaves()
    stage = LiveStage(events, live, 1)
    stage.leaves()
    stage.broke_off()
    assert events.log == ["leave", "leave", "broke b"]
