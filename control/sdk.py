"""A small Python client of a running deployment.

::

    from tidegate.control.sdk import Tidegate

    with Tidegate.local() as tidegate:
        tidegate.deploy_file("examples/echo/function.yaml", wait=True)
        print(tidegate.invoke("echo", {"inputs": [...]}))
        print(tidegate.explain("echo").text)
"""

import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import urlencode

import httpx

from tidegate.control.state.directory import Holder, StateDirectory, default_directory
from tidegate.control.views.deployment import DeploymentView, ReloadView, RestartView, TenantView
from tidegate.control.views.errors import ErrorDetail, ErrorView
from tidegate.control.views.functions import (
    ColdStartView,
    DeployView,
    ExplainView,
    FunctionState,
    FunctionView,
    RolloutView,
    SeriesView,
    SplitView,
)
from tidegate.control.views.requests import DeployRequest, RollbackRequest, RolloutAction, RolloutRequest, SplitRequest
from tidegate.control.workers.certificates import client_context
from tidegate.errors import TidegateError
from tidegate.records.codec import CodecError, Lines, decode, encode
from tidegate.records.decision import Decision

T = TypeVar("T")

CALL_S = 30.0
PATIENCE_S = 5.0
"""Waiting time for a control process that runs and does not answer yet."""
RESTART_S = 600.0
"""Time limit of a restart: workers are replaced one after the other, each in about half a second; there may be
hundreds."""
LOOK_AGAIN_S = 0.05


class ApiError(TidegateError):
    """The control process refused the request; ``detail`` holds its code and, for a manifest, every fault."""

    def __init__(self, status: int, detail: ErrorDetail) -> None:
        self.status = status
        self.detail = detail
        super().__init__(detail.message)


class NotRunningError(TidegateError):
    """No control process answers; the message says which directory was searched."""


class StartFailedError(TidegateError):
    """A revision did not become ready; the message has the server's own last lines."""


class InvokeError(TidegateError):
    """The function answered with an error status."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body = body
        super().__init__(f"status {status}: {body.decode(errors='replace')[:2000]}")


class Tidegate:
    """A client of one deployment. ``url``: of the control API; ``gateway``: base URL of the gateway, requested when
    needed.

    Of a gateway with TLS exactly its own certificate is trusted, or, with ``authorities`` (a PEM file), each
    certificate that they sign.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        gateway: str | None = None,
        certificate: str | None = None,
        authorities: str | None = None,
    ) -> None:
        self.url = url
        self._gateway = gateway
        self._certificate = certificate
        self._authorities = authorities
        self._client = httpx.Client(
            base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=CALL_S, trust_env=False
        )

    @classmethod
    def local(
        cls,
        directory: Path | str | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        patience_s: float = PATIENCE_S,
        awaited_s: float = 0.0,
        authorities: str | None = None,
    ) -> "Tidegate":
        """Returns a client of the deployment whose state is in ``directory`` (default: the user's). Raises
        NotRunningError: after ``awaited_s`` if no control process runs, after ``patience_s`` if one is still
        starting."""
        root = Path(directory) if directory is not None else default_directory(environ or {})
        state = StateDirectory(root)
        holder, token = _awaited(state, patience_s, awaited_s)
        assert holder.api is not None
        return cls(holder.api, token, gateway=holder.gateway, certificate=holder.certificate, authorities=authorities)

    @property
    def gateway(self) -> str:
        """Base URL of the gateway."""
        if self._gateway is None:
            status = self.status()
            self._gateway, self._certificate = status.gateway, status.certificate
        return self._gateway

    def trust(self, make: Callable[[int], ssl.SSLContext] = ssl.SSLContext) -> ssl.SSLContext:
        """Returns the TLS context for requests to :attr:`gateway`. Raises TrustError."""
        is_https = self.gateway.startswith("https:")
        certificate = self._certificate if is_https else None
        return client_context(certificate, self._authorities, make) if is_https else make(ssl.PROTOCOL_TLS_CLIENT)

    def status(self) -> DeploymentView:
        return self._read("GET", "/api/v1/status", DeploymentView)

    def list(self) -> tuple[FunctionView, ...]:
        return self._read("GET", "/api/v1/functions", tuple[FunctionView, ...])

    def function(self, name: str) -> FunctionView:
        return self._read("GET", f"/api/v1/functions/{name}", FunctionView)

    def watch(self, name: str) -> Iterator[FunctionView]:
        """Yields the function's status now and after every change."""
        return self._stream(f"/api/v1/functions/{name}/watch", {}, FunctionView)

    def watch_all(self) -> Iterator[DeploymentView]:
        return self._stream("/api/v1/watch", {}, DeploymentView)

    def deploy(
        self,
        manifest: str,
        *,
        base: Path | str,
        source: str = "manifest",
        annotations: Mapping[str, str] | None = None,
        wait: bool = False,
    ) -> DeployView:
        """Deploys a manifest's functions. ``base``: folder of its relative paths; ``annotations`` take precedence over
        the text.

        ``wait``: returns when each is ready; raises StartFailedError if one cannot start.
        """
        request = DeployRequest(
            manifest=manifest, base=str(Path(base).absolute()), source=source, flags=dict(annotations or {})
        )
        deployed = self._read("POST", "/api/v1/functions", DeployView, encode(request))
        if wait:
            for function in deployed.functions:
                self.wait_ready(function.name, function.revision)
        return deployed

    def deploy_file(
        self, path: Path | str, *, annotations: Mapping[str, str] | None = None, wait: bool = False
    ) -> DeployView:
        """Deploys a manifest in a file."""
        file = Path(path)
        return self.deploy(
            file.read_text(encoding="utf-8"),
            base=file.absolute().parent,
            source=str(path),
            annotations=annotations,
            wait=wait,
        )

    def wait_ready(self, name: str, revision: str) -> FunctionView:
        """Waits until ``revision`` serves and has been ready, or is ready for its part of a rollout. Raises
        StartFailedError if its start failed or it finds no room."""
        for view in self.watch(name):
            found = next((each for each in view.revisions if each.id == revision), None)
            if found is None:
                raise StartFailedError(f"{revision} was replaced or deleted meanwhile")
            if found.failure is not None and found.ready == 0:
                raise StartFailedError(f"{revision}: {found.failure.reason}")
            if found.stuck is not None:
                raise StartFailedError(f"{revision}: {found.stuck}")
            sleeping = view.state is FunctionState.ASLEEP and not found.starting and not found.unplaced
            if view.revision == revision and (found.ready or sleeping):
                return view
            if found.ready and (view.is_pinned or view.rollout is not None):
                return view  # it serves its part
        raise NotRunningError("the control process ended meanwhile")

    def traffic(self, name: str) -> SplitView:
        """Returns the part of the function's requests that each revision has."""
        return self._read("GET", f"/api/v1/functions/{name}/traffic", SplitView)

    def set_traffic(
        self,
        name: str,
        split: Mapping[str, float] | None = None,
        *,
        tags: Mapping[str, str] | None = None,
        untag: tuple[str, ...] = (),
        follow: bool = False,
    ) -> SplitView:
        """Sets percents by revision (id, number or tag) with a sum of 100, and revisions by tag. ``follow``: ends a
        split by hand; the newest revision takes over."""
        request = SplitRequest(split=dict(split or {}), follow=follow, tags=dict(tags or {}), untag=untag)
        return self._read("PUT", f"/api/v1/functions/{name}/traffic", SplitView, encode(request))

    def rollback(self, name: str, to: str | None = None) -> SplitView:
        """Returns the traffic to a kept revision; None: the one that served before."""
        return self._read("POST", f"/api/v1/functions/{name}/rollback", SplitView, encode(RollbackRequest(to=to)))

    def rollout(self, name: str) -> RolloutView:
        """Returns the rollout under way, or the last one. Raises ApiError if there was none."""
        return self._read("GET", f"/api/v1/functions/{name}/rollout", RolloutView)

    def change_rollout(
        self, name: str, action: RolloutAction, *, to: str | None = None, plan: Mapping[str, str] | None = None
    ) -> RolloutView:
        """Begins a rollout by a ``plan`` (``{"canary-steps": "1,5,25"}``), or acts on the one under way."""
        request = RolloutRequest(action=action, to=to, plan=dict(plan or {}))
        return self._read("POST", f"/api/v1/functions/{name}/rollout", RolloutView, encode(request))

    def delete(self, name: str) -> None:
        self._call("DELETE", f"/api/v1/functions/{name}")

    def explain(self, name: str, *, last: int = 5) -> ExplainView:
        return self._read("GET", f"/api/v1/functions/{name}/explain?last={last}", ExplainView)

    def decisions(self, name: str, *, last: int = 100) -> tuple[Decision, ...]:
        return self._read("GET", f"/api/v1/functions/{name}/decisions?last={last}", tuple[Decision, ...])

    def recording(self, name: str, *, revision: str | None = None) -> Iterator[bytes]:
        """Yields the observations and decisions of the serving revision, or of that one, in pieces of JSON lines for
        ``tidegate replay``."""
        query = {} if revision is None else {"revision": revision}
        with (
            _translated(self.url),
            self._client.stream("GET", f"/api/v1/functions/{name}/recording", params=query) as response,
        ):
            if not response.is_success:
                response.read()
                raise ApiError(response.status_code, _detail(response))
            yield from response.iter_bytes()

    def series(
        self,
        name: str,
        *,
        metric: str | None = None,
        group: str | None = None,
        since_s: float = 300.0,
        step_s: float = 1.0,
    ) -> SeriesView:
        """Returns the time series of the function and its groups over the last ``since_s`` seconds; all metrics and
        groups by default."""
        given = {"metric": metric, "group": group, "since": since_s, "step": step_s}
        query = urlencode({key: value for key, value in given.items() if value is not None})
        return self._read("GET", f"/api/v1/functions/{name}/series?{query}", SeriesView)

    def cold_starts(self, name: str) -> tuple[ColdStartView, ...]:
        return self._read("GET", f"/api/v1/functions/{name}/cold-starts", tuple[ColdStartView, ...])

    def logs(
        self, name: str, *, tail: int = 100, follow: bool = False, replica: str | None = None, source: str = "server"
    ) -> Iterator[dict[str, str]]:
        """Yields the lines that the function's processes wrote: ``replica``, ``source``, ``line``."""
        query = {"tail": str(tail), "follow": str(follow).lower(), "source": source}
        if replica is not None:
            query["replica"] = replica
        return self._stream(f"/api/v1/functions/{name}/logs", query, dict[str, str])

    def metrics(self) -> str:
        return self._call("GET", "/metrics").decode()

    def restart(self) -> RestartView:
        """Replaces the gateway workers by fresh processes while they serve; returns when the fresh ones serve."""
        return decode(self._call("POST", "/api/v1/restart", timeout_s=RESTART_S), RestartView)

    def tenants(self) -> tuple[TenantView, ...]:
        """Returns the tenants in force, with their usage."""
        return self._read("GET", "/api/v1/tenants", tuple[TenantView, ...])

    def reload(self) -> ReloadView:
        """Reads settings, accelerators, tenants and the TLS certificate now."""
        return self._read("POST", "/api/v1/reload", ReloadView)

    def shut_down(self) -> None:
        """Begins the deployment's orderly end and returns."""
        self._call("POST", "/api/v1/shutdown")

    def invoke(
        self,
        name: str,
        data: Any,
        *,
        path: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 310.0,
    ) -> Any:
        """Sends one request and returns the answer: parsed if it is JSON, else bytes. Raises InvokeError.

        ``data``: bytes as they are, anything else as JSON. ``path``: on the model server; default: the V2 inference
        route of the function's first model.
        """
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        target = path if path is not None else f"/v2/models/{self.function(name).models[0]}/infer"
        sent = {"content-type": "application/json"} | dict(headers or {})
        with _translated(self.gateway), self._to_front_door(timeout_s) as client:
            response = client.post(f"{self.gateway}/functions/{name}{target}", content=body, headers=sent)
        if not response.is_success:
            raise InvokeError(response.status_code, response.content)
        is_json = response.headers.get("content-type", "").startswith("application/json")
        return response.json() if is_json else response.content

    def _to_front_door(self, timeout_s: float) -> httpx.Client:
        return httpx.Client(timeout=timeout_s, trust_env=False, verify=self.trust())

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> "Tidegate":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def _read(self, method: str, path: str, kind: type[T], body: bytes | None = None) -> T:
        return decode(self._call(method, path, body), kind)

    def _call(self, method: str, path: str, body: bytes | None = None, timeout_s: float = CALL_S) -> bytes:
        headers = {"content-type": "application/json"} if body is not None else {}
        with _translated(self.url):
            response = self._client.request(method, path, content=body, headers=headers, timeout=timeout_s)
        if not response.is_success:
            raise ApiError(response.status_code, _detail(response))
        return response.content

    def _stream(self, path: str, query: Mapping[str, str], kind: type[T]) -> Iterator[T]:
        limit = httpx.Timeout(CALL_S, read=None)
        with (
            _translated(self.url),
            self._client.stream("GET", path, params=dict(query), timeout=limit) as response,
        ):
            if not response.is_success:
                response.read()
                raise ApiError(response.status_code, _detail(response))
            lines = Lines()
            for piece in response.iter_bytes():
                for line in lines.push(piece):
                    yield decode(line, kind)

    def __repr__(self) -> str:
        return f"<Tidegate {self.url}>"


def _awaited(state: StateDirectory, patience_s: float, awaited_s: float) -> tuple[Holder, str]:
    """Returns the holder of the directory, with its address, and the API's token."""
    began = time.monotonic()
    while True:
        holder, token = state.holder(), state.read_token()
        if holder is not None and holder.api is not None and token is not None:
            return holder, token
        waited_s = time.monotonic() - began
        if holder is None and waited_s >= awaited_s:
            raise NotRunningError(f"no control process runs on {state.root}; start one with `tidegate up`")
        if holder is not None and waited_s >= max(patience_s, awaited_s):
            raise NotRunningError(f"the control process {holder.pid} on {state.root} is starting or leaving")
        time.sleep(LOOK_AGAIN_S)


@contextmanager
def _translated(url: str) -> Iterator[None]:
    try:
        yield
    except httpx.HTTPError as error:
        raise NotRunningError(f"{url} does not answer: {str(error) or type(error).__name__}") from error


def _detail(response: httpx.Response) -> ErrorDetail:
    try:
        return decode(response.content, ErrorView).error
    except CodecError:
        return ErrorDetail(code="unreadable", message=f"status {response.status_code}: {response.text[:500]}")
