"""Jobs as values: bounds, what is kept of an answer, the document."""

import json

from tidegate.gateway.jobs.records import (
    Job,
    JobBounds,
    JobState,
    StoreUse,
    document,
    failure_message,
    kept_fields,
    retry_after_s,
    store_full,
)

BOUNDS = JobBounds(jobs=3, total_bytes=100, body_bytes=50, keep_s=60.0)
JOB = Job(id="tg-1", owner="g0.a", function="f", tenant=None, request_id="r", created=1000.0)


def test_a_job_that_is_over_expires_after_the_time_that_the_settings_state() -> None:
    done = JOB.over(1010.0, BOUNDS, status=200, size=7, reason=None)
    assert (done.state, done.ended, done.expires) == (JobState.DONE, 1010.0, 1070.0)
    assert done.state.is_over
    lost = JOB.lost(1010.0, BOUNDS, "why")
    assert (lost.state, lost.status, lost.reason) == (JobState.FAILED, None, "why")


def test_a_full_store_says_which_bound_and_when_there_is_room() -> None:
    assert store_full(StoreUse(2, 99, None), BOUNDS, 0.0) is None
    by_count = store_full(StoreUse(3, 0, 12.5), BOUNDS, 0.0)
    assert by_count is not None and by_count.retry_after_s == 13
    assert "3 jobs are kept, as many as `jobs.limit` allows" in by_count.reason
    by_bytes = store_full(StoreUse(1, 100, None), BOUNDS, 0.0)
    assert by_bytes is not None and "`jobs.bytes`" in by_bytes.reason


def test_a_client_is_asked_to_come_again_after_a_tenth_of_the_jobs_age() -> None:
    assert [retry_after_s(JOB, 1000.0 + age) for age in (0, 9, 25, 100, 10_000)] == [1, 1, 2, 10, 30]


def test_the_fields_of_an_answer_are_kept_without_those_that_are_written_anew() -> None:
    block = b"content-type: text/plain\r\nContent-Length: 3\r\ndate: x\r\nx-a: \xe9\r\nx-request-id: r\r\n"
    assert kept_fields(block) == ("text/plain", "x-a: \xe9\r\nx-request-id: r\r\n")


def test_the_message_of_an_error_is_read_in_each_of_its_shapes() -> None:
    assert failure_message(b'{"error": {"message": "ours"}}') == "ours"
    assert failure_message(b'{"error": "of V2", "code": "x"}') == "of V2"
    for other in (b"", b"text", b"[]", b'{"error": 1}'):
        assert failure_message(other) is None


def test_the_document_has_what_is_known() -> None:
    assert json.loads(document(JOB)) == {
        "id": "tg-1",
        "state": "queued",
        "function": "f",
        "request_id": "r",
        "created": "1970-01-01T00:16:40Z",
        "url": "/jobs/tg-1",
        "result": "/jobs/tg-1/result",
    }
    done = json.loads(document(JOB.over(1010.0, BOUNDS, status=200, size=0, reason=None)))
    assert (done["state"], done["status"], done["bytes"]) == ("done", 200, 0)
    assert done["expires"] == "1970-01-01T00:17:50Z"
