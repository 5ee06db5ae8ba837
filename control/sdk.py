"""The Python client of a running deployment (docs/use/sdk.md)::

    from tidegate import Tidegate

    with Tidegate() as tidegate:
        tidegate.deploy_file("handler.py:Model", latency="200ms", max_scale=2, wait=True)
        print(tidegate.invoke("handler", {"inputs": [...]}))
        print(tidegate.explain("handler").summary[0])

``AsyncTidegate`` (``async_sdk.py``) is its twin for asyncio.
"""

import json
import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode

import httpx

from tidegate.control.api_client import CALL_S, ApiClient, ApiError, NotRunningError, translated
from tidegate.control.sources import Option, faults_by_argument, flags_of, read_measured, read_source, renamed
from tidegate.control.state.directory import Holder, StateDirectory
from tidegate.control.state.finding import find_directory
from tidegate.control.views.costs import CostView
from tidegate.control.views.deployment import ConsoleLinkView, DeploymentView, ReloadView, RestartView, TenantView
from tidegate.control.views.errors import ErrorDetail
from tidegate.control.views.functions import (
    ColdStartView,
    DeployView,
    ExplainView,
    ForgottenView,
    FunctionState,
    FunctionView,
    ManifestView,
    ResizeView,
    RolloutView,
    SeriesView,
    SplitView,
)
from tidegate.control.views.jobs import JobView
from tidegate.control.views.requests import (
    DeployRequest,
    ResizeRequest,
    RollbackRequest,
    RolloutAction,
    RolloutRequest,
    SplitRequest,
)
from tidegate.control.workers.certificates import client_context
from tidegate.errors import TidegateError
from tidegate.records.codec import decode, encode
from tidegate.records.costs import GroupBy
from tidegate.records.decision import Decision

__all__ = ["ApiError", "InvokeError", "NotRunningError", "StartFailedError", "Tidegate"]

PATIENCE_S = 5.0
"""Waiting time for a control process that runs and does not answer yet."""
RESTART_S = 600.0
"""Time limit of a restart: workers are replaced one after the other, each in about half a second; there may be
hundreds."""
LOOK_AGAIN_S = 0.05
JOB_LOOK_S = (0.2, 10.0)
"""Shortest and longest interval at which the end of a job is looked for."""
ASYNC = {"prefer": "respond-async"}
"""Makes a request a job (RFC 7240)."""


class StartFailedError(TidegateError):
    """A revision did not become ready; the message has the server's own last lines."""


def words_of(body: bytes) -> str:
    """Returns the code and the message of an error's body behind a status; a body of another form as it is."""
    try:
        document = json.loads(body)
        error = document["error"]
        said = {**document, "message": error} if isinstance(error, str) else error  # A text: V2
        code = said.get("code") or said.get("type")
        return f", {code}: {said['message']}" if code else f": {said['message']}"
    except (ValueError, LookupError, TypeError, AttributeError):
        return f": {body.decode(errors='replace')[:2000]}"


class InvokeError(TidegateError):
    """The function answered with an error status."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body = body
        super().__init__(f"status {status}{words_of(body)}")


class Tidegate:
    """A client of one deployment.

    Without arguments it is the deployment that the command line finds too: by ``$TIDEGATE_STATE``, the
    ``tidegate.toml`` of the current folder, or the user's default. ``state`` names another state directory; ``url`` and
    ``token`` reach a control API without one. ``gateway`` is the base URL of the gateway, requested when needed.

    Of a gateway with TLS exactly its own certificate is trusted, or, with ``authorities`` (a PEM file), each
    certificate that they sign. Raises NotRunningError if no control process runs there. Methods may be called by
    several threads.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        state: Path | str | None = None,
        gateway: str | None = None,
        certificate: str | None = None,
        authorities: str | None = None,
        patience_s: float = PATIENCE_S,
        awaited_s: float = 0.0,
    ) -> None:
        """``awaited_s``: time to wait for a control process that is yet to come; ``patience_s``: for one that runs and
        does not answer yet."""
        if (url is None) != (token is None) or (url is not None and state is not None):
            raise TypeError("Tidegate takes url and token together, or state, or none of them")
        if url is None or token is None:
            directory = StateDirectory(find_directory(os.environ, Path.cwd(), given=state))
            holder, token = _awaited(directory, patience_s, awaited_s)
            assert holder.api is not None
            url, gateway, certificate = holder.api, gateway or holder.gateway, certificate or holder.certificate
        self.url = url
        self._gateway = gateway
        self._certificate = certificate
        self._authorities = authorities
        self._api = ApiClient(url, token)

    @classmethod
    def local(
        cls,
        directory: Path | str | None = None,
        *,
        patience_s: float = PATIENCE_S,
        awaited_s: float = 0.0,
        authorities: str | None = None,
    ) -> "Tidegate":
        """Returns a client of the deployment whose state is in ``directory``: ``Tidegate(state=directory)``."""
        return cls(state=directory, patience_s=patience_s, awaited_s=awaited_s, authorities=authorities)

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
        """Returns the whole deployment: workers, accelerators, functions, faults."""
        return self._api.read("GET", "/api/v1/status", DeploymentView)

    def console_link(self, function: str | None = None) -> ConsoleLinkView:
        """Returns a link that opens the console, at the page of ``function`` if one is named. It works once."""
        found = self._api.read("POST", "/console/code", ConsoleLinkView)
        page = "/console" if function is None else f"/console/functions/{quote(function, safe='')}"
        return replace(found, url=found.url.replace("/console#", f"{page}#", 1))

    def list(self) -> tuple[FunctionView, ...]:
        """Returns every deployed function, by name."""
        return self._api.read("GET", "/api/v1/functions", tuple[FunctionView, ...])

    def function(self, name: str) -> FunctionView:
        """Returns one function: state, traffic, revisions, replicas. Raises ApiError if it is not deployed."""
        return self._api.read("GET", f"/api/v1/functions/{name}", FunctionView)

    def watch(self, name: str) -> Iterator[FunctionView]:
        """Yields the function's status now and after every change."""
        return self._api.lines(f"/api/v1/functions/{name}/watch", {}, FunctionView)

    def watch_all(self) -> Iterator[DeploymentView]:
        """Yields the whole deployment now and after every change."""
        return self._api.lines("/api/v1/watch", {}, DeploymentView)

    def deploy(
        self,
        manifest: str,
        *,
        base: Path | str,
        source: str = "manifest",
        annotations: Mapping[str, str] | None = None,
        wait: bool = False,
        origin: Path | str | None = None,
        replace: bool = False,
        profile: Path | str | None = None,
    ) -> DeployView:
        """Deploys a manifest's functions. ``base``: folder of its relative paths; ``annotations`` take precedence over
        the text. ``origin``: the file that it stands for; a function that was deployed from another one is an ApiError
        with the code ``other_source``, unless ``replace``.

        ``wait``: returns when each is ready; raises StartFailedError if one cannot start. ``profile``: a file that
        ``tidegate profile`` wrote; first decisions go by it.
        """
        request = DeployRequest(
            manifest=manifest,
            base=str(Path(base).absolute()),
            source=source,
            flags=dict(annotations or {}),
            origin=None if origin is None else str(Path(origin).resolve()),
            replace=replace,
            measured=() if profile is None else read_measured(Path(profile)),
        )
        deployed = self._api.read("POST", "/api/v1/functions", DeployView, encode(request))
        if wait:
            for function in deployed.functions:
                self.wait_ready(function.name, function.revision)
        return deployed

    def deploy_file(
        self,
        file: Path | str,
        *,
        name: str | None = None,
        annotations: Mapping[str, Option] | None = None,
        wait: bool = False,
        replace: bool = False,
        profile: Path | str | None = None,
        **options: Option,
    ) -> DeployView:
        """Deploys a manifest, a model, or a Python class as ``file.py:Class`` (``file.py`` with only one).

        ``options`` are annotations with underscores: ``latency="200ms"``, ``max_scale=2``, ``slo="p99=200ms"``,
        ``scale_to_zero_after=timedelta(seconds=30)``. ``annotations`` are the same by their own keys, also
        ``policy.NAME``. ``name`` names the function of a model file or class. ``wait``: returns when it is ready;
        raises StartFailedError if it cannot start. ``replace`` and ``profile`` as for :meth:`deploy`. Raises
        InvalidInputError or ApiError with every fault.
        """
        flags, labels = flags_of(annotations or {}, options)
        with faults_by_argument(labels):
            text, base, source = read_source(str(file), name, flags)
        try:
            return self.deploy(
                text,
                base=base,
                source=source,
                annotations=flags,
                wait=wait,
                origin=source,
                replace=replace,
                profile=profile,
            )
        except ApiError as error:
            raise ApiError(error.status, _by_argument(error.detail, labels)) from error.__cause__

    def wait_ready(
        self, name: str, revision: str, *, on_view: Callable[[FunctionView], None] = lambda view: None
    ) -> FunctionView:
        """Waits until ``revision`` serves and has been ready, or is ready for its part of a rollout. ``on_view`` is
        called with every change meanwhile. Raises StartFailedError if its start failed or it finds no room."""
        for view in self.watch(name):
            on_view(view)
            if serves(view, revision):
                return view
        raise NotRunningError("the control process ended meanwhile")

    def traffic(self, name: str) -> SplitView:
        """Returns the part of the function's requests that each revision has."""
        return self._api.read("GET", f"/api/v1/functions/{name}/traffic", SplitView)

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
        return self._api.read("PUT", f"/api/v1/functions/{name}/traffic", SplitView, encode(request))

    def rollback(self, name: str, to: str | None = None) -> SplitView:
        """Returns the traffic to a kept revision; None: the one that served before."""
        return self._api.read("POST", f"/api/v1/functions/{name}/rollback", SplitView, encode(RollbackRequest(to=to)))

    def rollout(self, name: str) -> RolloutView:
        """Returns the rollout under way, or the last one. Raises ApiError if there was none."""
        return self._api.read("GET", f"/api/v1/functions/{name}/rollout", RolloutView)

    def change_rollout(
        self, name: str, action: RolloutAction, *, to: str | None = None, plan: Mapping[str, str] | None = None
    ) -> RolloutView:
        """Begins a rollout by a ``plan`` (``{"canary-steps": "1,5,25"}``), or acts on the one under way."""
        request = RolloutRequest(action=action, to=to, plan=dict(plan or {}))
        return self._api.read("POST", f"/api/v1/functions/{name}/rollout", RolloutView, encode(request))

    def resize(
        self,
        name: str,
        *,
        cores: int | None = None,
        max_batch: int | None = None,
        batch_delay: str | None = None,
        reset: bool = False,
    ) -> ResizeView:
        """Changes cores, the largest batch and the batch delay (``"5ms"``) of the ready replicas while they serve,
        until the next deploy; ``reset``: back to what the function says. Raises ApiError with every fault, or with the
        reason if no replica can follow."""
        request = ResizeRequest(cores=cores, max_batch=max_batch, batch_delay=batch_delay, reset=reset)
        return self._api.read("POST", f"/api/v1/functions/{name}/resize", ResizeView, encode(request))

    def delete(self, name: str) -> None:
        """Takes a function out of service; its replicas finish their work and stop."""
        self._api.call("DELETE", f"/api/v1/functions/{name}")

    def forget(self, name: str) -> ForgottenView:
        """Deletes what the function's policy has learnt of its load, and returns it in words; the function stays."""
        return self._api.read("DELETE", f"/api/v1/functions/{name}/learnt", ForgottenView)

    def explain(self, name: str, *, last: int = 5) -> ExplainView:
        """Returns why the function has its number of replicas: plain sentences, and the ``last`` decisions."""
        return self._api.read("GET", f"/api/v1/functions/{name}/explain?last={last}", ExplainView)

    def manifest(self, name: str, *, revision: str | None = None) -> ManifestView:
        """Returns the revision that was deployed last, or that one, as a manifest that deploys it again."""
        query = "" if revision is None else "?" + urlencode({"revision": revision})
        return self._api.read("GET", f"/api/v1/functions/{name}/manifest{query}", ManifestView)

    def decisions(self, name: str, *, last: int = 100) -> tuple[Decision, ...]:
        """Returns the last decisions, newest last."""
        return self._api.read("GET", f"/api/v1/functions/{name}/decisions?last={last}", tuple[Decision, ...])

    def recording(self, name: str, *, revision: str | None = None) -> Iterator[bytes]:
        """Yields the observations and decisions of the serving revision, or of that one, in pieces of JSON lines for
        ``tidegate replay``."""
        query = {} if revision is None else {"revision": revision}
        return self._api.pieces(f"/api/v1/functions/{name}/recording", query)

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
        return self._api.read("GET", f"/api/v1/functions/{name}/series?{query}", SeriesView)

    def cold_starts(self, name: str) -> tuple[ColdStartView, ...]:
        """Returns the last starts of its replicas by phase, newest last."""
        return self._api.read("GET", f"/api/v1/functions/{name}/cold-starts", tuple[ColdStartView, ...])

    def logs(
        self, name: str, *, tail: int = 100, follow: bool = False, replica: str | None = None, source: str = "server"
    ) -> Iterator[dict[str, str]]:
        """Yields the lines that the function's processes wrote: ``replica``, ``source``, ``line``."""
        query = {"tail": str(tail), "follow": str(follow).lower(), "source": source}
        if replica is not None:
            query["replica"] = replica
        return self._api.lines(f"/api/v1/functions/{name}/logs", query, dict[str, str])

    def metrics(self) -> str:
        """Returns the metrics of the deployment in Prometheus' text format."""
        return self._api.call("GET", "/metrics").decode()

    def restart(self) -> RestartView:
        """Replaces the gateway workers by fresh processes while they serve; returns when the fresh ones serve."""
        return decode(self._api.call("POST", "/api/v1/restart", timeout_s=RESTART_S), RestartView)

    def tenants(self) -> tuple[TenantView, ...]:
        """Returns the tenants in force, with their usage."""
        return self._api.read("GET", "/api/v1/tenants", tuple[TenantView, ...])

    def cost(
        self,
        function: str | None = None,
        *,
        tenant: str | None = None,
        since_s: float = 3600.0,
        by: GroupBy | str = GroupBy.FUNCTION,
        spread: bool = False,
    ) -> CostView:
        """Returns device time and its price over the last ``since_s`` seconds, by ``function``, ``tenant`` or
        ``accelerator``. ``spread`` divides idle time and starts among the tenants."""
        given = {"function": function, "tenant": tenant, "since": since_s, "by": by, "spread": spread}
        query = urlencode({key: value for key, value in given.items() if value is not None})
        return self._api.read("GET", f"/api/v1/cost?{query}", CostView)

    def reload(self) -> ReloadView:
        """Reads settings, accelerators, tenants and the TLS certificate now."""
        return self._api.read("POST", "/api/v1/reload", ReloadView)

    def shut_down(self) -> None:
        """Begins the deployment's orderly end and returns."""
        self._api.call("POST", "/api/v1/shutdown")

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
        target = path if path is not None else f"/v2/models/{self.function(name).models[0]}/infer"
        body, sent = body_of(data), {"content-type": "application/json"} | dict(headers or {})
        with translated(self.gateway), self._to_front_door(timeout_s) as client:
            response = client.post(f"{self.gateway}/functions/{name}{target}", content=body, headers=sent)
        return answer_of(response)

    def submit(
        self, name: str, data: Any, *, path: str | None = None, headers: Mapping[str, str] | None = None
    ) -> JobView:
        """Sends one request that need not be waited for, and returns its job. Arguments as of ``invoke``. Raises
        InvokeError if it is refused, or if the deployment has no jobs."""
        target = path if path is not None else f"/v2/models/{self.function(name).models[0]}/infer"
        sent = {"content-type": "application/json"} | dict(headers or {}) | ASYNC
        with translated(self.gateway), self._to_front_door(CALL_S) as client:
            return job_of(client.post(f"{self.gateway}/functions/{name}{target}", content=body_of(data), headers=sent))

    def job(self, job_id: str, *, headers: Mapping[str, str] | None = None) -> JobView:
        """Returns a job. Raises InvokeError (404) if there is none, or the key in ``headers`` is not its tenant's."""
        return job_of(self._of_job("GET", job_id, headers))

    def result(self, job_id: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = 310.0) -> Any:
        """Waits until a job is over and returns its answer as ``invoke`` does. Raises InvokeError, also (202) if it is
        not over in time."""
        begun = time.monotonic()
        while not (view := self.job(job_id, headers=headers)).is_over:
            time.sleep(job_pause_s(view, time.monotonic() - begun, timeout_s))
        return answer_of(self._of_job("GET", f"{job_id}/result", headers))

    def delete_job(self, job_id: str, *, headers: Mapping[str, str] | None = None) -> None:
        """Deletes a job and its answer; work under way is cancelled. Raises InvokeError."""
        answer_of(self._of_job("DELETE", job_id, headers))

    def _of_job(self, method: str, path: str, headers: Mapping[str, str] | None) -> httpx.Response:
        with translated(self.gateway), self._to_front_door(CALL_S) as client:
            return client.request(method, f"{self.gateway}/jobs/{path}", headers=dict(headers or {}))

    def for_streams(self) -> httpx.AsyncClient:
        """Returns an asynchronous client of the control API, for ``AsyncTidegate``."""
        return self._api.for_asyncio()

    def _to_front_door(self, timeout_s: float) -> httpx.Client:
        return httpx.Client(timeout=timeout_s, trust_env=False, verify=self.trust())

    def close(self) -> None:
        """Closes the connections; the deployment goes on."""
        self._api.close()

    def __enter__(self) -> "Tidegate":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Tidegate {self.url}>"


def serves(view: FunctionView, revision: str) -> bool:
    """Returns whether ``revision`` serves and has been ready, or is ready for its part of a rollout. Raises
    StartFailedError if its start failed or it finds no room."""
    found = next((each for each in view.revisions if each.id == revision), None)
    if found is None:
        raise StartFailedError(f"{revision} was replaced or deleted meanwhile")
    if view.is_pipeline:
        if view.state in (FunctionState.FAILED, FunctionState.UNPLACED):
            raise StartFailedError(f"{revision}: {view.message}")
        return view.revision == revision and view.state in (FunctionState.READY, FunctionState.ASLEEP)
    if found.failure is not None and found.ready == 0:
        raise StartFailedError(f"{revision}: {found.failure.reason}")
    if found.stuck is not None:
        raise StartFailedError(f"{revision}: {found.stuck}")
    sleeping = view.state is FunctionState.ASLEEP and not found.starting and not found.unplaced
    if view.revision == revision and (found.ready or sleeping):
        return True
    return bool(found.ready and (view.is_pinned or view.rollout is not None))  # it serves its part


def body_of(data: Any) -> bytes:
    """Returns bytes as they are, anything else as JSON; arrays and numbers of numpy become lists and numbers."""
    return data if isinstance(data, bytes) else json.dumps(data, default=_plain).encode()


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"invoke: {type(value).__name__} cannot be sent as JSON; send bytes, or lists, numbers and texts")


def answer_of(response: httpx.Response) -> Any:
    """Returns the answer of a function: parsed if it is JSON, else bytes. Raises InvokeError."""
    if not response.is_success:
        raise InvokeError(response.status_code, response.content)
    is_json = response.headers.get("content-type", "").startswith("application/json")
    return response.json() if is_json else response.content


def job_of(response: httpx.Response) -> JobView:
    """Returns the job of a document. Raises InvokeError for any other answer."""
    if response.is_success and "location" not in response.headers and response.request.method == "POST":
        raise InvokeError(response.status_code, b"the gateway answered at once: it has no jobs (`jobs.limit`)")
    if not response.is_success:
        raise InvokeError(response.status_code, response.content)
    return decode(response.content, JobView)


def job_pause_s(view: JobView, waited_s: float, timeout_s: float) -> float:
    """Returns the seconds after which a job that is not over is looked at again: a tenth of the time so far. Raises
    InvokeError (202) once ``timeout_s`` has passed."""
    if waited_s >= timeout_s:
        raise InvokeError(202, f"job {view.id} is {view.state} after {timeout_s:g} s".encode())
    return min(JOB_LOOK_S[1], max(JOB_LOOK_S[0], waited_s / 10), timeout_s - waited_s)


def _by_argument(detail: ErrorDetail, labels: Mapping[str, str]) -> ErrorDetail:
    faults = tuple(
        replace(each, where=renamed(each.where, labels), allowed=renamed(each.allowed, labels))
        for each in detail.faults
    )
    return replace(detail, message=renamed(detail.message, labels), faults=faults)


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
