"""Runs ``tidegate demo``: a separate deployment, the first request, the load, the way back to zero."""

import asyncio
import contextlib
import http.client
import importlib.util
import json as json_text
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from tidegate.clock import wall
from tidegate.control.cli.common import say, seconds
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from rich.table import Table

    from tidegate.control.cli.demo.boards import Watcher
    from tidegate.control.cli.demo.conclusion import DemoResult
    from tidegate.control.cli.demo.records import Look
    from tidegate.control.cli.demo.sender import Sender
    from tidegate.control.cli.demo.shown import BoardFigures
    from tidegate.control.sdk import Tidegate
    from tidegate.control.views.functions import ColdStartView
    from tidegate.loadgen.clients.outcomes import Shot

NAME: Final = "magika"
PATH: Final = f"/v2/models/{NAME}/infer"
SEED: Final = 20
BUSY_AT_PEAK: Final = 1.2
"""Load at the peak, in replicas' worth of work.

More than one replica can do, however fast the machine is. Low enough for two cores that also run the gateway, the
control process and this client.
"""
MAX_PER_S: Final = 300.0
"""Upper bound of requests per second that the client sends, however fast the model is."""
LOOK_EVERY_S: Final = 0.5
SEEN_TRIES: Final = 150
"""Looks, a tenth of a second apart, for the function in Prometheus before the first request."""
STATE: Final = "state"
"""Name of the state directory in the demo's folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoScript:
    """Durations of the phases of a demo."""

    load_s: float
    sleep_after: str
    zero_within_s: float


FULL: Final = DemoScript(load_s=120.0, sleep_after="8s", zero_within_s=60.0)
FAST: Final = DemoScript(load_s=20.0, sleep_after="3s", zero_within_s=40.0)


class DemoError(TidegateError):
    """The demo cannot run here; the message names what is missing."""


def run(script: DemoScript) -> "DemoResult":
    """Runs the whole demo and stops everything that it started."""
    from tidegate.control.cli.demo.boards import watching

    with tempfile.TemporaryDirectory(prefix="tidegate-demo-") as named:
        folder, tree = Path(named), example_folder().parent.parent
        with (
            own_deployment(folder) as tidegate,
            watching(tree, folder / "prometheus", folder / STATE, NAME) as boards,
        ):
            return asyncio.run(Demo(tidegate, folder, script, boards).run())


class Demo:
    """One run against a deployment that is up and has no functions."""

    def __init__(self, tidegate: "Tidegate", folder: Path, script: DemoScript, boards: "Watcher | None") -> None:
        from tidegate.control.cli.demo.records import Records

        self._tidegate = tidegate
        self._script = script
        self._boards = boards
        self._state = folder / STATE
        self._example = load_example()
        self._manifest = self._example.prepare(folder / "example")
        self._layout = self._example.own_layout()
        self._rng = random.Random(SEED)
        self._files = self._real_files()
        self._records = Records(latency_s=0.2, percentile=98.0)
        self._first_good = False
        self._answer = ""
        self._in_flight = 0
        self._start = 0.0

    async def run(self) -> "DemoResult":
        await self._deploy()
        await self._first_request()
        cold = await self._cold_start()
        shots = await self._plan_load()
        await self._load(shots)
        await self._wait_for_zero()
        return await self._conclude(cold)

    # --- the steps ---

    async def _deploy(self) -> None:
        flags = {
            "concurrency": "1",
            "initial-scale": "0",
            "scale-to-zero-after": self._script.sleep_after,
        }
        deployed = await asyncio.to_thread(self._tidegate.deploy_file, self._manifest, annotations=flags)
        view = await asyncio.to_thread(self._tidegate.function, NAME)
        self._records.latency_s = view.latency_s or self._records.latency_s
        self._records.percentile = view.percentile
        self._start = time.monotonic()
        await self._look()
        say(
            f"{NAME} is deployed as {deployed.functions[0].revision}, with no replica; its target: "
            f"p{view.percentile:g} within {seconds(view.latency_s)}"
        )
        for _ in range(SEEN_TRIES):
            if self._boards is None or await asyncio.to_thread(self._boards.sees_function):
                break
            await asyncio.sleep(0.1)
        link = await asyncio.to_thread(self._tidegate.console_link, NAME)
        say(f"watch it in the console, while the demo runs (the link works once): {link.url}")

    async def _first_request(self) -> None:
        name, row = self._files[0]
        answer, _, latency_s = await self._ask([row])
        self._first_good = True
        ((label, score),) = self._example.labels_of(answer, self._layout)
        self._answer = f"{name} is {label} ({score:.1%} sure), answered after {seconds(latency_s)}"
        say(f"the first request: {self._answer}")

    async def _cold_start(self) -> "ColdStartView":
        """Returns the record of the first cold start, once it is complete: the gateway has been polled by then."""
        from tidegate.control.cli.demo.conclusion import phases_of

        for _ in range(50):
            starts = await asyncio.to_thread(self._tidegate.cold_starts, NAME)
            if starts and starts[0].phases.first_response_s is not None:
                break
            await asyncio.sleep(0.1)
        else:
            raise DemoError("the first cold start was not recorded within 5 s")
        say("  " + ", ".join(f"{name} {value}" for name, value in phases_of(starts[0])))
        return starts[0]

    async def _plan_load(self) -> "list[Shot]":
        """Plans a load that needs more than one replica on this machine, from the measured cost of one request."""
        from tidegate.loadgen.arrivals.processes import poisson, ramp
        from tidegate.loadgen.clients.call import Request

        costs = []
        for _ in range(10):
            _, timing, latency_s = await self._ask([self._files[0][1]] * 2)
            costs.append(model_s(timing, latency_s) / 2)
        cost_s = sorted(costs)[len(costs) // 4]  # what disturbs it only adds
        bodies = [self._sized_body() for _ in range(300)]
        mean = sum(size for _, size in bodies) / len(bodies)
        peak = min(MAX_PER_S, BUSY_AT_PEAK / (cost_s * mean))
        length_s = self._script.load_s
        times = poisson(ramp(length_s, peak * 0.05, peak), length_s, peak, self._rng)
        say(
            f"one inference takes {seconds(cost_s)}; load for {length_s:g} s, up to {peak:.0f} requests/s "
            f"with {mean:.1f} inferences each, seed {SEED}"
        )
        return [(at_s, Request(*bodies[index % len(bodies)])) for index, at_s in enumerate(times)]

    async def _load(self, shots: "list[Shot]") -> None:
        from rich.console import Console
        from rich.live import Live

        from tidegate.control.cli.demo.sender import sending

        console = Console(stderr=True, highlight=False)
        with sending(self._tidegate.gateway.partition("://")[2], PATH, shots) as sender:
            if not precede(sender.pid, self._state / "processes"):
                say("(not as root: gateway and client wait for cores as all do, which their figures differ by)")
            self._shift(await sender.began())
            async with asyncio.TaskGroup() as group:
                load = group.create_task(self._follow(sender), name="load")
                if console.is_terminal:
                    with Live(console=console, auto_refresh=False) as live:
                        while not load.done():
                            live.update(self._table(), refresh=True)
                            await self._pace(load)
                else:
                    turn = 0
                    while not load.done():
                        if turn % 10 == 0:
                            say(self._line())
                        turn += 1
                        await self._pace(load)
        say(self._line())

    async def _follow(self, sender: "Sender") -> None:
        """Takes the client's outcomes until the load is over."""
        while (report := await sender.report()) is not None:
            outcomes, self._in_flight = report
            self._records.outcomes += outcomes

    async def _wait_for_zero(self) -> None:
        from tidegate.control.cli.demo.shown import MIN_LOOKS

        say("the load is over; waiting for zero replicas")
        end = time.monotonic() + self._script.zero_within_s
        while (await self._look()).present and time.monotonic() < end:
            await asyncio.to_thread(time.sleep, LOOK_EVERY_S)
        at = self._records.looks[-1]
        for _ in range(MIN_LOOKS):  # its last minute is compared as well
            await asyncio.to_thread(time.sleep, LOOK_EVERY_S)
            await self._look()
        say(f"{at.present} replicas {at.at_s - self._script.load_s:.0f} s after the last request")

    async def _conclude(self, cold: "ColdStartView") -> "DemoResult":
        from tidegate.control.cli.demo.conclusion import conclude
        from tidegate.control.cli.demo.shown import compare

        explained = await asyncio.to_thread(self._tidegate.explain, NAME, last=40)
        compared = compare(self._records, self._board_figures())
        return conclude(
            self._records, self._first_good, self._answer, cold, explained.text, self._script.load_s, compared
        )

    def _board_figures(self) -> "list[BoardFigures]":
        """Returns what the boards showed in each part of the story."""
        from tidegate.control.cli.demo.boards import PrometheusError
        from tidegate.control.cli.demo.shown import story

        if self._boards is None:
            return []
        began, percentile = wall() - (time.monotonic() - self._start), self._records.percentile
        parts = story(self._records.looks)
        try:
            return [self._boards.figures(looks[0].unix, looks[-1].unix, percentile, began) for looks in parts]
        except PrometheusError as error:
            say(f"without Grafana's boards: {error}")
            return []

    # --- looking ---

    async def _look(self) -> "Look":
        from tidegate.control.cli.demo.records import Look

        view = await asyncio.to_thread(self._tidegate.function, NAME)
        revision = view.revisions[0]
        look = Look(
            at_s=time.monotonic() - self._start,
            unix=wall(),
            ready=revision.ready,
            starting=revision.starting,
            leaving=revision.leaving,
            desired=revision.desired,
            waiting=view.traffic.waiting,
            reasons=tuple(reason.code for reason in revision.reasons),
            traffic=view.traffic,
            groups=revision.groups,
        )
        self._records.looks.append(look)
        return look

    async def _pace(self, load: "asyncio.Task[None]") -> None:
        await self._look()
        await asyncio.wait((load,), timeout=LOOK_EVERY_S)

    def _shift(self, start: float) -> None:
        """Sets the start of the load as time zero; earlier readings get negative times."""
        from dataclasses import replace

        moved = start - self._start
        records = self._records
        records.looks[:] = [replace(look, at_s=look.at_s - moved) for look in records.looks]
        records.asked[:] = [replace(each, at_s=each.at_s - moved) for each in records.asked]
        self._start = start

    def _figures(self) -> dict[str, str]:
        from tidegate.control.cli.demo.records import quantile

        now_s = time.monotonic() - self._start
        recent = self._records.recent(now_s)
        latencies = [outcome.latency_s for outcome in recent if outcome.is_good]
        look = self._records.looks[-1]
        window_s = max(1.0, min(5.0, now_s))
        answered, lost = len(self._records.outcomes), len(self._records.lost)
        return {
            "time": f"{now_s:.0f} s",
            "requests": f"{answered - lost} answered, {self._in_flight} in flight, {lost} lost",
            "requests/s (5 s)": f"{len(recent) / window_s:.0f}",
            "inferences/s (5 s)": f"{sum(outcome.inferences for outcome in recent) / window_s:.0f}",
            "p50 (5 s)": seconds(quantile(latencies, 0.5)),
            f"p{self._records.percentile:g} (5 s)": f"{seconds(quantile(latencies, self._records.percentile / 100))} "
            f"(target {seconds(self._records.latency_s)})",
            "waiting": str(look.waiting),
            "replicas": f"{look.ready} ready, {'-' if look.desired is None else look.desired} wanted",
            "because": ", ".join(look.reasons),
        }

    def _table(self) -> "Table":
        from rich.table import Table

        table = Table(show_header=False, box=None)
        for name, value in self._figures().items():
            table.add_row(f"[dim]{name}[/dim]", value)
        return table

    def _line(self) -> str:
        return "  ".join(f"{name} {value}" for name, value in self._figures().items())

    # --- input ---

    async def _ask(self, rows: list[list[int]]) -> "tuple[Any, str, float]":
        """Sends a single request, outside any schedule. Returns the answer, its ``Server-Timing``, and the seconds it
        took. Raises DemoError without a good answer."""
        from tidegate.loadgen.clients.outcomes import RequestOutcome

        status, timing, content, began, latency_s = await asyncio.to_thread(
            post, self._tidegate.gateway.partition("://")[2], PATH, self._body(rows)
        )
        self._records.asked.append(RequestOutcome(began - self._start, latency_s, len(rows), status))
        if status != HTTPStatus.OK:
            raise DemoError(f"a request failed with status {status}: {content.decode(errors='replace')}")
        return json_text.loads(content), timing, latency_s

    def _real_files(self) -> list[tuple[str, list[int]]]:
        """Returns files of this source tree that the model can classify, each as one row of its input."""
        root = example_folder().parent.parent
        paths = [root / "README.md", *sorted(root.glob("*/*.py"))[:60], *sorted(root.glob("docs/**/*.md"))]
        rows = []
        for path in paths:
            row = self._example.features_of(path.read_bytes(), self._layout) if path.is_file() else None
            if row is not None:
                rows.append((str(path.relative_to(root)), row))
        if not rows:
            raise DemoError(f"no file under {root} can be used as input")
        return rows

    def _body(self, rows: list[list[int]]) -> bytes:
        return json_text.dumps(self._example.request_of(rows), separators=(",", ":")).encode()

    def _sized_body(self) -> tuple[bytes, int]:
        rows = [self._rng.choice(self._files)[1] for _ in range(self._rng.randint(1, 4))]
        return self._body(rows), len(rows)


def precede(client: int, processes: Path) -> bool:
    """Lets the process of the load client and the gateway run before the demo's other programs, where the user may: on
    cores that the model servers fill, each would read its clock some milliseconds after the bytes have come. Returns
    whether it could."""
    from tidegate.deploy.local.records import ProcessKind, RecordStore
    from tidegate.deploy.local.recovery import survey

    gateways = [each.pid for each in survey(RecordStore(processes)).living if each.kind is ProcessKind.GATEWAY]
    try:
        above = min(os.sched_get_priority_max(os.SCHED_RR), os.sched_getparam(0).sched_priority + 1)
        for pid in (client, *(pid for pid in gateways if pid)):
            os.sched_setscheduler(pid, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(above))
    except (AttributeError, OSError):
        return False
    return True


def post(address: str, path: str, body: bytes) -> tuple[int, str, bytes, float, float]:
    """Posts JSON to ``host:port``. Returns the status, ``Server-Timing``, the content, when it was sent by the
    monotonic clock, and the seconds until the answer had come. Raises DemoError without an answer."""
    connection = http.client.HTTPConnection(address, timeout=60.0)
    try:
        connection.connect()
        began = time.monotonic()
        connection.request("POST", path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        latency_s = time.monotonic() - began
    except (OSError, http.client.HTTPException) as error:
        raise DemoError(f"no answer to a request: {str(error) or type(error).__name__}") from error
    finally:
        connection.close()
    return answer.status, answer.headers.get("server-timing", ""), content, began, latency_s


def model_s(timing: str, latency_s: float) -> float:
    """Returns the model server's time from ``Server-Timing``; the whole latency if the header does not contain it."""
    for part in timing.split(","):
        name, _, value = part.strip().partition(";dur=")
        if name == "model" and value:
            return float(value) / 1e3
    return latency_s


def example_folder() -> Path:
    """Returns ``examples/magika`` of the source tree. Raises DemoError if it is missing."""
    folder = Path(__file__).resolve().parents[3] / "examples" / "magika"
    if not (folder / "prepare.py").is_file():
        raise DemoError("the demo needs the source tree (examples/magika): clone the repository and run `make demo`")
    return folder


def load_example() -> ModuleType:
    """Imports the example's own code: feature extraction and the meaning of the model's outputs."""
    path = example_folder() / "prepare.py"
    spec = importlib.util.spec_from_file_location("tidegate_demo_example", path)
    if spec is None or spec.loader is None:
        raise DemoError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    try:
        module.find_model()
    except FileNotFoundError as error:
        raise DemoError(str(error)) from error
    return module


@contextlib.contextmanager
def own_deployment(folder: Path) -> Iterator["Tidegate"]:
    """Starts a deployment of its own on free ports; ends it in any case."""
    from tidegate.control.sdk import Tidegate
    from tidegate.control.state.directory import StateDirectory

    state = StateDirectory(folder / STATE)
    state.prepare()
    devices = folder / "accelerators.yaml"
    count = max(2, os.cpu_count() or 1)
    devices.write_text(
        "accelerators:\n"
        f"  - {{name: cpu-1core, kind: cpu, cores: 1, count: {count}, memory: 1Gi, price-per-hour: 0.04}}\n"
    )
    log, settings = folder / "control.log", folder / "tidegate.toml"
    settings.write_text("")  # not what lies in the folder where the demo is called: its own way of serving
    flags = ("--gateway-listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--accelerators-file", str(devices))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tidegate.control.cli",
                "up",
                "--state",
                str(state.root),
                "--config",
                str(settings),
                *flags,
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + 60.0
        while (holder := state.holder()) is None or holder.api is None:
            if process.poll() is not None or time.monotonic() > end:
                raise DemoError(f"the deployment did not start:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)
        with Tidegate.local(state.root) as tidegate:
            yield tidegate
    finally:
        process.terminate()
        try:
            process.wait(90.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
