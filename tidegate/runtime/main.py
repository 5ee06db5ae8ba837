"""``python -P -m tidegate.runtime.main``: serves one model until SIGTERM.

The port listens before the model is loaded, so that "alive but not ready" differs from "not there". Exit codes: 0 after
SIGTERM, with every accepted request answered; 1 if the address is not available; 2 for a wrong environment; 3 if the
model cannot be loaded, with the reason as the last line on stderr.

Nothing is imported that the model does not need. All our modules are imported before the model is loaded, since a file
beside a handler may have the name of a module that is needed later. Loading in a second thread during these imports was
measured and is slower: both need the interpreter (0.20 s to ready instead of 0.18 s).
"""

import tidegate.aio.first_process  # noqa: F401

# isort: split
import os
import sys
import threading
from collections.abc import MutableMapping

from tidegate.aio import log_stream
from tidegate.aio.loop.run import run
from tidegate.errors import InvalidInputError
from tidegate.runtime import confine
from tidegate.runtime import settings as environment
from tidegate.runtime.execute.model import Model
from tidegate.runtime.execute.worker import Worker
from tidegate.runtime.server import serve
from tidegate.runtime.settings import RuntimeSettings

EXIT_SETTINGS = 2
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_SWITCH_S = 0.0005
"""Time that the event loop may keep the interpreter from a run that has just ended. Python's own default is 5 ms."""
_STOP_S = 1.0
"""Time that a thread without requests to answer may take to end."""


def model_of(settings: RuntimeSettings) -> Model:
    """Returns the model that the settings name. Imports only its kind."""
    if settings.emulated is not None:
        from tidegate.runtime.execute.emulated import EmulatedModel

        return EmulatedModel(
            settings.emulated, max_batch=settings.max_batch, handler=settings.handler, copy=settings.copy
        )
    if settings.handler is not None:
        from tidegate.runtime.execute.handler import HandlerModel

        path, class_name = settings.handler
        return HandlerModel(
            path,
            class_name,
            arguments=settings.arguments,
            max_batch=settings.max_batch,
            copy=settings.copy,
            modules=settings.modules,
        )
    if settings.model is not None:
        if settings.format != "onnx":
            from tidegate.runtime.formats.loaders import library_model

            return library_model(settings.model, settings)
        from tidegate.runtime.formats.onnx import OnnxModel

        return OnnxModel(
            settings.model,
            threads=settings.threads,
            max_batch=settings.max_batch,
            providers=settings.providers,
            copy=settings.copy,
            mapped=settings.mapped,
        )
    raise ValueError("the settings name no model")


def prepare(settings: RuntimeSettings, variables: MutableMapping[str, str]) -> None:
    """Sets variables that libraries read at import, and flushes a handler's ``print`` at every line."""
    if settings.threads is not None:
        for name in _THREAD_VARIABLES:
            variables.setdefault(name, str(settings.threads))
    if settings.format == "huggingface":
        variables.setdefault("HF_HUB_OFFLINE", "1")  # The folder is the model: nothing is fetched.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")


def main() -> int:
    confine.from_environment(os.environ)  # Before a thread is started.
    try:
        settings = environment.parse(os.environ)
    except InvalidInputError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_SETTINGS
    prepare(settings, os.environ)
    log_stream.from_environment(os.environ)
    sys.setswitchinterval(_SWITCH_S)
    worker = Worker("model")
    code = run(serve(settings, model_of(settings), worker))
    worker.stop()
    if not worker.join(_STOP_S):
        # A thread inside a model's native code would crash the interpreter's orderly end.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    # The interpreter waits for the threads that a handler has started, even if they never end.
    patience = threading.Timer(_STOP_S, os._exit, (code,))
    patience.daemon = True
    patience.start()
    return code


if __name__ == "__main__":
    sys.exit(main())
