"""The ``Prefer`` fields of a request, as far as they concern jobs (RFC 7240). Pure."""

import re
from typing import Final, NamedTuple

FIELD: Final = b"prefer"
MAX_BYTES: Final = 1024
"""The rest of a longer field is not read."""
_fields = re.compile(rb"(?:^|\n)prefer:([^\r\n]*)", re.IGNORECASE).findall
_listed = re.compile(rb"""(?:"(?:[^"\\]|\\.)*+"|[^,"])++""").findall
"""The elements of a list; a comma in a quoted string separates nothing."""
_seconds = re.compile(rb"[0-9]{1,9}").fullmatch


class Preference(NamedTuple):
    """What a client prefers."""

    is_async: bool
    """It need not be answered before the work is done (``respond-async``)."""
    wait_s: float
    """Seconds for which it waits for the answer first (``wait``); 0 without it."""


def read_preference(fields: bytes) -> Preference:
    """Reads header lines, each with its CRLF. Of a preference that is there twice the first counts (section 2), and
    a ``wait`` that is no number of seconds is none. Parameters of preferences are not looked at."""
    found: dict[bytes, bytes] = {}
    for value in _fields(fields):
        for element in _listed(value[:MAX_BYTES]):
            name, _, word = element.partition(b";")[0].partition(b"=")
            found.setdefault(name.strip(b" \t").lower(), word.strip(b' \t"'))
    wait = found.get(b"wait", b"")
    return Preference(b"respond-async" in found, float(int(wait)) if _seconds(wait) else 0.0)
