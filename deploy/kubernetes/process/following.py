"""Following objects of a cluster through every error, of the API server and of what is done with the objects."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial

from tidegate.deploy.kubernetes.process.api import SYNCED, KubernetesApi, Object
from tidegate.deploy.kubernetes.process.retries import Note, Retries

Handle = Callable[[str, Object], Awaitable[None]]
"""Takes an event of ``KubernetesApi.follow``."""


async def keep_following(
    api: KubernetesApi, path: str, selector: str, handle: Handle, subject: str, note: Note
) -> None:
    """Calls ``handle`` with each event, for ever. An event that it fails on is noted, and comes again: after a pause,
    which grows, all objects are listed once more. The other objects are not held up by it."""
    retries = Retries(api.rng)
    known: dict[str, Object] = {}
    trouble = partial(note, subject)
    while True:
        failed, is_listed = None, False
        async with aclosing(api.follow(path, selector, known=known, trouble=trouble)) as events:
            async for kind, each in events:
                try:
                    await handle(kind, each)
                except Exception as error:  # whatever it was, the rest is followed
                    name = each.get("metadata", {}).get("name", "")
                    failed = f"{name or kind}: {type(error).__name__}: {error}"
                    note(f"{subject}: handling", failed)
                is_listed = is_listed or kind == SYNCED
                if failed is not None and is_listed:
                    break
                if kind == SYNCED:
                    note(f"{subject}: handling", None)
                    retries.reset()
        await api.sleep(retries.next_s())
