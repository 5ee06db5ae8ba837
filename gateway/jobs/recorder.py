"""JobRecorder: writes the ends of one worker's jobs to the store, and repeats what could not be written."""

from collections import Counter
from collections.abc import Callable

from tidegate.gateway.effects import JobHost
from tidegate.gateway.jobs.records import Job, JobStoreError, KeptAnswer


class JobRecorder:
    """Keeps or removes records of jobs. Every method returns at once."""

    __slots__ = ("_host", "_unforgotten", "_unwritten", "_wall", "ended")

    def __init__(self, host: JobHost | None, wall: Callable[[], float]) -> None:
        """``host``: None if there are no jobs."""
        self._host = host
        self._wall = wall
        self._unwritten: dict[str, Job] = {}
        """Jobs that are over and whose end could not be written."""
        self._unforgotten: set[str] = set()
        """Ids of requests that became no jobs, and whose records could not be removed."""
        self.ended: Counter[str] = Counter()
        """Jobs that are over, by outcome: done, failed, cancelled."""

    @property
    def unwritten(self) -> int:
        """Jobs that are over and whose end could not be written."""
        return len(self._unwritten)

    def as_ended(self, record: Job) -> Job:
        """Returns a job with its end, if that could not be written; else the record as it was read."""
        return self._unwritten.get(record.id, record)

    def keep(self, job: Job, answer: KeptAnswer | None) -> None:
        """Writes the end of a job; counts it once it is known."""
        host, now = self._host, self._wall()
        if host is None:
            return

        def done(found: bool | JobStoreError) -> None:
            if found is True:
                self._unwritten.pop(job.id, None)
                self.ended[job.state.value] += 1
            elif found is False:
                reason = (
                    f"its answer of {job.bytes} bytes was not kept: the answers of the kept jobs leave no room for it "
                    f"(`jobs.bytes`)"
                )
                self.keep(job.lost(now, host.bounds, reason), None)
            else:
                lost = job if answer is None else job.lost(now, host.bounds, f"its answer was not kept: {found}")
                self._unwritten[job.id] = lost

        host.run(lambda store: store.finish(job, answer, now), done)

    def forget(self, job_id: str) -> None:
        """Removes the record of a request that became no job."""
        if self._host is not None:
            self._unforgotten.discard(job_id)
            self._host.run(lambda store: store.forget(job_id), lambda found: self._forgotten(job_id, found))

    def _forgotten(self, job_id: str, found: JobStoreError | None) -> None:
        if found is not None:
            self._unforgotten.add(job_id)

    def deleted(self, job_id: str) -> None:
        """A client deletes the job: its end is not written any more."""
        self._unwritten.pop(job_id, None)

    def retry(self) -> None:
        """Repeats the writes that failed, but for jobs whose time is over."""
        for job_id in tuple(self._unforgotten):
            self.forget(job_id)
        for job in tuple(self._unwritten.values()):
            if job.expires is not None and self._wall() >= job.expires:
                del self._unwritten[job.id]
            else:
                self.keep(job, None)

    def __repr__(self) -> str:
        return f"<JobRecorder {len(self._unwritten)} unwritten>"
