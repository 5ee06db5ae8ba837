"""Pipelines through real processes: stages in sequence, one SLA and deadline, failures, cold starts, canaries."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.live.deployment import Deployment, deployment, places

pytestmark = [pytest.mark.live, pytest.mark.early(100), pytest.mark.timeout(180)]

STAGE = """\
import time

class Stage:
    arrays = "plain"
    inputs = {{"x": ("FP32", [-1, 2])}}
    outputs = {{"{output}": ("FP32", [-1, 2])}}
    concurrency = 1

    def load(self):
        time.sleep({load_s})

    def predict(self, inputs):
        time.sleep({work_s})
        return {{"{output}": [[{factor} * value + {added} for value in row] for row in inputs["x"]]}}
"""
JOIN = """\
class Stage:
    arrays = "plain"
    inputs = {{"x": ("FP32", [-1, 2]), "given": ("FP32", [-1, 2])}}
    outputs = {{"{output}": ("FP32", [-1, 2])}}

    def predict(self, inputs):
        rows = zip(inputs["x"], inputs["given"])
        return {{"{output}": [[a + b for a, b in zip(*both)] for both in rows]}}
"""
GAP_MS = 20.0
"""What a busy machine may take beyond the 2 ms that stand between the breakdown and what the client saw."""
REQUEST: dict[str, Any] = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]}]}
FUNCTION = """\
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata:
  name: {name}
  annotations:
    tidegate.dev/initial-scale: "{scale}"
    tidegate.dev/max-scale: "2"
{more}spec:
  server: {{handler: "{name}.py:Stage"}}
  concurrency: 1
"""
PIPELINE = """\
apiVersion: tidegate.dev/v1alpha1
kind: Pipeline
metadata:
  name: {name}
  annotations: {annotations}
spec:
  stages:
{stages}"""


class Pipelines:
    """Writes manifests and deploys them."""

    def __init__(self, place: Deployment, folder: Path) -> None:
        self.place = place
        self.folder = folder

    def stage(
        self,
        name: str,
        *,
        factor: float = 1.0,
        added: float = 0.0,
        output: str = "x",
        work_s: float = 0.0,
        load_s: float = 0.0,
        scale: int = 1,
        more: str = "",
        code: str = STAGE,
    ) -> str:
        text = code.format(factor=factor, added=added, output=output, work_s=work_s, load_s=load_s)
        (self.folder / f"{name}.py").write_text(text)
        return FUNCTION.format(name=name, scale=scale, more=more)

    def pipeline(self, name: str, *stages: str, annotations: str = "{}") -> str:
        lines = "".join(f"    - {stage}\n" for stage in stages)
        return PIPELINE.format(name=name, stages=lines, annotations=annotations)

    def deploy(self, *documents: str, code: int = 0) -> Any:
        file = self.folder / "manifest.yaml"
        file.write_text("---\n".join(documents))
        return self.place.cli("deploy", str(file), "--no-wait", "--replace", code=code)

    def ask(
        self, name: str, body: Any = None, timeout: float = 30.0, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        url = f"{self.place.gateway}/v2/models/{name}/infer"
        return httpx.post(
            url, json=REQUEST if body is None else body, headers=headers, timeout=timeout, trust_env=False, verify=False
        )

    def until_ready(self, *names: str) -> None:
        def ready() -> bool:
            return all(self.place.status(name)["ready"] >= 1 for name in names)

        self.place.until(ready, 60.0, f"{names} to be ready")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipelines]:
    folder = tmp_path_factory.mktemp("pipelines")
    with deployment(folder, "--gateway-workers", "2", *places(folder, 32)) as place:
        place.up()
        yield Pipelines(place, folder)


def timing(answer: httpx.Response) -> dict[str, float]:
    entries = (entry.strip().partition(";dur=") for entry in answer.headers["server-timing"].split(","))
    return {name: float(value) for name, _, value in entries}


def test_stages_answer_in_their_order_and_the_breakdown_sums_to_the_whole(world: Pipelines) -> None:
    world.deploy(
        world.stage("double", factor=2.0, output="doubled", work_s=0.05),
        world.stage("plus", added=1.0, work_s=0.1),
        world.pipeline(
            "both",
            "function: double",
            "{function: plus, inputs: {x: doubled}}",
            annotations="{tidegate.dev/latency: 5s}",
        ),
    )
    world.until_ready("both")
    assert world.ask("both").status_code == 200
    with httpx.Client(trust_env=False, verify=False, timeout=30.0) as client:
        url = f"{world.place.gateway}/v2/models/both/infer"
        client.post(url, json=REQUEST)
        answers = []
        for _ in range(5):
            began = time.monotonic()
            answer = client.post(url, json={**REQUEST, "id": "mine", "outputs": [{"name": "x"}]})
            answers.append((1e3 * (time.monotonic() - began), answer))
    # The one that the machine delayed least between the client and the gateway.
    took_ms, answer = min(answers, key=lambda each: each[0] - timing(each[1])["total"])
    assert answer.status_code == 200, answer.text
    assert answer.json()["id"] == "mine"
    assert answer.json()["outputs"][0]["data"] == [3.0, 5.0], "doubled, then one more"
    found = timing(answer)
    assert found["double"] >= 50 and found["plus"] >= 100
    assert found["double"] + found["plus"] <= found["total"] <= took_ms
    parts_ms = sum(found[name] for name in ("entry", "double", "plus", "answer"))
    assert parts_ms == pytest.approx(found["total"], abs=0.01), "no time is lost between two stages"
    assert took_ms - parts_ms < 2.0 + GAP_MS, "it is what the client saw, but for its connection"
    assert {"double-wait", "double-model", "plus-wait", "plus-model"} <= found.keys()
    by_path = httpx.post(
        f"{world.place.gateway}/functions/both/", json=REQUEST, timeout=30.0, trust_env=False, verify=False
    )
    assert by_path.json()["outputs"][0]["data"] == [3.0, 5.0]

    view = world.place.status("both")
    assert view["stages"] == ["double", "plus"] and view["state"] == "ready"
    words = world.place.cli("explain", "both").stdout
    assert "A pipeline of 2 stages: double, plus." in words and "stage 2, plus: ready" in words
    assert "kind: Pipeline" in world.place.cli("get", "both", "-o", "yaml").stdout
    with world.place.sdk() as tidegate:
        metrics = tidegate.metrics()
    assert "tidegate_gateway_stage_latency_seconds_count{" in metrics and 'stage="plus"' in metrics


def test_what_cannot_work_is_refused_with_every_fault(world: Pipelines) -> None:
    wrong = world.pipeline("wrong", "function: absent", "function: wrong", annotations='{tidegate.dev/max-scale: "3"}')
    text = world.deploy(wrong, code=2).stderr
    assert "max-scale" in text and "stages[1].function" in text
    absent = world.deploy(world.pipeline("wrong", "function: absent"), code=2).stderr
    assert "stages[0].function" in absent and "a function that is deployed" in absent
    refused = world.place.cli("delete", "double", code=1).stderr
    assert "double is a stage of both: delete the pipeline first" in refused
    got = httpx.get(f"{world.place.gateway}/functions/both/", timeout=20.0, trust_env=False, verify=False)
    assert got.status_code == 400 and "takes POST" in got.text


def test_an_error_says_which_stage_and_later_stages_do_not_run(world: Pipelines) -> None:
    answer = world.ask("both", {"inputs": []})
    assert answer.status_code == 400 and answer.headers["tidegate-stage"] == "double"
    world.deploy(world.pipeline("misfit", "function: double", "{function: plus, inputs: {x: absent}}"))
    answer = world.ask("misfit")
    assert answer.status_code == 502 and answer.headers["tidegate-stage"] == "double"
    assert answer.json()["code"] == "stage_failed" and "no output 'absent'; it has doubled" in answer.json()["error"]
    assert answer.json()["executed"] == "true"
    world.place.cli("delete", "misfit")


def test_from_zero_all_stages_start_at_once(world: Pipelines) -> None:
    load_s = 4.0
    names = ("cold1", "cold2", "cold3")
    stages = [world.stage(name, factor=2.0, load_s=load_s, scale=0) for name in names]
    world.deploy(*stages, world.pipeline("cold", *(f"function: {name}" for name in names)))
    began = time.monotonic()
    answer = world.ask("cold", timeout=120.0)
    took_s = time.monotonic() - began
    assert answer.status_code == 200 and answer.json()["outputs"][0]["data"] == [8.0, 16.0]
    found = timing(answer)
    assert found["cold1"] > 1e3 * load_s, "its start was waited for"
    assert found["cold2"] + found["cold3"] < 1e3 * load_s, f"they had started meanwhile: {found}, {took_s:.1f} s"


def test_a_deadline_and_a_client_that_leaves_end_the_stage_that_has_the_request(world: Pipelines) -> None:
    is_over = world.folder / "over"
    waits = f"import os\n{STAGE}".replace(
        "time.sleep({work_s})", f"while not os.path.exists('{is_over}'): time.sleep(0.01)"
    )
    is_over.touch()  # A server computes once before it is ready.
    world.deploy(
        world.stage("quick"),
        world.stage("slow", code=waits),
        world.pipeline("long", "function: quick", "function: slow"),
    )
    world.until_ready("long")
    is_over.unlink()
    late = world.ask("long", headers={"tidegate-timeout-ms": "700"})
    assert late.status_code == 504 and late.json()["executed"] == "true", late.text

    host, _, port = world.place.gateway.removeprefix("http://").partition(":")
    body = json.dumps(REQUEST).encode()
    head = b"POST /v2/models/long/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)

    def in_flight() -> int:
        replicas = [each for revision in world.place.status("slow")["revisions"] for each in revision["replicas"]]
        return sum((each["in_flight"] or 0) - each["held"] for each in replicas)

    is_over.touch()
    world.place.until(lambda: in_flight() == 0, 30.0, "the late one to have ended")
    is_over.unlink()
    before = world.place.status("slow")["traffic"]["cancelled"]
    with socket.create_connection((host, int(port))) as client:
        client.sendall(head + body)
        world.place.until(lambda: in_flight() == 1, 30.0, "the request to run in stage two")
    world.place.until(lambda: world.place.status("slow")["traffic"]["cancelled"] > before, 30.0, "it to be withdrawn")
    is_over.touch()
    world.place.until(lambda: in_flight() == 0, 30.0, "its slot to be free")


def test_a_request_is_dropped_by_the_age_of_the_whole(world: Pipelines) -> None:
    world.deploy(
        world.stage("first", work_s=0.4),
        world.stage("second", work_s=1.0),
        world.pipeline(
            "drops",
            "function: first",
            "function: second",
            annotations='{tidegate.dev/latency: 1s, tidegate.dev/drop-after: "2"}',
        ),
    )
    world.until_ready("drops")
    found: list[httpx.Response] = []
    threads = [threading.Thread(target=lambda: found.append(world.ask("drops", timeout=60.0))) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {each.status_code for each in found} == {200, 503}
    dropped = [each for each in found if each.status_code == 503]
    assert {each.json()["code"] for each in dropped} == {"dropped"}
    assert all("2 s after its arrival" in each.json()["error"] for each in dropped)
    assert "second" in {each.headers["tidegate-stage"] for each in dropped}, "it counts what it spent in stage one"


def test_a_stage_killed_amid_load_loses_nothing_and_a_canary_of_a_stage_takes_over(world: Pipelines) -> None:
    idempotent = '    tidegate.dev/idempotent: "true"\n    tidegate.dev/min-scale: "2"\n'
    stages = [
        world.stage("a", factor=2.0, work_s=0.02, scale=2, more=idempotent),
        world.stage("b", added=1.0, work_s=0.02, scale=2, more=idempotent),
    ]
    world.deploy(*stages, world.pipeline("under", "function: a", "function: b"))
    world.place.until(lambda: world.place.status("b")["ready"] == 2, 60.0, "both replicas of b")
    found: list[httpx.Response] = []
    is_over = threading.Event()

    def load() -> None:
        while not is_over.is_set():
            found.append(world.ask("under", timeout=60.0))

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        world.place.until(lambda: len(found) > 30, 60.0, "the load to flow")
        replica = world.place.status("b")["revisions"][0]["replicas"][0]
        for pid in replica["pids"]:
            os.kill(pid, signal.SIGKILL)
        count = len(found)
        world.place.until(lambda: len(found) > count + 60, 60.0, "the load to go on")
        changed = idempotent + '    tidegate.dev/canary-steps: "50"\n    tidegate.dev/canary-window: 2s\n'
        world.deploy(world.stage("b", added=3.0, work_s=0.02, scale=2, more=changed))
        world.place.until(lambda: found[-1].json()["outputs"][0]["data"] == [5.0, 7.0], 90.0, "the canary to answer")
        world.place.until(
            lambda: all(each.json()["outputs"][0]["data"] == [5.0, 7.0] for each in found[-20:]),
            90.0,
            "it to serve all",
        )
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert {each.status_code for each in found} == {200}, [each.text for each in found if each.status_code != 200][:3]
    answers = {tuple(each.json()["outputs"][0]["data"]) for each in found}
    assert answers == {(3.0, 5.0), (5.0, 7.0)}


def test_one_sla_is_divided_by_what_the_stages_take_and_says_how(world: Pipelines) -> None:
    """A slow stage and a quick one: budgets even at first, then by the measured times; the quick one becomes slow.

    They differ by more than a busy machine adds to one request, whose time counts for a minute.
    """
    world.deploy(
        world.stage("slow", output="x", work_s=0.4),
        world.stage("quick", work_s=0.01),
        world.pipeline("whole", "function: slow", "function: quick", annotations="{tidegate.dev/latency: 6s}"),
    )
    world.until_ready("whole")
    view = world.place.status("whole")
    assert [each["budget_s"] for each in view["budgets"]] == pytest.approx([3.0, 3.0])
    assert "an even part, until all stages have been measured" in world.place.cli("explain", "whole").stdout
    for _ in range(10):
        assert (answer := world.ask("whole")).status_code == 200, answer.text

    def divided() -> bool:
        world.ask("whole")
        slow, _ = world.place.status("whole")["budgets"]
        return bool(not slow["is_even"] and slow["budget_s"] > 3.6)

    world.place.until(divided, 60.0, "the budgets to follow the measured times")
    slow, quick = world.place.status("whole")["budgets"]
    assert slow["budget_s"] + quick["budget_s"] == pytest.approx(6.0)
    words = world.place.cli("explain", "whole").stdout
    assert "Its SLA is 6000 ms for 98% of the requests, all stages together; kept in the last" in words
    assert "a request takes" in words and "alone, the rest is for waiting" in words
    assert "SLA kept in the last" in world.place.cli("status", "whole").stdout
    assert "a stage of whole, which scales it: its budget is" in world.place.cli("explain", "slow").stdout
    decisions = world.place.cli("explain", "slow", "--json").stdout
    assert json.loads(decisions)["decisions"][-1]["policy"] == "tide"

    (world.folder / "quick.py").write_text(STAGE.format(factor=1.0, added=0.0, output="x", work_s=0.8, load_s=0.0))
    world.place.cli("deploy", str(world.folder / "manifest.yaml"), "--no-wait", "--replace")

    def rebalanced() -> bool:
        world.ask("whole")
        return bool(world.place.status("whole")["budgets"][1]["budget_s"] > 3.0)

    world.place.until(rebalanced, 90.0, "the budgets to follow the stage that became slow")


def test_a_graph_branches_joins_and_ends_what_is_beside_a_stage_that_fails(world: Pipelines) -> None:
    world.deploy(
        world.stage("head", output="x"),
        world.stage("small", factor=10.0, output="small", work_s=0.3),
        world.stage("large", factor=100.0, output="large", work_s=0.3),
        world.stage("tail", output="y", code=JOIN),
        world.pipeline(
            "forked",
            "function: head",
            "{function: small, after: head, when: {field: x, below: 5}}",
            "{function: large, after: head, when: {field: x, above: 1.5}}",
            "{function: tail, after: [small, large], inputs: {x: small.small, given: request.x}}",
        ),
    )
    world.until_ready("head", "small", "large")

    def asked(value: float) -> httpx.Response:
        return world.ask("forked", {"inputs": [{**REQUEST["inputs"][0], "data": [value, value]}]})

    below, both = asked(1.0), asked(2.0)
    assert below.status_code == 200, below.text
    assert below.json()["outputs"][0]["data"] == [11.0, 11.0]
    assert "large;dur" not in below.headers["server-timing"]
    found = timing(both)
    assert both.json()["outputs"][0]["data"] == [22.0, 22.0]
    assert found["small"] >= 300 and found["large"] >= 300
    assert found["total"] < found["small"] + found["large"], "beside each other"
    above = asked(9.0)
    assert above.status_code >= 400 and above.headers["tidegate-stage"] == "tail", "it has no input x now"
    state = world.place.status("forked")
    assert state["stages"] == ["head", "small", "large", "tail"]
    written = world.place.cli("get", "forked", "-o", "yaml").stdout
    assert "when:" in written and "given: request.x" in written
