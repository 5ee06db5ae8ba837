"""Runs ``tidegate load``: the client for the target, its requests, the run itself, Ctrl-C."""

import asyncio
import contextlib
import functools
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from tidegate import clock
from tidegate.aio.allocator import keep_memory
from tidegate.aio.loop import run as fast
from tidegate.aio.loop.services import LoopServices
from tidegate.control.cli.develop.activity import activity
from tidegate.control.cli.load.target import Target
from tidegate.errors import Fault, InvalidInputError, TidegateError
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.clients import bodies
from tidegate.loadgen.clients.call import Request
from tidegate.loadgen.clients.client import LoadClient
from tidegate.loadgen.clients.grpc_calls import V2, GrpcCalls, framed
from tidegate.loadgen.clients.http_calls import HttpCalls
from tidegate.loadgen.clients.runs import LoadRun
from tidegate.loadgen.plans.load import LoadOptions, LoadPlan
from tidegate.loadgen.progress import Progress
from tidegate.loadgen.reports.record import About, LoadReport, report_of
from tidegate.loadgen.reports.tally import Tally
from tidegate.wire.grpc.first_message import MESSAGE_HEAD
from tidegate.wire.grpc.messages import MODEL_METADATA_REQUEST, MODEL_METADATA_RESPONSE
from tidegate.wire.grpc.protobuf import ProtobufError

if TYPE_CHECKING:
    from rich.table import Table

REDRAW_S: Final = 0.5
OTHER_FILES: Final = 64
"""Open files beside the connections."""
CHATS: Final = "/v1/chat/completions"
EMBEDDINGS: Final = "/v1/embeddings"
NOT_FOUND: Final = 404
SAMPLE_BODY: Final = '{"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}'
Draw = Callable[[Arrival], Request]


class LoadError(TidegateError):
    """The load cannot be sent; the message says why."""


def run(options: LoadOptions, plan: LoadPlan, target: Target, *, is_silent: bool) -> LoadReport:
    """Sends the whole load. Raises LoadError if it cannot begin."""
    _allow_connections(_most(plan))
    keep_memory()
    with asyncio.Runner(loop_factory=fast.loop_factory()) as runner:
        return runner.run(_run(options, plan, target, is_silent))


async def _run(options: LoadOptions, plan: LoadPlan, target: Target, is_silent: bool) -> LoadReport:
    services = LoopServices(asyncio.get_running_loop())
    try:
        with activity(f"the inputs of {target.text} are asked for; a function that sleeps starts", is_silent=is_silent):
            target = await _routed(options, plan, target)
            draw = await _drawer(plan, target, services)
        client = _client(options, plan, target, services)
        try:
            return await _drive(plan, target, client, draw, is_silent)
        finally:
            await client.close()
    finally:
        services.close()


async def _drive(plan: LoadPlan, target: Target, client: LoadClient, draw: Draw, is_silent: bool) -> LoadReport:
    sla = plan.sla or target.sla
    tally = Tally(sla)
    load = LoadRun(client, lambda call: tally.add(call, load.began))
    rng = random.Random(plan.seed)
    began, wall, cpu = datetime.fromtimestamp(clock.wall(), UTC), time.monotonic(), time.process_time()
    with _interruptible(load):
        async with asyncio.TaskGroup() as group:
            showing = None
            if not is_silent and sys.stderr.isatty():
                progress = Progress(tally, plan.total_s)
                showing = group.create_task(_show(progress, load, wall), name="progress")
            if plan.schedule is not None:
                await load.open_loop((each.at_s, draw(each)) for each in plan.schedule(rng))
            elif plan.workers is not None:
                await load.closed_loop(plan.workers(), lambda: draw(Arrival(0.0)))
            if showing is not None:
                showing.cancel()
    about = About(
        target=target.text,
        mode=plan.mode,
        protocol=target.protocol,
        seed=plan.seed,
        is_partial=load.is_stopped,
        began=began.isoformat(timespec="seconds"),
        sent=load.sent,
        wall_s=time.monotonic() - wall,
        cpu_s=time.process_time() - cpu,
    )
    return report_of(tally, about)


@contextlib.contextmanager
def _interruptible(run: LoadRun) -> Iterator[None]:
    """Ends the run on Ctrl-C and SIGTERM; the report is still made."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    for each in signals:
        loop.add_signal_handler(each, run.stop)
    try:
        yield
    finally:
        for each in signals:
            loop.remove_signal_handler(each)


def _most(plan: LoadPlan) -> int:
    """Returns the largest number of requests in flight."""
    return plan.connections if plan.workers is None else len(plan.workers())


def _allow_connections(most: int) -> None:
    """Raises this process's limit of open files to ``most`` connections. Raises InvalidInputError if the system does
    not allow that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most + OTHER_FILES
    if hard != resource.RLIM_INFINITY and wanted > hard:
        allowed = f"at most {hard - OTHER_FILES} here: each is an open file (ulimit -Hn)"
        raise InvalidInputError("load", [Fault("--connections", f"{most} requests at once", allowed)])
    if soft != resource.RLIM_INFINITY and wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


# --- client and requests ----------------------------------------------------------------------------------------------


def _client(options: LoadOptions, plan: LoadPlan, target: Target, services: LoopServices) -> LoadClient:
    most = _most(plan)
    if target.protocol == "grpc":
        return GrpcCalls(
            target.address,
            target.path,
            services=services,
            authority=target.authority,
            fields=plan.headers,
            is_stream=options.stream,
            most=most,
            timeout_s=plan.timeout_s,
            clock=time.monotonic,
        )
    method = options.method or ("POST" if target.protocol != "http" or plan.body is not None else "GET")
    given = {name for name, _ in plan.headers}
    has_body = plan.body is not None or target.protocol != "http"
    own = [("content-type", "application/json")] if has_body and "content-type" not in given else []
    return HttpCalls(
        target.host,
        target.port,
        target.path,
        method=method,
        fields=[*own, *((name, value) for name, value in plan.headers if name != "host")],
        authority=dict(plan.headers).get("host", target.authority),
        tls=target.tls,
        batch_field=options.batch_header,
        takes_streams=target.protocol == "openai",
        most=most,
        timeout_s=plan.timeout_s,
        clock=time.monotonic,
    )


async def _drawer(plan: LoadPlan, target: Target, services: LoopServices) -> Draw:
    """Returns a function that makes a request from an arrival."""
    batch = None if plan.batches is None else plan.batches.drawer(random.Random(plan.seed + 1))
    make = await _maker(plan, target, services)

    def draw(arrival: Arrival) -> Request:
        inferences = arrival.inferences if batch is None else batch()
        return Request(make(arrival, inferences), inferences)

    if plan.batches is not None:
        for size in plan.batches.sizes:  # Sizes that cannot be made are faults before anything is sent.
            _made(functools.partial(make, Arrival(0.0), size))
    return draw


async def _maker(plan: LoadPlan, target: Target, services: LoopServices) -> Callable[[Arrival, int], bytes]:
    if plan.body is not None or target.protocol == "http":
        body = plan.body or b""
        sent = framed(body) if target.protocol == "grpc" else body
        return lambda arrival, inferences: sent
    if target.protocol == "openai" and target.path.endswith(EMBEDDINGS):
        text = bodies.embeddings(target.model, plan.prompt_words)
        return lambda arrival, inferences: text
    if target.protocol == "openai":
        chat = bodies.Kept(lambda words, tokens: bodies.chat(target.model, words, tokens))
        return lambda arrival, inferences: chat(
            arrival.prompt_tokens or plan.prompt_words, arrival.completion_tokens or plan.tokens
        )
    if target.protocol == "grpc":
        metadata = await _metadata_over_grpc(plan, target, services)
        inputs = _made(lambda: bodies.inputs_of(metadata))
        kept = bodies.Kept(lambda size: framed(bodies.v2_message(target.model, inputs, size)))
    else:
        metadata = await _metadata_over_http(plan, target)
        inputs = _inputs(metadata)
        kept = bodies.Kept(lambda size: bodies.v2_json(inputs, size))
    _made(lambda: kept(1)) if plan.batches is None else None
    return lambda arrival, inferences: kept(inferences)


def _made(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except ValueError as error:
        raise LoadError(str(error)) from error


def _inputs(metadata: dict[str, Any]) -> tuple[bodies.Input, ...]:
    """Returns the inputs that requests are made up for. Raises LoadError with a request to begin with."""
    try:
        return bodies.inputs_of(metadata)
    except ValueError as error:
        raise LoadError(f"{error}, for example\n  {SAMPLE_BODY}") from error


async def _routed(options: LoadOptions, plan: LoadPlan, target: Target) -> Target:
    """Returns the target with the route that an OpenAI function has, as the call that `tidegate deploy` prints: its
    embeddings where it has no chats."""
    if target.protocol != "openai" or options.path is not None or plan.body is not None:
        return target
    if not target.path.endswith(CHATS):
        return target
    import httpx

    scheme, other = "http" if target.tls is None else "https", target.path.removesuffix(CHATS) + EMBEDDINGS
    try:
        async with httpx.AsyncClient(timeout=plan.timeout_s, trust_env=False, verify=target.tls or True) as client:
            chats, embeddings = [
                (await client.get(f"{scheme}://{target.address}{path}", headers=list(plan.headers))).status_code
                for path in (target.path, other)
            ]
    except httpx.HTTPError:
        return target  # The load itself reports what does not answer.
    return replace(target, path=other) if chats == NOT_FOUND != embeddings else target


async def _metadata_over_http(plan: LoadPlan, target: Target) -> dict[str, Any]:
    """Reads the model's metadata. The request wakes a function that sleeps at zero."""
    import httpx

    scheme = "http" if target.tls is None else "https"
    url = f"{scheme}://{target.address}{target.path.partition('?')[0].rpartition('/')[0]}"
    try:
        async with httpx.AsyncClient(timeout=plan.timeout_s, trust_env=False, verify=target.tls or True) as client:
            answer = await client.get(url, headers=list(plan.headers))
    except httpx.HTTPError as error:
        raise LoadError(f"no metadata from {url}: {str(error) or type(error).__name__}") from error
    if not answer.is_success:
        raise LoadError(f"no metadata from {url}: status {answer.status_code}; --body FILE needs none")
    try:
        metadata = answer.json()
    except ValueError as error:
        raise LoadError(f"no metadata from {url}: the answer is no JSON") from error
    return metadata if isinstance(metadata, dict) else {}


async def _metadata_over_grpc(plan: LoadPlan, target: Target, services: LoopServices) -> dict[str, Any]:
    answer = bytearray()
    client = GrpcCalls(
        target.address,
        f"{V2}ModelMetadata",
        services=services,
        authority=target.authority,
        fields=plan.headers,
        on_data=answer.extend,
        most=1,
        timeout_s=plan.timeout_s,
        clock=time.monotonic,
    )
    codes: list[str] = []
    run = LoadRun(client, lambda call: codes.append(call.error or call.code or ""))
    await run.open_loop([(0.0, Request(framed(MODEL_METADATA_REQUEST.encode({"name": target.model}))))])
    await client.close()
    if codes != ["OK"]:
        raise LoadError(f"no metadata of {target.model} from {target.address}: {codes[0]}; --body FILE needs none")
    try:
        return MODEL_METADATA_RESPONSE.decode(bytes(answer[MESSAGE_HEAD:]))
    except ProtobufError as error:
        raise LoadError(f"no metadata of {target.model} from {target.address}: {error}") from error


# --- progress ---------------------------------------------------------------------------------------------------------


async def _show(progress: Progress, run: LoadRun, began: float) -> None:
    """Shows progress on standard error, a live table, if that is a terminal."""
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True, highlight=False), auto_refresh=False, transient=True) as live:
        while True:
            await asyncio.sleep(REDRAW_S)
            live.update(_table(progress.figures(time.monotonic() - began, run.sent, run.unfinished)), refresh=True)


def _table(figures: dict[str, str]) -> "Table":
    from rich.table import Table

    table = Table(show_header=False, box=None)
    for name, value in figures.items():
        table.add_row(f"[dim]{name}[/dim]", value)
    return table
