"""The twin of the SDK for asyncio (docs/use/sdk.md)::

    from tidegate import AsyncTidegate

    async with AsyncTidegate() as tidegate:
        await tidegate.deploy_file("handler.py:Model", latency="200ms", wait=True)
        answers = await asyncio.gather(*(tidegate.invoke("handler", request) for request in requests))

Requests to functions and streams are asynchronous. Short calls of the control API are those of ``Tidegate``, in a
thread: there is one list of them, and a loop is not held up. A call that is cancelled may still be carried out.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import httpx

from tidegate.control.api_client import CALL_S, ApiError, NotRunningError, detail_of, translated
from tidegate.control.sdk import Tidegate, answer_of, body_of, job_pause_s, serves
from tidegate.control.sources import Option
from tidegate.control.views.costs import CostView
from tidegate.control.views.deployment import ConsoleLinkView, DeploymentView, ReloadView, RestartView, TenantView
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
from tidegate.control.views.jobs import JobView
from tidegate.control.views.requests import RolloutAction
from tidegate.records.codec import Lines, decode
from tidegate.records.costs import GroupBy
from tidegate.records.decision import Decision

T = TypeVar("T")
P = ParamSpec("P")


class AsyncTidegate:
    """A client of one deployment, for asyncio. Takes the arguments of ``Tidegate``, and finds the deployment the same
    way when it is first used."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        state: Path | str | None = None,
        gateway: str | None = None,
        certificate: str | None = None,
        authorities: str | None = None,
        awaited_s: float = 0.0,
    ) -> None:
        """``awaited_s``: time to wait for a control process that is yet to come."""
        self._make: Callable[[], Tidegate] = lambda: Tidegate(
            url,
            token,
            state=state,
            gateway=gateway,
            certificate=certificate,
            authorities=authorities,
            awaited_s=awaited_s,
        )
        self._made: Tidegate | None = None
        self._making = asyncio.Lock()
        self._front: httpx.AsyncClient | None = None

    async def connect(self) -> Tidegate:
        """Returns the client of short calls, made at the first call. Raises NotRunningError."""
        async with self._making:
            if self._made is None:
                self._made = await asyncio.to_thread(self._make)
        return self._made

    async def status(self) -> DeploymentView:
        """Returns the whole deployment: workers, accelerators, functions, faults."""
        return await self._call((await self.connect()).status)

    async def console_link(self, function: str | None = None) -> ConsoleLinkView:
        """Returns a link that opens the console, at the page of ``function`` if one is named. It works once."""
        return await self._call((await self.connect()).console_link, function)

    async def list(self) -> tuple[FunctionView, ...]:
        """Returns every deployed function, by name."""
        return await self._call((await self.connect()).list)

    async def function(self, name: str) -> FunctionView:
        """Returns one function. Raises ApiError if it is not deployed."""
        return await self._call((await self.connect()).function, name)

    async def watch(self, name: str) -> AsyncIterator[FunctionView]:
        """Yields the function's status now and after every change."""
        async for line in self._stream(f"/api/v1/functions/{name}/watch", {}):
            yield decode(line, FunctionView)

    async def watch_all(self) -> AsyncIterator[DeploymentView]:
        """Yields the whole deployment now and after every change."""
        async for line in self._stream("/api/v1/watch", {}):
            yield decode(line, DeploymentView)

    async def deploy(
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
        """Deploys a manifest's functions, as ``Tidegate.deploy`` does."""
        client = await self.connect()
        deployed = await self._call(
            client.deploy,
            manifest,
            base=base,
            source=source,
            annotations=annotations,
            origin=origin,
            replace=replace,
            profile=profile,
        )
        return await self._awaited(deployed, wait)

    async def deploy_file(
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
        """Deploys a manifest, a model, or ``file.py:Class``, as ``Tidegate.deploy_file`` does."""
        client = await self.connect()
        deployed = await self._call(
            lambda: client.deploy_file(
                file, name=name, annotations=annotations, wait=False, replace=replace, profile=profile, **options
            )
        )
        return await self._awaited(deployed, wait)

    async def _awaited(self, deployed: DeployView, wait: bool) -> DeployView:
        if wait:
            for function in deployed.functions:
                await self.wait_ready(function.name, function.revision)
        return deployed

    async def wait_ready(self, name: str, revision: str) -> FunctionView:
        """Waits until ``revision`` serves and has been ready. Raises StartFailedError if it cannot start."""
        async for view in self.watch(name):
            if serves(view, revision):
                return view
        raise NotRunningError("the control process ended meanwhile")

    async def traffic(self, name: str) -> SplitView:
        """Returns the part of the function's requests that each revision has."""
        return await self._call((await self.connect()).traffic, name)

    async def set_traffic(
        self,
        name: str,
        split: Mapping[str, float] | None = None,
        *,
        tags: Mapping[str, str] | None = None,
        untag: tuple[str, ...] = (),
        follow: bool = False,
    ) -> SplitView:
        """Sets percents by revision and revisions by tag, as ``Tidegate.set_traffic`` does."""
        client = await self.connect()
        return await self._call(client.set_traffic, name, split, tags=tags, untag=untag, follow=follow)

    async def rollback(self, name: str, to: str | None = None) -> SplitView:
        """Returns the traffic to a kept revision; None: the one that served before."""
        return await self._call((await self.connect()).rollback, name, to)

    async def rollout(self, name: str) -> RolloutView:
        """Returns the rollout under way, or the last one. Raises ApiError if there was none."""
        return await self._call((await self.connect()).rollout, name)

    async def change_rollout(
        self, name: str, action: RolloutAction, *, to: str | None = None, plan: Mapping[str, str] | None = None
    ) -> RolloutView:
        """Begins a rollout by a ``plan``, or acts on the one under way."""
        return await self._call((await self.connect()).change_rollout, name, action, to=to, plan=plan)

    async def resize(
        self,
        name: str,
        *,
        cores: int | None = None,
        max_batch: int | None = None,
        batch_delay: str | None = None,
        reset: bool = False,
    ) -> ResizeView:
        """Changes cores and batches of the ready replicas while they serve, as ``Tidegate.resize`` does."""
        client = await self.connect()
        return await self._call(
            client.resize, name, cores=cores, max_batch=max_batch, batch_delay=batch_delay, reset=reset
        )

    async def delete(self, name: str) -> None:
        """Takes a function out of service; its replicas finish their work and stop."""
        await self._call((await self.connect()).delete, name)

    async def forget(self, name: str) -> ForgottenView:
        """Deletes what the function's policy has learnt of its load, and returns it in words; the function stays."""
        return await self._call((await self.connect()).forget, name)

    async def explain(self, name: str, *, last: int = 5) -> ExplainView:
        """Returns why the function has its number of replicas: plain sentences, and the ``last`` decisions."""
        return await self._call((await self.connect()).explain, name, last=last)

    async def manifest(self, name: str, *, revision: str | None = None) -> ManifestView:
        """Returns the revision that was deployed last, or that one, as a manifest that deploys it again."""
        return await self._call((await self.connect()).manifest, name, revision=revision)

    async def decisions(self, name: str, *, last: int = 100) -> tuple[Decision, ...]:
        """Returns the last decisions, newest last."""
        return await self._call((await self.connect()).decisions, name, last=last)

    async def series(
        self,
        name: str,
        *,
        metric: str | None = None,
        group: str | None = None,
        since_s: float = 300.0,
        step_s: float = 1.0,
    ) -> SeriesView:
        """Returns the time series of the function and its groups over the last ``since_s`` seconds."""
        client = await self.connect()
        return await self._call(client.series, name, metric=metric, group=group, since_s=since_s, step_s=step_s)

    async def cold_starts(self, name: str) -> tuple[ColdStartView, ...]:
        """Returns the last starts of its replicas by phase, newest last."""
        return await self._call((await self.connect()).cold_starts, name)

    async def recording(self, name: str, *, revision: str | None = None) -> AsyncIterator[bytes]:
        """Yields the observations and decisions of a revision, a JSON line at a time, for ``tidegate replay``."""
        query = {} if revision is None else {"revision": revision}
        async for line in self._stream(f"/api/v1/functions/{name}/recording", query):
            yield line + b"\n"

    async def logs(
        self, name: str, *, tail: int = 100, follow: bool = False, replica: str | None = None, source: str = "server"
    ) -> AsyncIterator[dict[str, str]]:
        """Yields the lines that the function's processes wrote: ``replica``, ``source``, ``line``."""
        query = {"tail": str(tail), "follow": str(follow).lower(), "source": source}
        if replica is not None:
            query["replica"] = replica
        async for line in self._stream(f"/api/v1/functions/{name}/logs", query):
            yield decode(line, dict[str, str])

    async def metrics(self) -> str:
        """Returns the metrics of the deployment in Prometheus' text format."""
        return await self._call((await self.connect()).metrics)

    async def restart(self) -> RestartView:
        """Replaces the gateway workers by fresh processes while they serve."""
        return await self._call((await self.connect()).restart)

    async def reload(self) -> ReloadView:
        """Reads settings, accelerators, tenants and the TLS certificate now."""
        return await self._call((await self.connect()).reload)

    async def tenants(self) -> tuple[TenantView, ...]:
        """Returns the tenants in force, with their usage."""
        return await self._call((await self.connect()).tenants)

    async def cost(
        self,
        function: str | None = None,
        *,
        tenant: str | None = None,
        since_s: float = 3600.0,
        by: GroupBy | str = GroupBy.FUNCTION,
        spread: bool = False,
    ) -> CostView:
        """Returns device time and its price over the last ``since_s`` seconds, by ``function``, ``tenant`` or
        ``accelerator``."""
        client = await self.connect()
        return await self._call(client.cost, function, tenant=tenant, since_s=since_s, by=by, spread=spread)

    async def shut_down(self) -> None:
        """Begins the deployment's orderly end and returns."""
        await self._call((await self.connect()).shut_down)

    async def invoke(
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
        client = await self.connect()
        gateway = await self._call(lambda: client.gateway)
        target = path if path is not None else f"/v2/models/{(await self.function(name)).models[0]}/infer"
        sent = {"content-type": "application/json"} | dict(headers or {})
        if self._front is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
            self._front = httpx.AsyncClient(trust_env=False, verify=client.trust(), limits=limits)
        url = f"{gateway}/functions/{name}{target}"
        with translated(gateway):
            response = await self._front.post(url, content=body_of(data), headers=sent, timeout=timeout_s)
        return answer_of(response)

    async def submit(
        self, name: str, data: Any, *, path: str | None = None, headers: Mapping[str, str] | None = None
    ) -> JobView:
        """Sends one request that need not be waited for, and returns its job. Arguments as of ``invoke``. Raises
        InvokeError if it is refused, or if the deployment has no jobs."""
        return await self._call((await self.connect()).submit, name, data, path=path, headers=headers)

    async def job(self, job_id: str, *, headers: Mapping[str, str] | None = None) -> JobView:
        """Returns a job. Raises InvokeError (404) if there is none, or the key in ``headers`` is not its tenant's."""
        return await self._call((await self.connect()).job, job_id, headers=headers)

    async def result(self, job_id: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = 310.0) -> Any:
        """Waits until a job is over and returns its answer as ``invoke`` does. Raises InvokeError, also (202) if it is
        not over in time."""
        begun = time.monotonic()
        while True:
            view = await self.job(job_id, headers=headers)
            if view.is_over:
                return await self._call((await self.connect()).result, job_id, headers=headers)
            await asyncio.sleep(job_pause_s(view, time.monotonic() - begun, timeout_s))

    async def delete_job(self, job_id: str, *, headers: Mapping[str, str] | None = None) -> None:
        """Deletes a job and its answer; work under way is cancelled. Raises InvokeError."""
        await self._call((await self.connect()).delete_job, job_id, headers=headers)

    async def close(self) -> None:
        """Closes the connections; the deployment goes on."""
        if self._front is not None:
            await self._front.aclose()
            self._front = None
        if self._made is not None:
            self._made.close()
            self._made = None

    async def __aenter__(self) -> "AsyncTidegate":
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(call, *args, **kwargs)

    async def _stream(self, path: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        """Yields the lines of a stream, over a connection of its own that ends with it."""
        client = await self.connect()
        limit = httpx.Timeout(CALL_S, read=None)
        async with client.for_streams() as http:
            with translated(client.url):
                async with http.stream("GET", path, params=dict(query), timeout=limit) as response:
                    if not response.is_success:
                        await response.aread()
                        raise ApiError(response.status_code, detail_of(response))
                    lines = Lines()
                    async for piece in response.aiter_bytes():
                        for line in lines.push(piece):
                            yield line

    def __repr__(self) -> str:
        return f"<AsyncTidegate {'not connected' if self._made is None else self._made.url}>"
