"""The tenants' file: text in, :class:`tidegate.records.tenants.Tenant` out. All faults are reported at once, and none
contains a key.

::

    tenants:
      - name: acme
        keys: [sha256:5e88..., file:keys/acme]
        weight: 2
        priority: 3
        functions: [resnet, chat]
        quotas: {requests-per-second: 50, tokens-per-minute: 100000, concurrency: 20}
"""

from collections.abc import Callable
from typing import Any, Final

from tidegate.records.tenants import Tenant, digest
from tidegate.schema.files import absolute
from tidegate.schema.rows import NAME, Number, Row, Text, Whole, accepts, allowed_for, assemble
from tidegate.schema.units import UnreadableError
from tidegate.schema.yaml_nodes import Faults, ListNode, Node, Scalar, Section, load, shown

MAX_TENANTS: Final = 2000
"""Maximum tenants of a file; each is a label of metrics and a part of every route table. Our choice."""
MAX_KEYS: Final = 16
"""Maximum keys of a tenant: the present one, the next one, one for each of its services. Our choice."""
MAX_FUNCTIONS: Final = 1000
KEY_BYTES: Final = (16, 512)
"""Minimum and maximum length of an API key."""

TENANT_NAME: Final = Text(
    r"[A-Za-z0-9](?:[A-Za-z0-9._@:|-]{0,126}[A-Za-z0-9])?",
    "a name of 1 to 128 letters, digits and . _ @ : | -, a letter or digit at both ends",
)
FUNCTION_NAME: Final = Text(NAME, "the name of a function")
DIGEST: Final = Text(r"[0-9a-fA-F]{64}", "64 hexadecimal digits", lower=True)
KEY_WORDS: Final = "sha256:HEX or file:PATH (`tidegate tenant-key` makes a key and its SHA-256), not the key itself"

_MAX_AMOUNT: Final = 2**40
_AMOUNTS: Final = (
    ("requests-per-second", "Requests started per second."),
    ("requests-per-minute", "Requests started per minute."),
    ("inferences-per-second", "Inferences of the requests started per second."),
    ("inferences-per-minute", "Inferences of the requests started per minute."),
    ("tokens-per-second", "Tokens of prompts and completions per second."),
    ("tokens-per-minute", "Tokens of prompts and completions per minute."),
    ("concurrency", "Concurrent requests, waiting ones included."),
)

ROWS: Final[tuple[Row, ...]] = (
    Row(key="name", kind=TENANT_NAME, field="name", description="Name in metrics, `status` and the claim of a token."),
    Row(
        key="weight",
        kind=Number(0.01, 1000),
        field="weight",
        default="1",
        description="Share of a busy function, relative to the weights of the other waiting tenants.",
    ),
    Row(
        key="priority",
        kind=Whole(0, 9),
        field="priority",
        default_words="the function's",
        description="Priority of its requests, 0 (first) to 9; a request may lower it, not raise it.",
    ),
)
QUOTA_ROWS: Final[tuple[Row, ...]] = tuple(
    Row(
        key=key,
        kind=Whole(1, _MAX_AMOUNT),
        field=f"quotas.{key.replace('-', '_')}",
        default_words="no limit",
        description=description,
    )
    for key, description in _AMOUNTS
)

EMPTY_ALLOWED: Final = f"allowed: 1 to {MAX_KEYS} keys, or no such key for a tenant of tokens"
ReadKey = Callable[[str], bytes]
"""Returns the bytes of the file at an absolute path; raises OSError."""


def parse(
    text: str, *, source: str, base: str, read_key: ReadKey, warn: Callable[[str], None] | None = None
) -> tuple[Tenant, ...]:
    """Returns the tenants of a text, in its order. Relative paths of keys start from ``base``. ``warn`` is called with
    what is allowed and probably not meant.

    Raises InvalidInputError with every fault.
    """
    faults = Faults(source)
    documents = load(text, faults)
    faults.raise_any()
    if len(documents) != 1:
        faults.report("document", f"{len(documents)} documents", "one, with a list under `tenants`")
        raise faults.error()
    top = Section.of(documents[0], "document", faults)
    if top is None:
        raise faults.error()
    top.where = ""
    items = top.items("tenants")
    if items is None:
        if top.node.get("tenants") is None:
            faults.report("tenants", "nothing", "a list of tenants", top.node.line)
    elif len(items) > MAX_TENANTS:
        faults.report("tenants", f"{len(items)} tenants", f"at most {MAX_TENANTS}", top.node.line)
    reader = _TenantsReader(faults, base, read_key, warn or _ignore)
    found = [reader.tenant(item, f"tenants[{index}]") for index, item in enumerate((items or ())[:MAX_TENANTS])]
    top.close()
    faults.raise_any()
    return tuple(tenant for tenant in found if tenant is not None)


def _ignore(warning: str) -> None:
    """Does nothing: the caller takes no warnings."""


class _TenantsReader:
    def __init__(self, faults: Faults, base: str, read_key: ReadKey, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._faults = faults
        self._base = base
        self._read_key = read_key
        self._names: set[str] = set()
        self._owners: dict[str, str] = {}
        """Tenant by the SHA-256 of a key."""

    def tenant(self, item: Node, where: str) -> Tenant | None:
        section = Section.of(item, where, self._faults)
        if section is None:
            return None
        values = self._values(section, ROWS)
        quotas = section.section("quotas")
        if (line := section.empty("quotas")) is not None:
            self._faults.report(section.path("quotas"), "nothing", "quotas, or no such key for no limit", line)
        if quotas is not None:
            values |= self._values(quotas, QUOTA_ROWS)
            quotas.close()
        name = str(values.get("name", ""))
        if section.node.get("name") is None:
            self._faults.report(section.path("name"), "nothing", TENANT_NAME.allowed, section.node.line)
        elif name in self._names:
            self._faults.report(section.path("name"), shown(name), "each name once", section.node.line)
        self._names.add(name)
        values["keys"] = self._keys(section, name)
        values["functions"] = self._functions(section)
        section.close()
        return assemble(Tenant(name=name), values) if name else None

    def _values(self, section: Section, rows: tuple[Row, ...]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for row in rows:
            node = section.scalar(row.key)
            if node is None:
                if row.field != "name" and (line := section.empty(row.key)) is not None:  # A limit may have been lost.
                    self._faults.report(section.path(row.key), "nothing", f"{row.kind.allowed}, or no such key", line)
                continue
            try:
                values[row.field] = row.kind.read(node.text)
            except UnreadableError:
                self._faults.add(section.path(row.key), node, allowed_for(row.kind, node.text))
        return values

    def _keys(self, section: Section, tenant: str) -> tuple[str, ...]:
        found: list[str] = []
        node = section.take("keys")
        nodes = node.items if isinstance(node, ListNode) else ()
        if node is not None and not isinstance(node, ListNode):  # It may be a key: it is not shown.
            self._faults.report(section.path("keys"), "not a list (not shown)", f"a list, each {KEY_WORDS}", node.line)
        if isinstance(node, ListNode) and not nodes:
            where = f"{self._faults.source}: {section.path('keys')}"
            self._warn(f"{where}: the list is empty, no key opens anything for tenant {shown(tenant)}; {EMPTY_ALLOWED}")
        if len(nodes) > MAX_KEYS:
            self._faults.report(section.path("keys"), f"{len(nodes)} keys", f"at most {MAX_KEYS}", section.node.line)
        for index, item in enumerate(nodes[:MAX_KEYS]):
            where = f"{section.path('keys')}[{index}]"
            kind, _, rest = (item.text if isinstance(item, Scalar) else "").partition(":")
            known = None
            if kind == "sha256" and accepts(DIGEST, rest):
                known = rest.lower()
            elif kind == "file" and rest:
                known = self._key_file(where, absolute(self._base, rest), item.line)
                if known is None:
                    continue
            if known is None:  # The text may be a key: it is not shown.
                self._faults.report(where, "another value (not shown)", KEY_WORDS, item.line)
                continue
            owner = self._owners.setdefault(known, tenant)
            if owner != tenant or known in found:
                self._faults.report(where, f"a key of {shown(owner)}", "each key once", item.line)
            found.append(known)
        return tuple(found)

    def _key_file(self, where: str, path: str, line: int) -> str | None:
        try:
            key = self._read_key(path).strip()
        except OSError as error:
            self._faults.report(where, f"{shown(path)} ({error.strerror or 'not readable'})", "a file with a key", line)
            return None
        low, high = KEY_BYTES
        if not low <= len(key) <= high or not all(0x21 <= byte <= 0x7E for byte in key):
            allowed = f"one key of {low} to {high} printable ASCII characters without blanks"
            self._faults.report(where, f"{shown(path)} with other content (not shown)", allowed, line)
            return None
        return digest(key)

    def _functions(self, section: Section) -> tuple[str, ...]:
        nodes = section.texts("functions")
        allowed = f"1 to {MAX_FUNCTIONS} names, or no such key for every function"
        if nodes is None:
            if (line := section.empty("functions")) is not None:
                self._faults.report(section.path("functions"), "nothing", allowed, line)
            return ()
        if not 1 <= len(nodes) <= MAX_FUNCTIONS:
            self._faults.report(section.path("functions"), f"{len(nodes)} names", allowed, section.node.line)
        names = (section.text_of(section.path("functions"), node, FUNCTION_NAME) for node in nodes[:MAX_FUNCTIONS])
        return tuple(dict.fromkeys(name for name in names if name is not None))
