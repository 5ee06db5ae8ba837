"""The addresses of the console: its pages, its files, one JSON document per page, and the way to a session.

A page asks for its document once a second. Documents of the whole deployment are made from one view for all browsers
(:class:`Documents`); one that the browser has is answered with 304. The work of a function's page does not depend on
the number of functions.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Final, Generic, Protocol, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import Response

from tidegate.control.api.errors import RefusedError
from tidegate.control.api.sessions import Sessions
from tidegate.control.console import pages
from tidegate.control.console.files import SHELL, etag_of, static_file
from tidegate.control.views.costs import CostView
from tidegate.control.views.deployment import ConsoleLinkView, DeploymentView, TenantView
from tidegate.control.views.errors import ErrorDetail, ErrorView
from tidegate.control.views.functions import (
    ColdStartView,
    ExplainView,
    FunctionView,
    RolloutView,
    SeriesView,
    SplitView,
)
from tidegate.errors import Fault, InvalidInputError
from tidegate.records.codec import CodecError, decode, encode
from tidegate.records.costs import GroupBy

T = TypeVar("T")

PAGES: Final = (
    "/console",
    "/console/functions/{name}",
    "/console/accelerators",
    "/console/waiting",
    "/console/tenants",
    "/console/cost",
)
"""Addresses of the pages, for people."""
KEPT_S: Final = 0.5
"""Shortest time between two views of the whole deployment."""
REST: Final = 20.0
"""Time between two views, in units of the time that the last one took."""
COST_KEPT_S: Final = 5.0
"""The same for costs, which are read from a file."""
COST_S: Final = 3600.0
DECISIONS: Final = 20
MAX_SINCE_S: Final = 14_400
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy: nothing inline, nothing from elsewhere."""
_HEADERS: Final = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}
_JSON: Final = "application/json"


class Shown(Protocol):
    """The deployment, as far as pages show it."""

    api: str

    @property
    def changed(self) -> int: ...

    async def view_in_slices(self) -> DeploymentView: ...

    def function(self, name: str, *, log: bool = True) -> FunctionView: ...

    def explain(self, name: str, last: int) -> ExplainView: ...

    def cold_starts(self, name: str) -> tuple[ColdStartView, ...]: ...

    def split(self, name: str) -> SplitView: ...

    def rollout(self, name: str) -> RolloutView: ...

    def series(
        self, name: str, *, metric: str | None, group: str | None, since_s: float, step_s: float
    ) -> SeriesView: ...

    def tenants(self) -> tuple[TenantView, ...]: ...

    async def costs(
        self, *, function: str | None, tenant: str | None, since_s: float, by: GroupBy, is_spread: bool
    ) -> CostView: ...


class Documents(Generic[T]):
    """Documents that are made from one view, as bytes with an entity tag, for all browsers together.

    ``view`` is called again only after a change, ``kept_s`` after the last call and after ``REST`` times the time that
    it took: open pages take a bounded part of a core, however many functions there are. ``now`` returns seconds.
    """

    def __init__(
        self,
        pages_of: Mapping[str, Callable[[T], object]],
        view: Callable[[], Awaitable[T]],
        changed: Callable[[], int],
        now: Callable[[], float],
        kept_s: float = KEPT_S,
    ) -> None:
        self._pages_of = pages_of
        self._view = view
        self._changed = changed
        self._now = now
        self._kept_s = kept_s
        self._seen: T | None = None
        self._count = -1
        self._good_until = 0.0
        self._documents: dict[str, tuple[bytes, str]] = {}
        self._viewing = asyncio.Lock()

    async def get(self, name: str) -> tuple[bytes, str]:
        """Returns (JSON, entity tag) of a document."""
        async with self._viewing:
            if self._seen is None or (self._changed() != self._count and self._now() >= self._good_until):
                began, self._count = self._now(), self._changed()
                self._seen = await self._view()
                self._documents = {}
                self._good_until = self._now() + max(self._kept_s, REST * (self._now() - began))
            known = self._documents.get(name)
            if known is None:
                body = encode(self._pages_of[name](self._seen))
                known = self._documents[name] = (body, etag_of(body))
            return known

    def __repr__(self) -> str:
        return f"<Documents {', '.join(self._documents)}>"


class Console:
    """The console of one deployment. ``now`` returns Unix seconds."""

    def __init__(self, service: Shown, sessions: Sessions, now: Callable[[], float]) -> None:
        self._service = service
        self._sessions = sessions
        self._now = now
        self._documents = Documents(
            {
                "overview": lambda view: pages.overview(view, now()),
                "accelerators": pages.accelerators,
                "waiting": pages.waiting,
                "tenants": lambda view: pages.tenants(service.tenants()),
            },
            lambda: service.view_in_slices(),
            lambda: service.changed,
            now,
        )
        self._costs = Documents(
            {"cost": lambda found: pages.cost(*found)}, self._cost_facts, lambda: service.changed, now, COST_KEPT_S
        )

    def add_to(self, app: FastAPI) -> None:
        """Adds the routes. They are no part of the API's document."""
        for path in PAGES:
            app.add_route(path, self._page, methods=["GET"])
        app.add_route("/console/static/{name:path}", self._static, methods=["GET"])
        app.add_route("/console/session", self._session, methods=["POST"])
        app.add_route("/console/code", self._code, methods=["POST"])
        app.add_route("/console/data/functions/{name}", self._function, methods=["GET"])
        app.add_route("/console/data/{name}", self._document, methods=["GET"])
        app.add_route("/console/{path:path}", self._unknown_page, methods=["GET"])

    # --- pages and files ---

    async def _page(self, request: Request) -> Response:
        return _file(request, SHELL)

    async def _unknown_page(self, request: Request) -> Response:
        return _file(request, SHELL, HTTPStatus.NOT_FOUND)

    async def _static(self, request: Request) -> Response:
        return _file(request, request.path_params["name"])

    # --- access ---

    async def _code(self, request: Request) -> Response:
        """Returns the link for a browser. Needs the token."""
        made = self._sessions.code()
        return _json(ConsoleLinkView(url=f"{self._service.api}/console#code={made.secret}", expires_at=made.expires_at))

    async def _session(self, request: Request) -> Response:
        """Exchanges a code for a session."""
        try:
            given = decode(await request.body(), dict[str, str]).get("code", "")
        except CodecError:
            given = ""
        made = self._sessions.redeem(given)
        if made is None:
            text = "this link was used already, or is older than 15 minutes: `tidegate open` prints a new one"
            return _error(HTTPStatus.FORBIDDEN, "wrong_code", text)
        return _json({"session": made.secret, "expires_at": made.expires_at})

    # --- data ---

    async def _document(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name == "cost":
            body, tag = await self._costs.get(name)
        elif name in ("overview", "accelerators", "waiting", "tenants"):
            body, tag = await self._documents.get(name)
        else:
            return _error(HTTPStatus.NOT_FOUND, "not_found", f"there is no page {name!r}")
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={"etag": tag, "cache-control": "no-cache"})
        return Response(body, media_type=_JSON, headers={"etag": tag, "cache-control": "no-cache"})

    async def _cost_facts(self) -> tuple[DeploymentView, CostView, CostView]:
        functions, tenants = [
            await self._service.costs(function=None, tenant=None, since_s=COST_S, by=by, is_spread=False)
            for by in (GroupBy.FUNCTION, GroupBy.TENANT)
        ]
        return await self._service.view_in_slices(), functions, tenants

    async def _function(self, request: Request) -> Response:
        """Returns the page of one function. ``since``: seconds back; ``step``: seconds between two points."""
        service, name = self._service, request.path_params["name"]
        since_s, step_s = _seconds(request, since=300, step=1)
        try:
            rollout = service.rollout(name)
        except RefusedError:
            rollout = None
        page = pages.function_page(
            service.function(name, log=False),
            service.explain(name, DECISIONS),
            service.cold_starts(name)[-DECISIONS:],
            service.split(name),
            rollout,
            service.series(name, metric=None, group=None, since_s=since_s, step_s=step_s),
        )
        return _json(page)


def _seconds(request: Request, **defaults: int) -> tuple[int, ...]:
    """Returns query parameters in seconds. Raises InvalidInputError with every fault."""
    found, faults = [], []
    for name, default in defaults.items():
        text = request.query_params.get(name, str(default))
        is_number = text.isascii() and text.isdigit() and len(text) < 7
        found.append(int(text) if is_number else 0)
        if not 1 <= found[-1] <= MAX_SINCE_S:
            faults.append(Fault(name, repr(text), f"whole seconds, 1 to {MAX_SINCE_S}"))
    if faults:
        raise InvalidInputError("console", faults)
    return tuple(found)


def _file(request: Request, name: str, status: HTTPStatus = HTTPStatus.OK) -> Response:
    found = static_file(name)
    if found is None:
        return _error(HTTPStatus.NOT_FOUND, "not_found", "the console has no such file")
    headers = {**_HEADERS, "etag": found.etag}
    if status is HTTPStatus.OK and request.headers.get("if-none-match") == found.etag:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return Response(found.content, status_code=status, media_type=found.media_type, headers=headers)


def _json(record: object, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(encode(record), status_code=status, media_type=_JSON, headers={"cache-control": "no-store"})


def _error(status: HTTPStatus, code: str, message: str) -> Response:
    return _json(ErrorView(error=ErrorDetail(code=code, message=message)), status)
