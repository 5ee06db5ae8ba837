"""The API by itself, over a service that only answers: who may ask, what faults look like, the document."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest

from tests.support.worlds.control_api import app_over
from tidegate.control.api.access import BODY_BYTES
from tidegate.control.api.errors import CannotRunError, LeavingError, RefusedError, UnknownFunctionError
from tidegate.control.costs.ledger import DeviceTime
from tidegate.control.costs.report import CostAmounts
from tidegate.control.views.costs import CostView, cost_row
from tidegate.control.views.deployment import DeploymentView, ReloadView, ReplacedView, RestartView, TenantView
from tidegate.control.views.functions import (
    ColdStartView,
    DeployedView,
    DeployView,
    ExplainView,
    ForgottenView,
    FunctionState,
    FunctionView,
    ManifestView,
    ResizeView,
    RolloutView,
    SeriesLineView,
    SeriesView,
    SplitView,
    TrafficView,
)
from tidegate.control.views.requests import DeployRequest, ResizeRequest, RollbackRequest, RolloutRequest, SplitRequest
from tidegate.errors import Fault, InvalidInputError
from tidegate.records.costs import GroupBy
from tidegate.records.decision import Decision
from tidegate.store.records import StoreFaultError

TOKEN = "secret-token"


def function_view(name: str) -> FunctionView:
    return FunctionView(
        name=name,
        state=FunctionState.ASLEEP,
        revision=f"{name}-00001",
        url=f"http://{name}.localhost:8080/",
        path_url=f"http://127.0.0.1:8080/functions/{name}/",
        models=(name,),
        protocol="v2",
        latency_s=0.2,
        percentile=98.0,
        target_ips=None,
        ready=0,
        desired=0,
        price_per_hour=0.04,
        traffic=TrafficView(window_s=60.0),
        revisions=(),
    )


@dataclass
class Answering:
    """A service with one function and a fault to raise on deploy."""

    fault: Exception | None = None
    stopped: bool = False
    asked: list[DeployRequest] = field(default_factory=list)

    def view(self) -> DeploymentView:
        return DeploymentView(
            version="1",
            pid=7,
            epoch=3,
            since_s=1.0,
            state_directory="/s",
            api="http://127.0.0.1:8081",
            gateway="http://127.0.0.1:8080",
            table="3.1",
            faults=(),
            gateways=(),
            accelerators=(),
            functions=self.functions(),
        )

    def functions(self) -> tuple[FunctionView, ...]:
        return (function_view("echo"),)

    def function(self, name: str) -> FunctionView:
        if name != "echo":
            raise UnknownFunctionError(name, ("echo",))
        return function_view(name)

    async def changes(self, name: str | None) -> AsyncGenerator[DeploymentView | FunctionView, None]:
        yield self.view() if name is None else self.function(name)

    async def deploy(self, request: DeployRequest) -> DeployView:
        self.asked.append(request)
        if self.fault is not None:
            raise self.fault
        return DeployView(functions=(DeployedView(name="echo", revision="echo-00001", filled_in={"policy": "kpa"}),))

    async def delete(self, name: str) -> None:
        self.function(name)

    async def forget(self, name: str) -> ForgottenView:
        self.function(name)
        return ForgottenView(function=name, learnt=("3 days of load",))

    def explain(self, name: str, last: int) -> ExplainView:
        self.function(name)
        return ExplainView(function=name, text=f"the last {last}", decisions=())

    def manifest(self, name: str, revision: str | None) -> ManifestView:
        self.function(name)
        return ManifestView(
            function=name,
            revision=revision or "echo-00002",
            manifest="kind: Function\n",
            source="m",
            copy=None,
            created_at=0.0,
        )

    def decisions(self, name: str, last: int) -> tuple[Decision, ...]:
        return ()

    def cold_starts(self, name: str) -> tuple[ColdStartView, ...]:
        return ()

    def series(self, name: str, *, metric: str | None, group: str | None, since_s: float, step_s: float) -> SeriesView:
        self.function(name)
        line = SeriesLineView(metric=metric or "rps", group=group, unit="x", points=((int(since_s), None), (2, step_s)))
        return SeriesView(function=name, step_s=1, lines=(line,), refused=0)

    def split(self, name: str) -> SplitView:
        self.function(name)
        return SplitView(function=name, is_pinned=False, parts=(), kept=(), candidate=None, is_returning=False)

    async def set_split(self, name: str, request: SplitRequest) -> SplitView:
        return replace(self.split(name), is_pinned=bool(request.split))

    async def resize(self, name: str, request: ResizeRequest) -> ResizeView:
        raise RefusedError(f"no {request.cores} cores for {name}")

    async def rollback(self, name: str, request: RollbackRequest) -> SplitView:
        raise RefusedError(f"no {request.to}")

    def rollout(self, name: str) -> RolloutView:
        raise RefusedError(f"no rollout of {name}")

    async def change_rollout(self, name: str, request: RolloutRequest) -> RolloutView:
        raise RefusedError(f"no {request.action}")

    async def recording(self, name: str, revision: str | None) -> Iterator[bytes]:
        return iter([b'{"revision": "%s"}\n' % str(revision).encode(), b"{}\n"])

    async def logs(
        self, name: str, *, tail: int, follow: bool, replica: str | None, source: str
    ) -> AsyncGenerator[bytes, None]:
        yield json.dumps([name, tail, follow, replica, source]).encode() + b"\n"

    async def metrics(self) -> AsyncGenerator[bytes, None]:
        yield b"tidegate_x 1\n"

    async def restart(self) -> RestartView:
        if self.fault is not None:
            raise self.fault
        return RestartView(replaced=(ReplacedView(worker="g0.2", pid=8, old="g0", old_pid=7),), needs_up=())

    def tenants(self) -> tuple[TenantView, ...]:
        return (
            TenantView(
                name="acme",
                keys=1,
                weight=2.0,
                priority=None,
                functions=(),
                quotas={"requests-per-minute": 5},
                requests=3,
                inferences=4,
                tokens=0,
                refused=1,
            ),
        )

    async def costs(
        self, *, function: str | None, tenant: str | None, since_s: float, by: GroupBy, is_spread: bool
    ) -> CostView:
        amounts = CostAmounts(DeviceTime(busy_s=2.0, busy_cost=0.5, requests=4), tokens=0)
        total = cost_row("total", amounts)
        return CostView(
            by=by, function=function, tenant=tenant, spread=is_spread, since=1.0, until=2.0, rows=(), total=total
        )

    async def reload(self) -> ReloadView:
        return ReloadView(reloaded=("g0",), faults={"g1": "no such file"})

    def shut_down(self) -> None:
        self.stopped = True


def ask(
    method: str,
    path: str,
    *,
    service: Answering | None = None,
    token: str | None = TOKEN,
    headers: dict[str, str] | None = None,
    body: Any = None,
) -> httpx.Response:
    async def run() -> httpx.Response:
        app = app_over(service or Answering(), token=TOKEN, version="1.2.3", names=("box.example",))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        allowed = {} if token is None else {"authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8081") as client:
            return await client.request(method, path, headers=allowed | (headers or {}), json=body)

    return asyncio.run(run())


def code_of(response: httpx.Response) -> str:
    found: str = response.json()["error"]["code"]
    return found


MANIFEST = {"manifest": "kind: Function", "base": "/home/a", "source": "echo.yaml"}


def test_the_token_is_asked_for() -> None:
    for token in (None, "", "wrong", TOKEN + "x"):
        response = ask("GET", "/api/v1/functions", token=token)
        assert (response.status_code, code_of(response)) == (401, "wrong_token")
    assert ask("GET", "/api/v1/functions").status_code == 200
    assert ask("GET", "/metrics", token=None).status_code == 401
    assert ask("GET", "/healthz", token=None).text == "ok"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8081", "127.0.0.1.evil.example", ""])
def test_a_foreign_name_is_refused_even_with_the_token(host: str) -> None:
    response = ask("GET", "/api/v1/status", headers={"host": host})
    assert (response.status_code, code_of(response)) == (403, "wrong_host")


@pytest.mark.parametrize("host", ["localhost:8081", "127.0.0.1", "[::1]:8081", "BOX.example:9"])
def test_own_names_are_answered(host: str) -> None:
    assert ask("GET", "/api/v1/status", headers={"host": host}).status_code == 200


def test_a_foreign_page_is_refused() -> None:
    response = ask("POST", "/api/v1/shutdown", headers={"origin": "http://evil.example"})
    assert (response.status_code, code_of(response)) == (403, "wrong_origin")
    assert ask("GET", "/api/v1/status", headers={"origin": "http://127.0.0.1:8081"}).status_code == 200
    assert ask("GET", "/api/v1/status", headers={"origin": "http://127.0.0.1:9999"}).status_code == 403


def test_deploying_tells_what_was_filled_in() -> None:
    service = Answering()
    response = ask("POST", "/api/v1/functions", service=service, body=MANIFEST)
    assert response.status_code == 201
    (function,) = response.json()["functions"]
    assert (function["revision"], function["filled_in"]) == ("echo-00001", {"policy": "kpa"})
    assert service.asked == [DeployRequest(manifest="kind: Function", base="/home/a", source="echo.yaml")]


def test_all_faults_of_a_manifest_are_reported() -> None:
    faults = [Fault("spec.port", "'x'", "1 to 65535", 7), Fault("metadata.name", "'A'", "a DNS label")]
    response = ask(
        "POST", "/api/v1/functions", service=Answering(InvalidInputError("echo.yaml", faults)), body=MANIFEST
    )
    assert (response.status_code, code_of(response)) == (422, "invalid_input")
    assert [fault["line"] for fault in response.json()["error"]["faults"]] == [7, None]


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [(StoreFaultError("disk is full"), 507, "store_failed"), (LeavingError("it ends"), 503, "shutting_down")],
)
def test_faults_have_a_status_and_a_text(fault: Exception, status: int, code: str) -> None:
    response = ask("POST", "/api/v1/functions", service=Answering(fault), body=MANIFEST)
    assert (response.status_code, code_of(response)) == (status, code)
    assert response.json()["error"]["message"] == str(fault)


def test_a_fault_of_ours_shows_no_trace() -> None:
    response = ask("POST", "/api/v1/functions", service=Answering(ZeroDivisionError("line 7")), body=MANIFEST)
    assert (response.status_code, code_of(response)) == (500, "internal")
    assert "Traceback" not in response.text
    assert "line 7" not in response.text


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/api/v1/functions/none", 404, "function_not_found"),
        ("GET", "/api/v1/functions/none/watch", 404, "function_not_found"),
        ("GET", "/api/v1/functions/none/logs", 404, "function_not_found"),
        ("DELETE", "/api/v1/functions/none", 404, "function_not_found"),
        ("GET", "/nowhere", 404, "not_found"),
        ("PUT", "/api/v1/functions", 405, "method_not_allowed"),
        ("GET", "/api/v1/functions/echo/explain?last=0", 422, "invalid_request"),
        ("GET", "/api/v1/functions/echo/logs?source=other", 422, "invalid_request"),
        ("POST", "/api/v1/functions", 422, "invalid_request"),
    ],
)
def test_every_refusal_has_the_same_shape(method: str, path: str, status: int, code: str) -> None:
    response = ask(method, path)
    assert (response.status_code, code_of(response)) == (status, code)
    assert response.json()["error"]["message"]


def test_reading() -> None:
    assert ask("GET", "/api/v1/functions").json()[0]["name"] == "echo"
    assert ask("GET", "/api/v1/functions/echo").json()["state"] == "asleep"
    assert ask("GET", "/api/v1/functions/echo/explain?last=3").json()["text"] == "the last 3"
    assert ask("GET", "/api/v1/functions/echo/decisions").json() == []
    assert ask("GET", "/api/v1/functions/echo/cold-starts").json() == []
    (line,) = ask("GET", "/api/v1/functions/echo/series?metric=mu_ips&group=t4&since=60&step=5").json()["lines"]
    assert (line["metric"], line["group"], line["points"]) == ("mu_ips", "t4", [[60, None], [2, 5.0]])
    for bad in ("since=0", "since=nan", "since=1e9", "step=0", "step=x"):
        assert ask("GET", f"/api/v1/functions/echo/series?{bad}").status_code == 422
    assert ask("GET", "/api/v1/status").json()["epoch"] == 3
    assert ask("GET", "/metrics").text == "tidegate_x 1\n"
    assert ask("DELETE", "/api/v1/functions/echo").status_code == 204


def test_streams_are_lines_of_json() -> None:
    assert json.loads(ask("GET", "/api/v1/functions/echo/watch").text)["name"] == "echo"
    assert json.loads(ask("GET", "/api/v1/watch").text)["epoch"] == 3
    lines = ask("GET", "/api/v1/functions/echo/logs?tail=5&follow=true&source=all").text
    assert json.loads(lines) == ["echo", 5, True, None, "all"]


def test_shutting_down_is_asked_for() -> None:
    service = Answering()
    assert ask("POST", "/api/v1/shutdown", service=service).status_code == 202
    assert service.stopped


def test_the_document_names_every_route() -> None:
    document = ask("GET", "/openapi.json", token=None).json()
    assert document["info"]["version"] == "1.2.3"
    assert {"/api/v1/functions", "/api/v1/functions/{name}", "/api/v1/status", "/metrics"} <= document["paths"].keys()
    assert {"FunctionView", "ErrorView"} <= document["components"]["schemas"].keys()
    for route, method in (("/api/v1/status", "get"), ("/api/v1/functions", "post")):
        refused = document["paths"][route][method]["responses"]["503"]["content"]["application/json"]["schema"]
        assert refused == {"$ref": "#/components/schemas/ErrorView"}
    assert document["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
    assert document["paths"]["/api/v1/status"]["get"]["security"] == [{"HTTPBearer": []}]


def test_a_body_that_is_too_large_is_refused_before_it_is_read_to_its_end() -> None:
    service = Answering()
    response = ask("POST", "/api/v1/functions", service=service, body="x" * BODY_BYTES)
    assert (response.status_code, code_of(response)) == (413, "too_large")
    assert service.asked == []


def test_what_cannot_run_here_is_wrong_input() -> None:
    service = Answering(fault=CannotRunError("echo-00001 cannot be started: command 'nope' is not a program"))
    response = ask("POST", "/api/v1/functions", service=service, body={"manifest": "text", "base": "/"})
    assert (response.status_code, code_of(response)) == (422, "cannot_run")


def test_restart_and_reload_say_what_they_did() -> None:
    done = ask("POST", "/api/v1/restart")
    assert done.json() == {
        "replaced": [{"worker": "g0.2", "pid": 8, "old": "g0", "old_pid": 7}],
        "needs_up": [],
    }
    assert ask("POST", "/api/v1/reload").json() == {
        "reloaded": ["g0"],
        "faults": {"g1": "no such file"},
        "in_force": [],
        "needs_restart": [],
        "needs_up": [],
        "overridden": [],
    }


def test_a_restart_tells_every_fault_of_the_settings() -> None:
    wrong = InvalidInputError("tidegate.toml", [Fault("limits.headers", "7", "8 to 10000", 3), Fault("x", "y", "z")])
    refused = ask("POST", "/api/v1/restart", service=Answering(fault=wrong))
    assert (refused.status_code, code_of(refused)) == (422, "invalid_input")
    assert [each["where"] for each in refused.json()["error"]["faults"]] == ["limits.headers", "x"]


def test_traffic_is_read_and_set_and_refusals_say_why() -> None:
    base = "/api/v1/functions/echo"
    assert ask("GET", f"{base}/traffic").json()["is_pinned"] is False
    assert ask("PUT", f"{base}/traffic", body={"split": {"1": 90, "2": 10}}).json()["is_pinned"] is True
    assert ask("PUT", f"{base}/traffic", body={"split": {"1": "many"}}).status_code == 422
    no_cores = ask("POST", f"{base}/resize", body={"cores": 3})
    assert (no_cores.status_code, "no 3 cores" in no_cores.text) == (409, True)
    refused = ask("POST", f"{base}/rollback", body={"to": "7"})
    assert (refused.status_code, refused.json()["error"]["message"]) == (409, "no 7")
    assert ask("POST", f"{base}/rollout", body={"action": "promote"}).status_code == 409
    assert ask("POST", f"{base}/rollout", body={"action": "explode"}).status_code == 422
    assert ask("GET", f"{base}/rollout").status_code == 409


def test_what_was_learnt_is_deleted_and_said() -> None:
    deleted = ask("DELETE", "/api/v1/functions/echo/learnt")
    assert (deleted.status_code, deleted.json()) == (200, {"function": "echo", "learnt": ["3 days of load"]})
    assert ask("DELETE", "/api/v1/functions/other/learnt").status_code == 404


def test_costs_are_reported_by_what_is_asked_for() -> None:
    found = ask("GET", "/api/v1/cost?function=echo&tenant=acme&since=60&by=tenant&spread=true").json()
    assert (found["by"], found["function"], found["tenant"], found["spread"]) == ("tenant", "echo", "acme", True)
    total = found["total"]
    assert (total["device_s"], total["cost"], total["cost_per_1k_requests"]) == (2.0, 0.5, 125.0)
    assert total["cost_per_million_tokens"] is None
    assert ask("GET", "/api/v1/cost").json()["by"] == "function"
    assert ask("GET", "/api/v1/cost?by=day").status_code == 422
    assert ask("GET", "/api/v1/cost?since=0").status_code == 422


def test_tenants_are_reported_without_their_keys() -> None:
    (view,) = ask("GET", "/api/v1/tenants").json()
    assert view == {
        "name": "acme",
        "keys": 1,
        "weight": 2.0,
        "priority": None,
        "functions": [],
        "quotas": {"requests-per-minute": 5},
        "requests": 3,
        "inferences": 4,
        "tokens": 0,
        "refused": 1,
    }
