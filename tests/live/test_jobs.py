"""Jobs through real processes: accepted while their function sleeps, fetched at any worker, over HTTP/1.1 and HTTP/2,
for their tenant alone, bounded, and reported when their worker is killed."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.live.deployment import REQUEST, Deployment, deployment
from tests.support.live.tenants import ACME, SECOND, tenants_file
from tidegate import AsyncTidegate, InvokeError

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]
LIMIT = 6
ASYNC = {"Prefer": "respond-async"}
SLOW_S = 3.0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("jobs")
    flags = ("--gateway-workers", "2", "--tenants-file", str(tenants_file(folder)))
    with deployment(folder, *flags, "--jobs-limit", str(LIMIT), "--jobs-body-bytes", "1Mi") as found:
        found.up()
        found.deploy(found.handler(), "--initial-scale", "0")
        found.deploy(found.handler(work_s=SLOW_S, name="slow"), "--initial-scale", "0", name="slow")
        yield found


def ask(place: Deployment, name: str = "echo", **headers: str) -> httpx.Response:
    url = f"{place.gateway}/v2/models/{name}/infer"
    return httpx.post(url, json=REQUEST, headers=ASYNC | headers, timeout=20.0, trust_env=False, verify=False)


def get(place: Deployment, path: str, method: str = "GET", **headers: str) -> httpx.Response:
    # A connection of its own each time: any of the workers answers.
    return httpx.request(method, f"{place.gateway}{path}", headers=headers, timeout=20.0, trust_env=False, verify=False)


def over(place: Deployment, path: str) -> dict[str, Any]:
    """The document of a job that is over."""

    def document() -> Any:
        found = get(place, path).json()
        return found if found["state"] in ("done", "failed") else None

    found: dict[str, Any] = place.until(document, 30.0, "the job to be over")
    return found


def test_a_job_of_a_sleeping_function_is_done_later_and_any_worker_has_its_result(place: Deployment) -> None:
    accepted = ask(place)
    assert accepted.status_code == 202 and accepted.headers["preference-applied"] == "respond-async"
    path = accepted.headers["location"]
    assert accepted.json()["url"] == path and accepted.json()["state"] == "queued"
    assert over(place, path)["status"] == 200
    for _ in range(6):
        result = get(place, f"{path}/result")
        assert result.status_code == 200 and result.json()["outputs"][0]["data"] == [2.0, 4.0]
        assert result.headers["x-request-id"] == accepted.headers["x-request-id"]
    assert get(place, path, "DELETE").json()["state"] == "deleted"
    assert get(place, f"{path}/result").json()["error"]["code"] == "job_not_found"

    with httpx.Client(base_url=place.gateway, timeout=20.0, trust_env=False, verify=False) as client:
        kept = client.post("/v2/models/echo/infer", json=REQUEST, headers=ASYNC).headers["location"]
        assert client.get(kept).status_code == 200, "its connection goes on while the job runs"
    over(place, kept)
    get(place, kept, "DELETE")

    waited = ask(place, Prefer="respond-async, wait=20")
    assert waited.status_code == 200 and waited.json()["outputs"][0]["data"] == [2.0, 4.0]
    broken = httpx.post(
        f"{place.gateway}/v2/models/echo/infer",
        json={"inputs": []},
        headers=ASYNC,
        timeout=20.0,
        trust_env=False,
        verify=False,
    )
    document = over(place, broken.headers["location"])
    assert (document["state"], document["status"]) == ("done", 400), "the function's own error is its answer"
    get(place, broken.headers["location"], "DELETE")


def test_jobs_from_the_command_line_and_from_python(place: Deployment) -> None:
    sent = place.cli("invoke", "echo", "--data", json.dumps(REQUEST), "--async")
    job_id = sent.stdout.strip()
    assert f"tidegate job {job_id} --result" in sent.stderr
    assert json.loads(place.cli("job", job_id, "--result").stdout)["outputs"][0]["data"] == [2.0, 4.0]
    assert place.cli("job", job_id).stdout.startswith("echo done, status 200, ")
    assert place.ask("job", job_id)["state"] == "done"
    assert place.ask("job", job_id, "--delete") == {"deleted": [job_id]}
    assert "job_not_found" in place.cli("job", job_id, code=1).stderr

    with place.sdk() as sdk:
        view = sdk.submit("echo", REQUEST)
        assert sdk.result(view.id)["outputs"][0]["data"] == [2.0, 4.0]
        sdk.delete_job(view.id)
        view = sdk.submit("slow", REQUEST)
        with pytest.raises(InvokeError, match=r"after 0\.2 s"):
            sdk.result(view.id, timeout_s=0.2)
        sdk.delete_job(view.id)
        with pytest.raises(InvokeError, match="job_not_found"):
            sdk.result(view.id)
    asyncio.run(from_asyncio(place))


async def from_asyncio(place: Deployment) -> None:
    async with AsyncTidegate(state=place.state.root) as sdk:
        view = await sdk.submit("echo", REQUEST)
        assert (await sdk.result(view.id))["outputs"][0]["data"] == [2.0, 4.0]
        assert (await sdk.job(view.id)).status == 200
        await sdk.delete_job(view.id)


def test_jobs_over_http2(place: Deployment) -> None:
    with httpx.Client(
        http1=False, http2=True, base_url=place.gateway, timeout=20.0, trust_env=False, verify=False
    ) as client:
        accepted = client.post("/functions/echo/v2/models/echo/infer", json=REQUEST, headers=ASYNC)
        assert (accepted.http_version, accepted.status_code) == ("HTTP/2", 202)
        path = accepted.headers["location"]
        over(place, path)
        assert client.get(f"{path}/result").json()["outputs"][0]["data"] == [2.0, 4.0]
        assert client.delete(path).status_code == 200


def test_a_job_is_for_its_tenant_alone(place: Deployment) -> None:
    manifest = place.folder / "closed.yaml"
    head = {"apiVersion": "tidegate.dev/v1alpha1", "kind": "Function", "metadata": {"name": "closed"}}
    spec = {"server": {"handler": place.handler()}, "access": {"api-keys": True}, "models": ["closed"]}
    manifest.write_text(json.dumps({**head, "spec": spec}))
    place.cli("deploy", str(manifest), "--no-wait")
    path = "/functions/closed/v2/models/closed/infer"
    url = f"{place.gateway}{path}"
    assert httpx.post(url, json=REQUEST, headers=ASYNC, trust_env=False, verify=False).status_code == 401
    accepted = httpx.post(
        url, json=REQUEST, headers=ASYNC | {"x-api-key": ACME}, timeout=20.0, trust_env=False, verify=False
    )
    job = accepted.headers["location"]
    for others in ({}, {"x-api-key": SECOND}, {"x-api-key": "tg-wrong"}):
        for question in (job, f"{job}/result"):
            assert get(place, question, **others).json()["error"]["code"] == "job_not_found"
        assert get(place, job, "DELETE", **others).status_code == 404
    place.until(lambda: get(place, job, **{"x-api-key": ACME}).json()["state"] == "done", 30.0, "the job to be done")
    assert get(place, f"{job}/result", **{"x-api-key": ACME}).status_code == 200
    assert get(place, job, "DELETE", **{"x-api-key": ACME}).status_code == 200


def test_a_full_store_refuses_and_a_cancelled_job_makes_room(place: Deployment) -> None:
    accepted = [ask(place, "slow") for _ in range(LIMIT + 1)]
    assert [answer.status_code for answer in accepted] == [202] * LIMIT + [429]
    assert accepted[-1].json()["code"] == "jobs_full" and accepted[-1].headers["retry-after"]
    assert place.infer().status_code == 200, "other requests are served"
    states = [get(place, answer.headers["location"], "DELETE").json()["state"] for answer in accepted[:-1]]
    assert states[-1] == "cancelled" and set(states) <= {"cancelled", "deleted"}
    again = ask(place, "slow")
    assert again.status_code == 202
    get(place, again.headers["location"], "DELETE")
    place.until(
        lambda: total(place, "tidegate_gateway_jobs_live") == total(place, "tidegate_gateway_waiting_requests") == 0,
        10.0,
        "the cancelled work to be gone",
    )
    assert total(place, "tidegate_gateway_jobs_refused_total") == 1
    assert total(place, "tidegate_gateway_jobs_accepted_total") >= LIMIT + 1


def total(place: Deployment, metric: str) -> float:
    """The sum of a metric over all workers."""
    with place.sdk() as sdk:
        lines = sdk.metrics().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{metric}{{"))


def test_the_jobs_of_a_killed_worker_have_failed_and_a_restart_keeps_those_that_run(place: Deployment) -> None:
    accepted = [ask(place, "slow").headers["location"] for _ in range(4)]
    first = place.living()["gateway-g0"]
    os.kill(first, signal.SIGKILL)
    place.cli("restart")
    documents = [over(place, path) for path in accepted]
    for document in documents:
        if document["state"] == "failed":
            assert "the gateway worker g0 ended (killed, or crashed)" in document["reason"]
            lost = get(place, document["result"])
            assert lost.status_code == 502 and lost.json()["error"]["code"] == "job_lost"
        else:
            assert get(place, document["result"]).status_code == 200
    for path in accepted:
        get(place, path, "DELETE")
    assert (place.state.jobs / "jobs.db").stat().st_mode & 0o777 == 0o600
