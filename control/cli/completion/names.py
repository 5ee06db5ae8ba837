"""Names of functions for the shell's completion, without the command line's own imports.

A shell starts the program at every press of the key, and importing all commands takes a quarter of a second. A word
that is the name of a function is therefore answered here, by one request to the control API over a plain socket; every
other word goes the way of typer. An API that does not answer in time gives no names and no message.
"""

import json
import shlex
import socket
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tidegate.control.state.directory import StateDirectory, StateError
from tidegate.control.state.finding import find_directory
from tidegate.errors import TidegateError

VARIABLE: Final = "_TIDEGATE_COMPLETE"
"""Set by the scripts of `tidegate --show-completion`: ``complete_bash``, ``complete_zsh``, ``complete_fish``."""
BY_NAME: Final = frozenset(
    {
        "delete", "describe", "explain", "forget", "get", "invoke", "load", "logs", "record", "resize", "rollback",
        "rollout", "series", "status", "traffic",
    }
)  # fmt: skip
"""Commands whose arguments are names of functions."""
LIMIT_S: Final = 0.15
MAX_BYTES: Final = 16 << 20


def answer(environ: Mapping[str, str]) -> str | None:
    """Returns what the shell is to be sent. None if the word to complete is not the name of a function."""
    shell = environ.get(VARIABLE, "").removeprefix("complete_")
    words = _words(shell, environ)
    if words is None or len(words) < 2 or words[0] not in BY_NAME:
        return None
    if any(word.startswith("-") for word in (words[-2], words[-1])):
        return None  # an option, or the value of one
    if "--context" in words:
        return ""  # another place's functions, which are not asked for
    names = [name for name in function_names(environ, _state(words)) if name.startswith(words[-1])]
    if not names:
        return None
    if shell == "fish" and environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return ""  # fish asks first whether there are words; the exit code says so
    if shell == "zsh":
        quoted = "\n".join(f'"{name}"' for name in names)
        return f"_arguments '*: :(({quoted}))'"
    return "\n".join(names)


def function_names(environ: Mapping[str, str], state: str | None = None) -> list[str]:
    """Returns the names of the deployed functions, or none if no control process answers at once."""
    try:
        directory = StateDirectory(find_directory(environ, Path.cwd(), given=state))
        holder, token = directory.holder(), directory.read_token()
        if holder is None or holder.api is None or token is None:
            return []
        found = json.loads(_get(holder.api, "/api/v1/functions", token))
        return [str(each["name"]) for each in found]
    except (OSError, ValueError, LookupError, TypeError, StateError, TidegateError):
        return []


def _words(shell: str, environ: Mapping[str, str]) -> list[str] | None:
    """Returns the words behind the program's name, the one to complete last (it may be empty). None for a shell that is
    left to typer."""
    try:
        if shell == "bash":
            words = (
                environ["COMP_WORDS"].split("\n")
                if "\n" in environ["COMP_WORDS"]
                else shlex.split(environ["COMP_WORDS"])
            )
            at = int(environ["COMP_CWORD"])
            return [*words[1:at], words[at] if at < len(words) else ""]
        if shell in ("zsh", "fish"):
            line = environ["_TYPER_COMPLETE_ARGS"]
            return [*shlex.split(line)[1:], *([""] if line.endswith(" ") else [])]
    except (LookupError, ValueError):
        return None
    return None


def _state(words: list[str]) -> str | None:
    return next((value for option, value in pairwise(words) if option == "--state"), None)


def _get(url: str, path: str, token: str) -> bytes:
    """Returns the body of a GET request. Raises OSError, ValueError if it is no answer of 200."""
    parts = urlsplit(url)
    head = f"GET {path} HTTP/1.0\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {token}\r\n\r\n"
    with socket.create_connection((parts.hostname or "", parts.port or 80), LIMIT_S) as client:
        client.sendall(head.encode())
        data = b""
        while (piece := client.recv(65536)) and len(data) < MAX_BYTES:
            data += piece
    start, _, body = data.partition(b"\r\n\r\n")
    if b" 200 " not in start[:16]:
        raise ValueError(f"{url}{path} answered {start[:40]!r}")
    return body
