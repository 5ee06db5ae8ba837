"""One model behind one address, from listening to the last answer."""

import asyncio
import os
import signal
import time

from tidegate.aio.admin.endpoint import Request, serve_endpoint
from tidegate.aio.log_stream import say
from tidegate.aio.loop.tasks import TaskOwner
from tidegate.runtime.errors import LoadError, ModelError, RequestError
from tidegate.runtime.execute.engine import ModelEngine
from tidegate.runtime.execute.model import Model
from tidegate.runtime.execute.scheduler import Scheduler
from tidegate.runtime.execute.streams import Streams
from tidegate.runtime.execute.worker import Worker
from tidegate.runtime.listener import Listener
from tidegate.runtime.metrics import RuntimeCounters
from tidegate.runtime.protocols.bodies import LIMIT
from tidegate.runtime.protocols.v2 import ModelSpec
from tidegate.runtime.rest import generate, predict
from tidegate.runtime.service import AnyResponse, ModelService
from tidegate.runtime.settings import RuntimeSettings

EXIT_ADDRESS, EXIT_LOAD = 1, 3


class ModelServer:
    """One model, its thread, its scheduler and its service."""

    def __init__(self, settings: RuntimeSettings, model: Model, worker: Worker) -> None:
        self._settings = settings
        self._counters = RuntimeCounters()
        self._engine = ModelEngine(model, worker)
        self._service = ModelService(
            settings.names,
            self._counters,
            body_bytes=settings.body_bytes,
            openai=_openai,
            generate=_generate,
            predict=_predict,
            extensions=_extensions,
            batch_delay_s=settings.batch_delay_s,
        )
        self._listener = Listener(self._service, body_bytes=settings.body_bytes)
        self._owner = TaskOwner("runtime")
        self._end: asyncio.Event = asyncio.Event()
        self._exit_code = 0
        self._scheduler: Scheduler | None = None

    async def serve(self) -> int:
        try:
            endpoint = await serve_endpoint(
                self._service.handle,
                self._settings.listen,
                body_bytes=self._settings.body_bytes,
                limit_of_bodies=LIMIT,
                connect=self._listener.connect,
            )
        except OSError as error:
            say(f"cannot listen on {self._settings.listen}: {error}", level="error")
            return EXIT_ADDRESS
        endpoint.services.add(self._listener.sweep)
        self._services = endpoint.services
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end.set)
        self._owner.spawn(self._load(endpoint.address), name="load")
        await self._end.wait()
        await self._finish()
        await self._listener.close()
        await endpoint.close()
        await self._owner.close()
        self._engine.stop()
        return self._exit_code

    async def _load(self, address: str) -> None:
        started = time.monotonic()
        try:
            spec = await self._engine.load()
            loaded = time.monotonic()
            note = await self._engine.probe()
        except (LoadError, ModelError, RequestError) as error:
            say(f"the model cannot be served: {error}", level="error")
            self._exit_code = EXIT_LOAD
            self._end.set()
            return
        if note is not None:
            say(f"a first run on made-up inputs failed, which need not mean anything: {note}")
        self._start(spec)
        self._follow_cores(spec)
        say(
            f"serving {', '.join(self._settings.names)} on {address}: "
            f"loaded in {loaded - started:.3f} s, first run {time.monotonic() - loaded:.3f} s",
            level="info",
        )

    def _start(self, spec: ModelSpec) -> None:
        if spec.streams:
            streams = Streams(self._engine, self._counters)
            self._service.start(
                spec, streams.collect, lambda: streams.waiting, streams.run, abandoned=lambda: streams.abandoned
            )
            return
        scheduler = self._scheduler = Scheduler(
            self._engine,
            self._owner,
            self._counters,
            max_batch=spec.max_batch,
            delay_s=self._settings.batch_delay_s,
        )
        self._service.start(
            spec,
            scheduler.infer,
            lambda: scheduler.waiting,
            abandoned=lambda: scheduler.abandoned,
            batching=scheduler,
        )

    def _follow_cores(self, spec: ModelSpec) -> None:
        """Runs a model that allows it on all cores that this process is given, one run for each of its own share."""
        share, scheduler = self._settings.cores, self._scheduler
        if share is None or scheduler is None or not spec.is_reentrant or not hasattr(os, "sched_getaffinity"):
            return
        runners = 1

        def follow(_: float) -> None:
            nonlocal runners
            wanted = max(1, len(os.sched_getaffinity(0)) // share)
            if wanted != runners:
                runners = wanted
                self._engine.grow(wanted)
                scheduler.set_runners(wanted)

        self._services.add(follow)

    async def _finish(self) -> None:
        """Accepts nothing new and waits until every accepted request is answered."""
        self._service.stop()
        idle = asyncio.Event()
        self._service.on_idle = idle.set
        if self._service.active:
            await idle.wait()


async def _openai(service: ModelService, request: Request, parts: list[str]) -> AnyResponse:
    from tidegate.runtime import openai  # A server that is called by V2 alone starts some ms faster without it.

    return await openai.answer(service, request, parts)


async def _generate(service: ModelService, request: Request, parts: list[str]) -> AnyResponse:
    return await generate.answer(service, request, *parts)


async def _extensions(service: ModelService, request: Request, parts: list[str]) -> AnyResponse:
    from tidegate.runtime import extensions  # As above.

    return await extensions.answer(service, request, parts)


async def _predict(service: ModelService, request: Request, parts: list[str]) -> AnyResponse:
    return await predict.answer(service, request, *parts)


async def serve(settings: RuntimeSettings, model: Model, worker: Worker) -> int:
    """Serves until a signal or a failure to load. Returns the exit code."""
    return await ModelServer(settings, model, worker).serve()
