"""The control API: HTTP and JSON on a local address, for the command line, the SDK and other programs.

Every answer that is not a success is ``{"error": {"code", "message", "faults"}}`` with a readable message. A fault of
Tidegate's own has the code ``internal`` and a message; its trace goes to the server's log. ``/openapi.json`` is the
document.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import FastAPI, Header, HTTPException, Query, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException as StarletteHTTPException

from tidegate.control.api.access import AccessGuard
from tidegate.control.api.deployment import Deployment
from tidegate.control.api.errors import CannotRunError, LeavingError, OtherSourceError, UnknownFunctionError
from tidegate.control.api.sessions import Sessions
from tidegate.control.views.costs import CostView
from tidegate.control.views.deployment import DeploymentView, ReloadView, RestartView, TenantView
from tidegate.control.views.errors import ErrorDetail, ErrorView, FaultView
from tidegate.control.views.functions import (
    ColdStartView,
    DeployView,
    ExplainView,
    ForgottenView,
    FunctionView,
    ManifestView,
    ResizeView,
    RolloutView,
    SeriesView,
    SplitView,
)
from tidegate.control.views.requests import DeployRequest, ResizeRequest, RollbackRequest, RolloutRequest, SplitRequest
from tidegate.errors import InvalidInputError, TidegateError
from tidegate.open_metrics import form_of, formed
from tidegate.records.codec import encode
from tidegate.records.costs import GroupBy
from tidegate.records.decision import Decision
from tidegate.store.records import StoreError

PREFIX = "/api/v1"
NDJSON = "application/x-ndjson"

_STATUS: tuple[tuple[type[Exception], HTTPStatus, str], ...] = (
    (InvalidInputError, HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_input"),
    (UnknownFunctionError, HTTPStatus.NOT_FOUND, "function_not_found"),
    (CannotRunError, HTTPStatus.UNPROCESSABLE_ENTITY, "cannot_run"),
    (OtherSourceError, HTTPStatus.CONFLICT, "other_source"),
    (LeavingError, HTTPStatus.SERVICE_UNAVAILABLE, "shutting_down"),
    (StoreError, HTTPStatus.INSUFFICIENT_STORAGE, "store_failed"),
    (TidegateError, HTTPStatus.CONFLICT, "refused"),
)
"""The first match counts."""
_ERROR: Final = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorView"}}}
"""The body of an error. A model in its place would be built for each route and status: 100 ms of every start."""


def build_app(
    service: Deployment,
    *,
    token: str,
    version: str,
    sessions: Sessions,
    names: Iterable[str] = (),
    add_pages: Callable[[FastAPI], None] = lambda app: None,
) -> Any:
    """Returns the ASGI application. ``names``: host names that it answers to beside the loopback ones. ``add_pages``
    adds the routes of the console, whose browsers have ``sessions``."""
    app = FastAPI(
        title="Tidegate control API",
        version=version,
        description="Deploy functions, see what they do and why. Send the token as `Authorization: Bearer TOKEN`.",
        docs_url=None,
        redoc_url=None,
        responses={code: {"content": _ERROR} for code in (401, 403, 404, 409, 413, 422, 503)},
        dependencies=[Security(HTTPBearer(auto_error=False, description="The token of the state directory."))],
    )
    _add_errors(app)
    _add_functions(app, service)
    _add_records(app, service)
    _add_deployment(app, service)
    add_pages(app)
    return AccessGuard(app, token=token, sessions=sessions, names=names)


def _add_functions(app: FastAPI, service: Deployment) -> None:
    base = f"{PREFIX}/functions"

    errors: dict[int | str, dict[str, Any]] = {503: {"model": ErrorView}}  # Once, so that the document has its schema.

    @app.post(base, status_code=HTTPStatus.CREATED, tags=["functions"], responses=errors)
    async def deploy(request: DeployRequest) -> DeployView:
        """Deploys every function of a manifest, each as a new revision. Returns at once; follow `watch`."""
        return await service.deploy(request)

    @app.get(base, tags=["functions"])
    async def list_functions() -> tuple[FunctionView, ...]:
        """Returns every deployed function."""
        return service.functions()

    @app.get(f"{base}/{{name}}", tags=["functions"])
    async def status(name: str) -> FunctionView:
        """Returns one function: its state, revisions, replicas, and why a start failed."""
        return service.function(name)

    @app.get(f"{base}/{{name}}/watch", tags=["functions"], response_class=StreamingResponse)
    async def watch(name: str) -> StreamingResponse:
        """Returns the status now and after every change, one JSON document per line."""
        service.function(name)
        return StreamingResponse(_lines(service.changes(name)), media_type=NDJSON)

    @app.delete(f"{base}/{{name}}", status_code=HTTPStatus.NO_CONTENT, tags=["functions"])
    async def delete(name: str) -> None:
        """Takes the function out of service; its replicas finish their work and stop."""
        await service.delete(name)

    @app.delete(f"{base}/{{name}}/learnt", tags=["functions"])
    async def forget(name: str) -> ForgottenView:
        """Deletes what its policy has learnt of its load; the function stays and learns again."""
        return await service.forget(name)

    _add_traffic(app, service)

    @app.post(f"{base}/{{name}}/resize", tags=["functions"])
    async def resize(name: str, request: ResizeRequest) -> ResizeView:
        """Changes cores and batches of its ready replicas while they serve; holds until the next deploy."""
        return await service.resize(name, request)


def _add_records(app: FastAPI, service: Deployment) -> None:
    """Adds what is kept of a function: decisions, recordings, series, starts, logs."""
    base = f"{PREFIX}/functions"

    @app.get(f"{base}/{{name}}/explain", tags=["decisions"])
    async def explain(name: str, last: Annotated[int, Query(ge=1, le=1000)] = 5) -> ExplainView:
        """Explains the number of its replicas."""
        return service.explain(name, last)

    @app.get(f"{base}/{{name}}/manifest", tags=["functions"])
    async def manifest(name: str, revision: str | None = None) -> ManifestView:
        """Returns the revision deployed last, or that one, as a manifest that deploys the same function again."""
        return service.manifest(name, revision)

    @app.get(f"{base}/{{name}}/decisions", tags=["decisions"])
    async def decisions(name: str, last: Annotated[int, Query(ge=1, le=1000)] = 100) -> tuple[Decision, ...]:
        """Returns the last decisions, newest last."""
        return service.decisions(name, last)

    @app.get(f"{base}/{{name}}/recording", tags=["decisions"], response_class=StreamingResponse)
    async def recording(name: str, revision: str | None = None) -> StreamingResponse:
        """Returns the recent observations and decisions of the serving revision, or of that one: for `tidegate
        replay`."""
        return StreamingResponse(await service.recording(name, revision), media_type=NDJSON)

    @app.get(f"{base}/{{name}}/series", tags=["decisions"])
    async def series(
        name: str,
        metric: str | None = None,
        group: str | None = None,
        since: Annotated[float, Query(ge=1, le=14_400, description="Seconds back from now.")] = 300.0,
        step: Annotated[float, Query(ge=1, le=14_400, description="Seconds between two points.")] = 1.0,
    ) -> SeriesView:
        """Returns recent time series of it and its groups: loads, waiting, latency, replicas, devices, rates,
        weights."""
        return service.series(name, metric=metric, group=group, since_s=since, step_s=step)

    @app.get(f"{base}/{{name}}/cold-starts", tags=["decisions"])
    async def cold_starts(name: str) -> tuple[ColdStartView, ...]:
        """Returns the last starts of replicas by phase, newest last."""
        return service.cold_starts(name)

    @app.get(f"{base}/{{name}}/logs", tags=["functions"], response_class=StreamingResponse)
    async def logs(
        name: str,
        tail: Annotated[int, Query(ge=0, le=100_000)] = 100,
        follow: bool = False,
        replica: str | None = None,
        source: Annotated[str, Query(pattern="^(server|proxy|all)$")] = "server",
    ) -> StreamingResponse:
        """Returns the output of model servers (or queue-proxies), one JSON document per line."""
        service.function(name)
        lines = service.logs(name, tail=tail, follow=follow, replica=replica, source=source)
        return StreamingResponse(lines, media_type=NDJSON)


def _add_traffic(app: FastAPI, service: Deployment) -> None:
    base = f"{PREFIX}/functions/{{name}}"

    @app.get(f"{base}/traffic", tags=["traffic"])
    async def split(name: str) -> SplitView:
        """Returns the part of the requests that each revision has, by percent and by tag."""
        return service.split(name)

    @app.put(f"{base}/traffic", tags=["traffic"])
    async def set_split(name: str, request: SplitRequest) -> SplitView:
        """Sets percents and tags by hand; they stay until they are changed."""
        return await service.set_split(name, request)

    @app.post(f"{base}/rollback", tags=["traffic"])
    async def rollback(name: str, request: RollbackRequest) -> SplitView:
        """Returns to an earlier revision, or ends the rollout under way."""
        return await service.rollback(name, request)

    @app.get(f"{base}/rollout", tags=["traffic"])
    async def rollout(name: str) -> RolloutView:
        """Returns the rollout under way, or the last one: step, figures, verdict, events."""
        return service.rollout(name)

    @app.post(f"{base}/rollout", tags=["traffic"])
    async def change_rollout(name: str, request: RolloutRequest) -> RolloutView:
        """Begins a rollout, or promotes, pauses, resumes or aborts the one under way."""
        return await service.change_rollout(name, request)


def _add_deployment(app: FastAPI, service: Deployment) -> None:
    @app.get(f"{PREFIX}/status", tags=["deployment"])
    async def deployment() -> DeploymentView:
        """Returns everything: control process, gateways, accelerators, functions."""
        return service.view()

    @app.get(f"{PREFIX}/watch", tags=["deployment"], response_class=StreamingResponse)
    async def watch() -> StreamingResponse:
        """Returns the whole status now and after every change, one JSON document per line."""
        return StreamingResponse(_lines(service.changes(None)), media_type=NDJSON)

    @app.post(f"{PREFIX}/restart", tags=["deployment"])
    async def restart() -> RestartView:
        """Replaces the gateway workers by fresh processes, with the settings as they are now, while they serve."""
        return await service.restart()

    @app.get(f"{PREFIX}/tenants", tags=["deployment"])
    async def tenants() -> tuple[TenantView, ...]:
        """Returns the tenants in force, with their usage since the control process started."""
        return service.tenants()

    @app.get(f"{PREFIX}/cost", tags=["deployment"])
    async def cost(
        function: str | None = None,
        tenant: str | None = None,
        since: Annotated[float, Query(ge=1, le=2_678_400, description="Seconds back from now.")] = 3600.0,
        by: GroupBy = GroupBy.FUNCTION,
        spread: Annotated[bool, Query(description="Divide idle time and starts among the tenants.")] = False,
    ) -> CostView:
        """Returns device time and its price by function, tenant or accelerator: busy, idle, starting, per request."""
        return await service.costs(function=function, tenant=tenant, since_s=since, by=by, is_spread=spread)

    @app.post(f"{PREFIX}/reload", tags=["deployment"])
    async def reload() -> ReloadView:
        """Reads settings, accelerators, tenants and the TLS certificate now. (Changes of their files are looked for
        every 2 s.)"""
        return await service.reload()

    @app.post(f"{PREFIX}/shutdown", status_code=HTTPStatus.ACCEPTED, tags=["deployment"])
    async def shut_down() -> dict[str, str]:
        """Begins an orderly end: gateways finish, replicas drain, then the control process exits."""
        service.shut_down()
        return {"state": "shutting down"}

    @app.get("/metrics", tags=["deployment"], response_class=PlainTextResponse)
    async def scrape(accept: Annotated[str, Header()] = "") -> StreamingResponse:
        """Returns Prometheus text: the figures of the control process, of all gateway workers and of all replicas.
        OpenMetrics with exemplars if `Accept` prefers it."""
        form = form_of(accept)
        return StreamingResponse(formed(service.metrics(), form), media_type=form.value)

    @app.get("/healthz", tags=["deployment"], response_class=PlainTextResponse)
    async def healthz() -> PlainTextResponse:
        """Returns `ok` while the control process answers."""
        return PlainTextResponse("ok")


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(TidegateError)
    async def ours(_: Request, error: TidegateError) -> JSONResponse:
        status, code = next((status, code) for kind, status, code in _STATUS if isinstance(error, kind))
        faults = error.faults if isinstance(error, InvalidInputError) else ()
        shown = tuple(FaultView(where=f.where, value=f.value, allowed=f.allowed, line=f.line) for f in faults)
        return _error(status, code, str(error), shown)

    @app.exception_handler(RequestValidationError)
    async def shape(_: Request, error: RequestValidationError) -> JSONResponse:
        faults = tuple(
            FaultView(
                where=".".join(str(part) for part in fault["loc"]),
                value=json.dumps(fault.get("input"), default=str)[:200],
                allowed=fault["msg"],
            )
            for fault in error.errors()
        )
        return _error(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_request", "the request has the wrong shape", faults)

    @app.exception_handler(StarletteHTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        status = HTTPStatus(error.status_code)
        return _error(status, status.name.lower(), str(error.detail))

    @app.exception_handler(Exception)
    async def bug(_: Request, error: Exception) -> JSONResponse:
        text = f"a fault of Tidegate's own ({type(error).__name__}); the control process's log has the details"
        return _error(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", text)


def _error(status: HTTPStatus, code: str, message: str, faults: tuple[FaultView, ...] = ()) -> JSONResponse:
    class _Encoded(JSONResponse):
        def render(self, content: object) -> bytes:
            return encode(content)

    return _Encoded(ErrorView(error=ErrorDetail(code=code, message=message, faults=faults)), status_code=int(status))


async def _lines(views: AsyncGenerator[Any, None]) -> AsyncIterator[bytes]:
    async with aclosing(views) as source:
        async for view in source:
            yield encode(view) + b"\n"
