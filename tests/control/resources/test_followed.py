"""What becomes of a cluster's Functions when something of ours, or of the API server, fails."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from tidegate.aio.loop.tasks import TaskOwner
from tidegate.control.resources.followed import LOOKS_EACH, MOST_LOOKS, FollowedResources, _Key
from tidegate.control.state.notices import Faults
from tidegate.control.views.functions import FunctionState
from tidegate.control.views.requests import DeployRequest
from tidegate.deploy.kubernetes.process.api import ClusterError, KubernetesApi, Object, RefusedError
from tidegate.errors import Fault, InvalidInputError, TidegateError

PATH = "/apis/tidegate.dev/v1alpha1/namespaces/here"
GOOD, BAD = "good", "bad"


def function(name: str, generation: int = 1, **more: Any) -> Object:
    meta = {"name": name, "uid": f"uid-{name}", "generation": generation, "resourceVersion": str(generation)}
    spec = {"server": {"model": "/m.onnx"}}
    return {"apiVersion": "tidegate.dev/v1alpha1", "kind": "Function", "metadata": meta, "spec": spec, **more}


class Cluster(KubernetesApi):
    def __init__(self) -> None:
        super().__init__(None, "here", random.Random(1), sleep=lambda _: asyncio.sleep(0))
        self.written: list[tuple[str, Object]] = []
        self.refusal: ClusterError | None = None

    async def patch(self, path: str, body: Object) -> Object:
        await asyncio.sleep(0)
        if self.refusal is not None:
            raise self.refusal
        name = path.split("/")[-2]
        self.written.append((name, body))
        status = {key: each for key, each in body["status"].items() if each is not None}
        return function(name, status=status)


class Deployed:
    """Stands for the deployment: keeps what is deployed, and fails as it is ordered."""

    def __init__(self) -> None:
        self.changed = 0
        self.desired = 1
        self.errors: dict[str, list[Exception]] = {}
        self.unsettled: list[Exception] = []
        self.described: list[str] = []
        self.known: dict[str, tuple[str, str]] = {}
        self.registry = SimpleNamespace(all=tuple, get=self._get, origin=lambda name: self.known.get(name, ("", ""))[0])

    def _get(self, name: str) -> Any:
        found = self.known.get(name)
        return None if found is None else SimpleNamespace(latest=SimpleNamespace(manifest=found[1]))

    async def settle(self) -> None:
        """Gateways and autoscaler take up what was deployed."""
        if self.unsettled:
            raise self.unsettled.pop()

    async def deploy(self, request: DeployRequest, *, settles: bool = True) -> None:
        name = (request.origin or "").rpartition("/")[2]
        if self.errors.get(name):
            raise self.errors[name].pop(0)
        self.known[name] = (request.origin or "", request.manifest)
        self.changed += 1

    def function(self, name: str, *, log: bool) -> Any:
        self.described.append(name)
        revision = SimpleNamespace(id=f"{name}-00001", number=1, failure=None, stuck=None, ready=1)
        return SimpleNamespace(
            is_pipeline=False,
            message=None,
            state=FunctionState.READY,
            revision=revision.id,
            revisions=[revision],
            desired=self.desired,
            ready=1,
            url=f"http://{name}",
        )


class Bench:
    def __init__(self) -> None:
        self.cluster, self.deployed, self.faults, self.now = Cluster(), Deployed(), Faults(), 0.0
        self.owner, self.has_ended = TaskOwner("test"), False
        self.followed = FollowedResources(
            self.cluster,
            "here",
            self.deployed,  # type: ignore[arg-type]  # what it uses of it
            faults=self.faults,
            clock=lambda: self.now,
            stamp=lambda: "2026-01-01T00:00:00Z",
            url=lambda view: view.url,
        )

    async def see(self, each: Object, event: str = "PRESENT") -> None:
        await self.followed._handle("functions", event, each)

    async def until(self, holds: Callable[[], object]) -> None:
        for _ in range(2000):
            if holds():
                return
            await asyncio.sleep(0)
        raise AssertionError(f"it never held: {self.cluster.written}, {self.faults.texts()}")

    def condition(self, name: str) -> Any:
        return next((body["status"]["conditions"][0] for who, body in self.cluster.written[::-1] if who == name), None)


def play(scenario: Callable[[Bench], Awaitable[None]]) -> None:
    async def run() -> None:
        bench = Bench()
        owner = bench.owner
        working = owner.spawn(bench.followed._work(), name="work")
        try:
            await scenario(bench)
            assert bench.has_ended or not working.done()
        finally:
            await owner.close()

    asyncio.run(run())


def test_an_error_of_ours_in_one_object_is_said_and_holds_up_no_other() -> None:
    async def scenario(bench: Bench) -> None:
        bench.deployed.errors[BAD] = [KeyError("oops")]
        await bench.see(function(BAD))
        await bench.see(function(GOOD))
        await bench.until(lambda: bench.condition(GOOD) and bench.condition(BAD))
        assert bench.condition(GOOD)["status"] == "True"
        assert "an error of tidegate: KeyError: 'oops'" in bench.condition(BAD)["message"]
        await bench.until(lambda: any("1 objects are not deployed" in text for text in bench.faults.texts()))
        bench.now += 11.0
        await bench.see(function("third"))
        await bench.until(lambda: bench.condition(BAD)["status"] == "True")
        await bench.until(lambda: bench.faults.texts() == ())

    play(scenario)


def test_an_object_that_cannot_be_read_holds_up_no_other() -> None:
    """One of a definition that others have edited."""

    async def scenario(bench: Bench) -> None:
        broken = function(BAD)
        del broken["spec"]
        await bench.see(broken)
        await bench.see(function(GOOD))
        await bench.until(lambda: bench.condition(GOOD) and bench.condition(BAD))
        assert bench.condition(GOOD)["status"] == "True"
        assert "KeyError: 'spec'" in bench.condition(BAD)["message"]

    play(scenario)


def test_a_deploy_that_gateways_have_not_taken_up_is_said_and_brought_to_them_later() -> None:
    async def scenario(bench: Bench) -> None:
        bench.deployed.unsettled = [OSError("no link"), OSError("no link")]
        await bench.see(function(GOOD))
        await bench.until(lambda: any("OSError: no link" in text for text in bench.faults.texts()))
        await bench.see(function("other"))
        await bench.until(lambda: bench.condition("other"))
        await bench.until(lambda: not bench.faults.texts())

    play(scenario)


def test_a_refused_object_says_why_and_is_tried_again() -> None:
    async def scenario(bench: Bench) -> None:
        bench.deployed.errors[BAD] = [TidegateError("there is no h100")]
        await bench.see(function(BAD))
        await bench.until(lambda: bench.condition(BAD))
        assert (bench.condition(BAD)["reason"], bench.condition(BAD)["message"]) == ("Refused", "there is no h100")
        assert bench.faults.texts() == (), "it is the user's"

    play(scenario)


def test_a_refusal_names_the_places_of_the_object() -> None:
    """The line of a fault is one of the text that was made of the object."""

    async def scenario(bench: Bench) -> None:
        fault = Fault("spec.server.handler", "'/none.py'", "the path of a file", line=7)
        bench.deployed.errors[BAD] = [InvalidInputError("/apis/bad", [fault])]
        await bench.see(function(BAD))
        await bench.until(lambda: bench.condition(BAD))
        assert bench.condition(BAD)["message"] == "spec.server.handler: got '/none.py'; allowed: the path of a file"

    play(scenario)


def test_a_status_that_cannot_be_written_is_a_fault_until_it_is() -> None:
    async def scenario(bench: Bench) -> None:
        bench.cluster.refusal = RefusedError(403, "Forbidden", "may not patch functions/status")
        await bench.see(function(GOOD))
        await bench.until(bench.faults.texts)
        assert "functions/good: may not patch functions/status" in bench.faults.texts()[0]
        bench.cluster.refusal = None
        await bench.see(function("other"))
        await bench.until(lambda: bench.condition(GOOD))
        await bench.until(lambda: not bench.faults.texts())

    play(scenario)


def test_a_status_is_of_the_generation_that_was_acted_on() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.see(function(GOOD))
        await bench.until(lambda: bench.condition(GOOD))
        bench.followed._wanted[_Key("functions", GOOD)] = function(GOOD, generation=2)  # not acted on yet
        bench.deployed.desired = 2
        bench.deployed.changed += 1
        await bench.followed._report_all()
        assert bench.cluster.written[-1][1]["status"]["replicas"] == 2
        assert bench.condition(GOOD)["observedGeneration"] == 1

    play(scenario)


def test_a_status_is_written_of_the_object_as_it_is_known() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.see(function(GOOD, generation=7))
        await bench.until(lambda: bench.cluster.written)
        assert bench.cluster.written[0][1]["metadata"] == {"resourceVersion": "7"}

    play(scenario)


def test_of_many_objects_at_rest_one_look_compares_a_part() -> None:
    async def scenario(bench: Bench) -> None:
        names = [f"f{number:03}" for number in range(MOST_LOOKS * LOOKS_EACH)]
        for name in names:
            await bench.see(function(name))
        await bench.until(lambda: len(bench.cluster.written) >= len(names))
        bench.has_ended = True
        await bench.owner.close()
        await bench.followed._report_all()  # Those that were written are looked at once more.
        before = len(bench.cluster.written)
        bench.deployed.desired = 2
        seen: set[str] = set()
        for _ in range(MOST_LOOKS):
            del bench.deployed.described[:]
            await bench.followed._report_all()
            seen |= set(bench.deployed.described)
            assert len(bench.deployed.described) <= 2 * LOOKS_EACH, "its turn, and those that have just been written"
        assert seen == set(names)
        assert len(bench.cluster.written) == before + len(names), "each one is written in its turn, once"
        for _ in range(MOST_LOOKS):
            await bench.followed._report_all()
        assert len(bench.cluster.written) == before + len(names)

    play(scenario)


def test_the_end_is_written_on_each_object() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.see(function(GOOD))
        await bench.until(lambda: bench.condition(GOOD))
        bench.has_ended = True
        await bench.owner.close()
        await bench.followed.end(5.0)
        assert (bench.condition(GOOD)["status"], bench.condition(GOOD)["reason"]) == ("False", "Stopped")
        status = bench.cluster.written[-1][1]["status"]
        assert (status["readyReplicas"], status["replicas"]) == (0, None)

    play(scenario)
