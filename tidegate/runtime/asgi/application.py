"""Finds the ASGI application that ``file.py:NAME`` names."""

import inspect
from pathlib import Path
from typing import Any

from tidegate.aio.log_stream import say_error
from tidegate.runtime.errors import LoadError
from tidegate.runtime.execute.handler import described, import_file


def load(path: str, name: str, copy: str | None, modules: str | None) -> Any:
    """Returns the application: the attribute ``name`` of the file, or an instance of it if it is a class.

    ``copy`` is read instead of ``path``, which stays the module's file in all other respects, and the
    bundle ``modules`` instead of the modules beside it. Raises LoadError.
    """
    file, source = Path(path), Path(copy or path)
    if not source.is_file():
        raise LoadError(f"there is no file {source}")
    try:
        module = import_file(file, source, None if modules is None else Path(modules))
    except LoadError:
        raise
    except BaseException as error:
        say_error(error)
        raise LoadError(f"{file.name} cannot be imported: {described(error, file)}") from error
    found = getattr(module, name, None)
    if found is None:
        known = ", ".join(sorted(key for key, value in vars(module).items() if _is_own(value, module.__name__)))
        raise LoadError(f"{file.name} has no {name}; it has {known or 'nothing that can be called'}")
    if inspect.isclass(found):
        try:
            found = found()
        except BaseException as error:
            say_error(error)
            raise LoadError(f"{name} failed to load: {described(error, file)}") from error
    if not callable(found):
        raise LoadError(
            f"{name} in {file.name} is a {type(found).__name__}, not an ASGI application (it is not callable)"
        )
    return found


def _is_own(value: object, module: str) -> bool:
    """Returns True for what a file defines itself, and for applications that it makes."""
    if inspect.isclass(value) or inspect.isfunction(value):
        return value.__module__ == module
    return callable(value) and not inspect.ismodule(value)
