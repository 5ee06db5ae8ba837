"""Jobs of a gateway's chain without sockets and threads: the store is a dictionary, and may be slow or broken."""

import json
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.support.worlds.fake_exchange import FakeExchange
from tests.support.worlds.gateway_chain import ONE, Door, table
from tidegate.aio.proxy.contract import PassingClient
from tidegate.aio.proxy.detached import defer_client
from tidegate.gateway.effects import JobHost
from tidegate.gateway.jobs.records import Job, JobBounds, JobStoreError, KeptAnswer, StoreFull, StoreUse
from tidegate.records.route_table import RouteTable

BOUNDS = JobBounds(jobs=5, total_bytes=4096, body_bytes=1024, keep_s=60.0)
ASYNC = "Prefer: respond-async"
ID = "tg-" + "0" * 31 + "1"
SECOND = "tg-" + "0" * 31 + "2"


class FakeJobStore:
    """A ``JobStore`` in memory."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.answers: dict[str, KeptAnswer] = {}
        self.full: StoreFull | None = None
        self.takes_answers = True

    def add(self, job: Job, now: float) -> StoreFull | None:
        if self.full is None:
            self.jobs[job.id] = job
        return self.full

    def running(self, job: Job) -> None:
        self.jobs[job.id] = job

    def finish(self, job: Job, answer: KeptAnswer | None, now: float) -> bool:
        if answer is not None and not self.takes_answers:
            return False
        if job.id in self.jobs:
            self.jobs[job.id] = job
            if answer is not None:
                self.answers[job.id] = answer
        return True

    def find(self, job_id: str, now: float) -> Job | None:
        return self.jobs.get(job_id)

    def answer(self, job_id: str) -> KeptAnswer | None:
        return self.answers.get(job_id)

    def forget(self, job_id: str) -> None:
        self.jobs.pop(job_id, None)
        self.answers.pop(job_id, None)

    def deleted(self, job_ids: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(job_id for job_id in job_ids if job_id not in self.jobs)

    def sweep(self, now: float) -> StoreUse:
        return StoreUse(len(self.jobs), 0, None)


class JobWorld:
    """A door with jobs and one replica."""

    def __init__(self, first: RouteTable | None = None, *credits: int, bounds: JobBounds = BOUNDS) -> None:  # noqa: A002
        self.store = FakeJobStore()
        self.fault: str | None = None
        """Why the disk refuses everything."""
        self.is_slow = False
        self.todo: deque[Callable[[], None]] = deque()
        """What the store has not done yet."""
        self._ids = 0
        host = JobHost(
            run=self._run, new_id=self._id, owner="g0.i", bounds=bounds, defer=defer_client, sweep=self._sweep
        )
        self.door = Door(first or table(1, ONE), jobs=host)
        self.jobs = self.door.core.jobs
        if credits:
            self.door.ready(ONE, *credits)

    def _id(self) -> str:
        self._ids += 1
        return f"tg-{self._ids:032x}"

    def _run(self, action: Callable[[Any], Any], done: Callable[[Any], None]) -> None:
        def work() -> None:
            done(action(self.store) if self.fault is None else JobStoreError(self.fault))

        self.todo.append(work)
        if not self.is_slow:
            self.work()

    def work(self) -> None:
        """The store does what it has to do."""
        while self.todo:
            self.todo.popleft()()

    def _sweep(self, ex: Any, now: float) -> None:
        if not ex.answered and now >= ex.deadline:
            ex.expires(now)

    def later(self, seconds: float) -> None:
        self.door.now += seconds
        self.door.core.sweep(self.door.now)

    def ask(self, *fields: str, prefer: str = ASYNC, **more: Any) -> FakeExchange:
        return self.door.arrive("POST /v2/models/m/infer", prefer, *fields, **more)

    def get(self, path: str, *fields: str, method: str = "GET") -> FakeExchange:
        return self.door.arrive(f"{method} {path}", *fields, body=b"")


def replies(ex: FakeExchange) -> list[tuple[int, dict[str, Any]]]:
    """Status and document of each answer that the client of the request got."""
    client: Any = ex._client
    while isinstance(client, PassingClient):
        client = client._client
    return [(answer[0], json.loads(answer[5] or b"{}")) for answer in client.answers]


def answer_it(world: JobWorld, job: FakeExchange, body: bytes = b'{"y": 1}', status: int = 200, **more: Any) -> None:
    """A replica answers the request of a job."""
    job.gets_answer(
        world.door.now, status, "content-type: application/json", "x-model: a", body=body, length=len(body), **more
    )
