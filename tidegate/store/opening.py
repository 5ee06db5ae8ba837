"""Opens the store that ``store.url`` names. Redis's library is imported only where the setting asks for it.

A file of its own: gateway workers import ``tidegate.store.records`` and must not reach Redis's library.
"""

from pathlib import Path
from typing import Final

from tidegate.errors import Fault, InvalidInputError
from tidegate.store.embedded import EmbeddedStore
from tidegate.store.records import Store

CALL_S: Final = 0.5
"""Time limit of a call to Redis: the control process's second waits for it, and goes on without it."""
START_S: Final = 5.0
"""Time limit of all calls of a start together: nothing else waits then, and the machine is busy."""


async def open_store(url: str, file: Path, name: str = "") -> Store:
    """Opens the store. ``embedded``: the SQLite file; else the Redis at ``url``, where ``name`` separates this
    deployment's records from those of others.

    Raises InvalidInputError for an invalid URL and without the library, StoreFaultError for a store that fails.
    """
    if url == "embedded":
        return await EmbeddedStore.open(file)
    try:
        from tidegate.store.redis import RedisStore
    except ModuleNotFoundError as error:
        fault = Fault("url", "redis", "embedded; for Redis its library: pip install 'tidegate[redis]'")
        raise InvalidInputError("store", [fault]) from error
    return await RedisStore.open(url, name=name, call_s=CALL_S, start_s=START_S)
