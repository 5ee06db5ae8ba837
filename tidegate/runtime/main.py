"""``python -P -m tidegate.runtime.main``: serves one model until SIGTERM.

The port listens before the model is loaded, so that "alive but not ready" can be told from "not there". Exit codes:
0 after SIGTERM, with every accepted request answered; 1 when the address cannot be had; 2 for a wrong environment;
3 when the model cannot be loaded, with the reason as the last line on stderr.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import MutableMapping

from tidegate.aio.endpoint import serve_endpoint
from tidegate.aio.loop import run
from tidegate.aio.tasks import TaskOwner
from tidegate.errors import InvalidInputError
from tidegate.runtime import settings as environment
from tidegate.runtime.emulated import EmulatedModel
from tidegate.runtime.engine import Engine, Model
from tidegate.runtime.errors import LoadError, ModelError, RequestError
from tidegate.runtime.handler import HandlerModel
from tidegate.runtime.metrics import Counters
from tidegate.runtime.onnx import OnnxModel
from tidegate.runtime.scheduler import Scheduler
from tidegate.runtime.service import Phase, Service
from tidegate.runtime.settings import Settings
from tidegate.runtime.worker import Worker

EXIT_ADDRESS, EXIT_SETTINGS, EXIT_LOAD = 1, 2, 3
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_STOP_S = 1.0
"""How long a thread that has nothing left to answer may take to end."""


class Server:
    """One model, its thread, its scheduler and its service."""

    def __init__(self, settings: Settings, worker: Worker) -> None:
        self._settings = settings
        self._counters = Counters()
        self._engine = Engine(model_of(settings), worker)
        self._service = Service(settings.names, self._counters, body_bytes=settings.body_bytes)
        self._owner = TaskOwner("runtime")
        self._end: asyncio.Event = asyncio.Event()
        self._exit_code = 0

    async def serve(self) -> int:
        """Serves until a signal or a failure to load; returns the exit code."""
        try:
            endpoint = await serve_endpoint(
                self._service.handle, self._settings.listen, body_bytes=self._settings.body_bytes
            )
        except OSError as error:
            sys.stderr.write(f"cannot listen on {self._settings.listen}: {error}\n")
            return EXIT_ADDRESS
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end.set)
        self._owner.spawn(self._load(endpoint.address), name="load")
        await self._end.wait()
        await self._finish()
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
            sys.stderr.write(f"the model cannot be served: {error}\n")
            self._exit_code = EXIT_LOAD
            self._end.set()
            return
        if note is not None:
            sys.stderr.write(f"a first run on made-up inputs failed, which need not mean anything: {note}\n")
        scheduler = Scheduler(
            self._engine,
            self._owner,
            self._counters,
            max_batch=spec.max_batch,
            delay_s=self._settings.batch_delay_s,
        )
        self._service.start(spec, scheduler.infer, lambda: scheduler.waiting)
        sys.stderr.write(
            f"serving {', '.join(self._settings.names)} on {address}: "
            f"loaded in {loaded - started:.3f} s, first run {time.monotonic() - loaded:.3f} s\n"
        )

    async def _finish(self) -> None:
        """Takes nothing new and waits until every accepted request is answered."""
        self._service.phase = Phase.STOPPING
        idle = asyncio.Event()
        self._service.on_idle = idle.set
        if self._service.active:
            await idle.wait()


def model_of(settings: Settings) -> Model:
    """The model that the settings name."""
    if settings.emulated is not None:
        return EmulatedModel(settings.emulated, max_batch=settings.max_batch)
    if settings.handler is not None:
        path, class_name = settings.handler
        return HandlerModel(path, class_name, max_batch=settings.max_batch)
    if settings.model is not None:
        return OnnxModel(
            settings.model, threads=settings.threads, max_batch=settings.max_batch, providers=settings.providers
        )
    raise ValueError("the settings name no model")


def prepare(settings: Settings, variables: MutableMapping[str, str]) -> None:
    """What numerical libraries read when they are imported, and lines of a handler's ``print`` that show at once."""
    if settings.threads is not None:
        for name in _THREAD_VARIABLES:
            variables.setdefault(name, str(settings.threads))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")


async def _serve(settings: Settings, worker: Worker) -> int:
    return await Server(settings, worker).serve()


def main() -> int:
    try:
        settings = environment.parse(os.environ)
    except InvalidInputError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_SETTINGS
    prepare(settings, os.environ)
    worker = Worker("model")
    code = run(_serve(settings, worker))
    worker.stop()
    if not worker.join(_STOP_S):
        # A thread inside a model's native code would crash the interpreter's orderly end.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
