"""A deployment under experiment: real `tidegate up`, real processes and sockets, loads against its front door.

Loads run in this process; the function is looked at twice a second meanwhile.
"""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvloop

from benchmarks.autoscaling.timeline import Look, Run
from benchmarks.deployment import Deployment, running
from tidegate.control.views.functions import FunctionView
from tidegate.loadgen.clients.bodies import v2_body
from tidegate.loadgen.clients.call import Request
from tidegate.loadgen.clients.client_health import report_of
from tidegate.loadgen.clients.outcomes import Shot, posts
from tidegate.loadgen.clients.runs import LoadRun as Load
from tidegate.loadgen.clients.workers import callers as callers_of
from tidegate.records.codec import decode
from tidegate.records.replica_state import ColdStartPhases
from tidegate.records.roles import Role
from tidegate.records.route_table import RevisionRoute, RouteTable

HERE = Path(__file__).resolve().parent
LOOK_S = 0.5
READY_S = 60.0
TIMEOUT_S = 60.0
BUSY = "tidegate_queue_proxy_busy_seconds_total"
_SERIES = re.compile(r"^([a-z_]+)\{(.*)\} (\S+)$")
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """An accelerator: emulated, with a profile, or so many real cores."""

    name: str
    base_s: float = 0.0
    per_item_s: float = 0.0
    jitter: float = 0.0
    count: int = 1
    price: float = 1.0
    start_up_s: float = 0.0
    cores: int | None = None
    """Real ones; None: emulated."""
    quota: str | None = None
    """Part of the real cores' time that the kernel allows: ``25%``."""

    def entry(self) -> dict[str, Any]:
        """As the accelerators file has it."""
        known = {"name": self.name, "count": self.count, "memory": "1Gi", "price-per-hour": self.price}
        if self.cores is not None:
            quota = {} if self.quota is None else {"quota": self.quota}
            return known | {"kind": "cpu", "cores": self.cores} | quota
        profile = {
            "base": f"{self.base_s * 1e3:.6f}ms",
            "per-item": f"{self.per_item_s * 1e3:.6f}ms",
            "jitter": f"{self.jitter * 100:g}%",
        }
        return known | {"kind": "emulated", "start-up": f"{self.start_up_s:g}s", "profile": profile}

    def mu_ips(self, batch: int = 1) -> float:
        """Returns the service rate of the profile."""
        return batch / (self.base_s + self.per_item_s * batch)


Drive = Callable[[Load], Coroutine[Any, Any, None]]
"""Sends a load."""


@contextmanager
def lab(kinds: Iterable[Kind], *, workers: int = 1) -> Iterator["Lab"]:
    """A deployment with these accelerators and nothing on them."""
    accelerators = json.dumps({"accelerators": [kind.entry() for kind in kinds]})
    with running(workers=workers, accelerators=accelerators) as deployment:
        yield Lab(deployment)


def manifest_text(
    name: str,
    *,
    on: Iterable[str] = (),
    handler: str = "work.py:Nap",
    env: Mapping[str, str] | None = None,
    annotations: Mapping[str, object],
) -> str:
    """The manifest of a function on these accelerators (none: on all)."""
    known = {f"tidegate.dev/{key}": str(value) for key, value in annotations.items()}
    spec: dict[str, Any] = {"server": {"handler": handler}, "env": dict(env or {})}
    if kinds := list(on):
        spec["accelerators"] = kinds
    return json.dumps(
        {
            "apiVersion": "tidegate.dev/v1alpha1",
            "kind": "Function",
            "metadata": {"name": name, "annotations": known},
            "spec": spec,
        }
    )


class Lab:
    """One deployment, one function at a time."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.client = deployment.client()

    # --- functions

    def deploy(
        self,
        name: str,
        *,
        on: Iterable[str] = (),
        replicas: int = 1,
        handler: str = "work.py:Nap",
        env: Mapping[str, str] | None = None,
        annotations: Mapping[str, object],
        base: Path = HERE,
    ) -> None:
        """A function on these accelerators (none: on all); returns when so many ``replicas`` are ready. ``base``: the
        folder of its handler."""
        manifest = manifest_text(name, on=on, handler=handler, env=env, annotations=annotations)
        self.client.deploy(manifest, base=base, wait=replicas > 0)
        self._until(lambda: self.client.function(name).ready >= replicas, f"{replicas} replicas of {name}")

    def delete(self, name: str) -> None:
        """Takes the function away; returns when the accelerators are free."""
        self.client.delete(name)
        self._until(lambda: not any(each.in_use for each in self.client.status().accelerators), "free accelerators")

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + READY_S
        while not holds():
            if time.monotonic() > end:
                raise RuntimeError(f"no {what} within {READY_S:g} s:\n{self.deployment.output()[-2000:]}")
            time.sleep(0.05)

    # --- what there is to see

    def route(self, name: str) -> RevisionRoute | None:
        """Returns the serving revision in the gateways' route table; None without one."""
        table = decode((self.deployment.state / "routes.json").read_bytes(), RouteTable)
        revisions = (each for function in table.functions if function.name == name for each in function.revisions)
        return next((each for each in revisions if each.percent > 0), None)

    def weights(self, name: str) -> dict[str, float]:
        route = self.route(name)
        return {} if route is None else {group.accelerator: group.weight for group in route.groups}

    def look(self, name: str, at_s: float) -> Look:
        view = self.client.function(name)
        states = Counter((each.accelerator, each.state) for each in _serving(view))
        names = sorted({accelerator for accelerator, _ in states})
        return Look(
            at_s=at_s,
            ready={each: states[each, "ready"] for each in names},
            present={each: states[each, "ready"] + states[each, "starting"] for each in names},
            desired=view.desired,
            weights=self.weights(name),
            price_per_hour=view.price_per_hour,
            waiting=view.traffic.waiting,
            starts={each.id: _start_s(each.phases) for each in _serving(view) if each.state == "ready"},
        )

    def busy_s(self, name: str) -> dict[str, float]:
        """Seconds with work so far, by accelerator over its replicas, as their queue_proxies count them."""
        found: Counter[str] = Counter()
        for replica in _serving(self.client.function(name)):
            socket = self.deployment.state / "run" / f"{replica.id}.a"
            with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket))) as client:
                found.update(series(client.get("http://replica/metrics").text, BUSY, "group"))
        return dict(found)

    # --- loads

    def closed(self, name: str, callers: int, seconds: float, *, batch: int = 1, every_s: float = 0.0) -> Run:
        """So many callers in a closed loop, with requests of one size."""
        request = Request(v2_body(batch), batch)
        workers = callers_of(callers, seconds, every_s=every_s)
        return self.run(seconds, {name: lambda load: load.closed_loop(workers, lambda: request)})[name]

    def open(
        self,
        name: str,
        shots: Iterable[Shot],
        seconds: float,
        *,
        during: Callable[[float], object] | None = None,
        address: str | None = None,
    ) -> Run:
        """An open loop."""
        return self.run(seconds, {name: lambda load: load.open_loop(shots)}, during, address)[name]

    def run(
        self,
        seconds: float,
        drives: Mapping[str, Drive],
        during: Callable[[float], object] | None = None,
        address: str | None = None,
    ) -> dict[str, Run]:
        """Runs loads on several functions at once, by name. ``during`` is called beside them in a thread, with the
        clock's reading at the beginning; ``address`` is that of a proxy in our gateway's place."""
        runs = {name: Run(seconds=seconds) for name in drives}
        target = address or self.client.gateway.partition("://")[2]
        began, cpu = time.monotonic(), time.process_time()

        async def watch() -> None:
            while True:
                for name, run in runs.items():
                    run.looks.append(await asyncio.to_thread(self.look, name, time.monotonic() - began))
                await asyncio.sleep(LOOK_S)

        async def whole() -> None:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(watch(), name="watch")
                helping = group.create_task(_beside(during, began), name="beside")
                await asyncio.gather(*(_send(target, name, runs[name], drive) for name, drive in drives.items()))
                await helping
                watching.cancel()

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(whole())
        for run in runs.values():
            run.client = report_of(run.outcomes, time.process_time() - cpu, time.monotonic() - began)
        return runs


async def _send(address: str, name: str, run: Run, drive: Drive) -> None:
    async with posts(address, f"/v2/models/{name}/infer", run.outcomes.append, timeout_s=TIMEOUT_S) as load:
        await drive(load)


def series(text: str, metric: str, label: str) -> dict[str, float]:
    """A metric's values in an exposition by one label, added up over the others."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = _SERIES.match(line)
        if match is not None and match[1] == metric:
            key = dict(_LABEL.findall(match[2]))[label]
            found[key] = found.get(key, 0.0) + float(match[3])
    return found


async def _beside(during: Callable[[float], object] | None, began: float) -> None:
    if during is not None:
        await asyncio.to_thread(during, began)


def _serving(view: FunctionView) -> Iterator[Any]:
    return (each for revision in view.revisions if revision.role is Role.SERVING for each in revision.replicas)


def _start_s(phases: ColdStartPhases) -> float:
    """From the decision to ready."""
    return sum(each or 0.0 for each in (phases.schedule_s, phases.pull_s, phases.load_s, phases.warm_s))
