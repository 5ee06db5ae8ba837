"""Jobs as they are kept: states, bounds, the document that clients read. Pure; times are Unix seconds.

::

    queued ──a replica has it──> running ──the function's answer is whole──> done
       └──────────────────────────────┴──no whole answer of the function──> failed

A job is kept for ``JobBounds.keep_s`` after its end. All gateway workers of a machine share one :class:`JobStore`.
"""

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, Self

FILE: Final = "jobs.db"
"""Name of the file of a machine's jobs."""
MAX_RETRY_S: Final = 30
_DROPPED: Final = frozenset({b"content-length", b"content-type", b"date", b"transfer-encoding", b"connection"})
"""Fields of an answer that are written again with its result."""


class JobStoreError(Exception):
    """The store cannot be read or written: the disk is full, the file is broken."""


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        return self is JobState.DONE or self is JobState.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBounds:
    """What a machine keeps of jobs."""

    jobs: int
    """Jobs at once, finished ones included."""
    total_bytes: int
    """Bytes of all answers together."""
    body_bytes: int
    """Bytes of one request's body, and of one answer's."""
    keep_s: float
    """Time for which a finished job is kept, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job without its answer."""

    id: str
    owner: str
    """The gateway worker process that runs it."""
    function: str
    tenant: str | None
    """The tenant that alone may see it; None if its id is enough."""
    request_id: str
    created: float
    state: JobState = JobState.QUEUED
    ended: float | None = None
    expires: float | None = None
    """When it is dropped; None before its end."""
    status: int | None = None
    """HTTP status of its answer; None if there is none."""
    bytes: int = 0
    """Bytes of the answer's body."""
    reason: str | None = None
    """Why it failed."""

    def over(self, now: float, bounds: JobBounds, *, status: int | None, size: int, reason: str | None) -> Self:
        """Returns the job after its end; ``reason``: why it failed, None if it did not."""
        state = JobState.DONE if reason is None else JobState.FAILED
        expires = now + bounds.keep_s
        return replace(self, state=state, ended=now, expires=expires, status=status, bytes=size, reason=reason)

    def lost(self, now: float, bounds: JobBounds, reason: str) -> Self:
        """Returns the job after it failed without an answer."""
        return self.over(now, bounds, status=None, size=0, reason=reason)


class KeptAnswer(NamedTuple):
    """The answer to a job's request."""

    status: int
    content_type: str
    fields: str
    """Further header lines, each with its CRLF."""
    body: bytes


class StoreFull(NamedTuple):
    """A job that is not accepted: the store has reached a bound."""

    reason: str
    retry_after_s: int


class StoreUse(NamedTuple):
    """What is kept now."""

    jobs: int
    bytes: int
    first_expires: float | None
    """When the first finished job is dropped; None if none has ended."""


class JobStore(Protocol):
    """The jobs of one machine. Its methods wait for the disk; each raises JobStoreError."""

    def add(self, job: Job, now: float) -> StoreFull | None:
        """Keeps a new job. Returns why there is no room for it, else None."""
        ...

    def running(self, job: Job) -> None:
        """Notes that a replica has the job; does nothing if it was deleted."""
        ...

    def finish(self, job: Job, answer: KeptAnswer | None, now: float) -> bool:
        """Keeps a job that is over with its answer; does nothing if it was deleted. Returns False if there is no room
        for the answer: the job is unchanged then."""
        ...

    def find(self, job_id: str, now: float) -> Job | None:
        """Returns a job. One whose worker has ended before it has failed."""
        ...

    def answer(self, job_id: str) -> KeptAnswer | None:
        """Returns the answer to a job, and notes that a client has got it."""
        ...

    def forget(self, job_id: str) -> None:
        """Deletes a job."""
        ...

    def deleted(self, job_ids: tuple[str, ...]) -> tuple[str, ...]:
        """Returns those that are not kept any more."""
        ...

    def sweep(self, now: float) -> StoreUse:
        """Drops what has expired, notes the jobs of workers that have ended, and returns what is kept."""
        ...


def store_full(use: StoreUse, bounds: JobBounds, now: float, tenant: str | None = None) -> StoreFull | None:
    """Returns why a new job finds no room, else None. ``tenant``: ``use`` is what this tenant keeps. It may have half
    of all, so that no tenant keeps the others out."""
    part, whose = (1, "") if tenant is None else (2, f" of tenant {tenant}")
    which = "as many as" if tenant is None else "half of what"
    if use.jobs * part >= bounds.jobs:
        what = f"{use.jobs} jobs{whose} are kept, {which} `jobs.limit` allows"
    elif use.bytes * part >= bounds.total_bytes:
        what = f"the answers of the kept jobs{whose} take {use.bytes} bytes, {which} `jobs.bytes` allows"
    else:
        return None
    wait_s = MAX_RETRY_S if use.first_expires is None else max(1, int(use.first_expires - now) + 1)
    return StoreFull(f"{what}; fetch results or DELETE jobs that are not needed", wait_s)


def retry_after_s(job: Job, now: float) -> int:
    """Returns when to ask for a job again: after a tenth of its age, 1 to 30 s."""
    return min(MAX_RETRY_S, max(1, int((now - job.created) / 10)))


def kept_fields(block: bytes) -> tuple[str, str]:
    """Returns (content type, further lines) of an answer's header block, without the fields that are written again."""
    content_type, kept = "", []
    for line in block.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        lower = name.lower()
        if lower == b"content-type":
            content_type = value.strip(b" \t").decode("latin-1")
        elif colon and lower not in _DROPPED:
            kept.append(line.decode("latin-1") + "\r\n")
    return content_type, "".join(kept)


def failure_message(body: bytes) -> str | None:
    """Returns the message of an error of ours, in any of its shapes; None if there is none."""
    try:
        document = json.loads(body)
    except ValueError:
        return None
    error = document.get("error") if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else None


def document(job: Job) -> bytes:
    """Returns the JSON document of a job, without what is not known yet. Times are UTC (RFC 3339)."""
    url = f"/jobs/{job.id}"
    shown = {
        "id": job.id,
        "state": job.state.value,
        "function": job.function,
        "request_id": job.request_id,
        "created": _time(job.created),
        "ended": _time(job.ended),
        "expires": _time(job.expires),
        "status": job.status,
        "bytes": job.bytes if job.status is not None else None,
        "reason": job.reason,
        "url": url,
        "result": f"{url}/result",
    }
    return json.dumps({name: value for name, value in shown.items() if value is not None}).encode() + b"\n"


def _time(unix: float | None) -> str | None:
    if unix is None:
        return None
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
