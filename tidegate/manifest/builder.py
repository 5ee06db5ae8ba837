"""A function while its manifest is read: values with their source locations, and the checks across them.

Both readers, of Tidegate's own manifests and of Knative's, fill a :class:`FunctionBuilder`. Checks across keys (bounds
of scale, needs of a GPU, the policy and its parameters) are made here once.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidegate.function import Function, Protocol, Server, ServerKind
from tidegate.manifest.annotations import ANNOTATION, ANNOTATIONS, PARAMETER_PREFIX, PARAMETERS, PREFIX
from tidegate.records.route_table import Spread
from tidegate.schema.files import Disk, Files, Found, absolute
from tidegate.schema.rows import NAME, Row, Text, assemble, by_spelling, reach
from tidegate.schema.units import UnreadableError, UnreadablePartsError, go_int
from tidegate.schema.yaml_nodes import Faults, MapNode, Node, Pair, Scalar, nearest, shown, shown_key

NAME_KIND: Final = Text(NAME, "a DNS label: 1 to 63 of a-z, 0-9 and -, neither end a -")
KNATIVE_PREFIX: Final = "autoscaling.knative.dev/"


UNSERVED: Final[Mapping[str, str]] = {
    "sla.target_ips": "its policy does not read it",
    "sla.target_tps": "its policy does not read it",
    "sla.drop_after": "no policy reads it",
    "task_class": "no policy reads it",
    "gpu.count": "a replica gets one GPU",
    "dnn.quantization": "there is no model repository",
    "dnn.batch_size": "there is no model repository",
}
"""Fields that are kept with the function, but have no effect in this version: reported as warnings."""
SLA_POLICY: Final = "smif"
"""The default policy of functions with a latency, and the one that reads ``target-ips`` and ``target-tps``."""


_DEFAULTS: Final = Function(name="default", server=Server(kind=ServerKind.COMMAND))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseContext:
    """The facts that a reader needs in addition to the text."""

    base: str
    """Absolute folder from which relative paths start."""
    policies: Collection[str]
    """Names of the existing policies."""
    accelerators: Mapping[str, str] | None = None
    """Kind (``cpu``, ``nvidia``, ``emulated``) by name of every existing accelerator. None if names are not checked."""
    images: bool = False
    """True if container images can run here (Kubernetes)."""
    files: Files = field(default_factory=Disk)
    flags: Mapping[str, str] = field(default_factory=dict)
    """Annotations given on the command line, without prefix: they override the text."""


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """The place of a value in the text, and its text there."""

    where: str
    text: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """A warning: a valid key that has no effect here."""

    where: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        place = self.where if self.line is None else f"line {self.line}: {self.where}"
        return f"{place}: {self.message}"


class FunctionBuilder:
    """The values found so far. An unreadable value is a fault and counts as absent."""

    def __init__(self, context: ParseContext, faults: Faults, notes: list[Note]) -> None:
        self.context = context
        self.faults = faults
        self.notes = notes
        self.values: dict[str, object] = {}
        self.origins: dict[str, SourceLocation] = {}
        self.parameters: dict[str, SourceLocation] = {}
        self._unread: set[str] = set()
        """Fields with an invalid value: checks that would only repeat the fault are skipped."""
        self._flags: dict[str, str] = {}
        """Texts given on the command line, by field: they override the manifest, and are reported once if invalid."""
        self._take_flags()

    # --- filling --------------------------------------------------------------------------------------------------

    def put(self, field: str, value: object, origin: SourceLocation) -> None:
        """Sets a field. A second value from the text is a fault; a value that a flag overrides is dropped."""
        if field in self._flags:
            return
        first = self.origins.get(field)
        if first is not None:
            self.fault(origin, f"once; {first.where} gives it as well")
            return
        self.values[field] = value
        self.origins[field] = origin

    def read(self, row: Row, text: str, origin: SourceLocation) -> None:
        """Reads the value of a row of a table."""
        try:
            value = row.kind.read(text)
        except UnreadableError as error:
            if origin.text != self._flags.get(row.field):
                parts = f"; not readable: {error}" if isinstance(error, UnreadablePartsError) else ""
                self.fault(origin, row.kind.allowed + parts)
            self._unread.add(row.field)
            return
        self.put(row.field, value, origin)

    def scalar(self, row: Row, node: Node | None, where: str) -> None:
        """Reads a row's value from the text of a node; does nothing without a node."""
        if node is None:
            return
        if isinstance(node, Scalar):
            self.read(row, node.text, SourceLocation(where, node.text, node.line))
        else:
            self.faults.add(where, node, row.kind.allowed)

    def path(self, field: str, text: str, origin: SourceLocation, wanted: Found) -> str | None:
        """Sets a field to an absolute path at which ``wanted`` exists; otherwise adds a fault and returns None."""
        place = self.place(text, origin, wanted)
        if place is not None:
            self.put(field, place, origin)
        return place

    def place(self, text: str, origin: SourceLocation, wanted: Found) -> str | None:
        """Returns the absolute path of ``text`` if ``wanted`` exists there; otherwise adds a fault and returns None."""
        if not text or not text.isprintable():
            self.fault(origin, f"the path of {wanted.value}")
            return None
        place = absolute(self.context.base, text)
        found = self.context.files.look(place)
        if found is wanted:
            return place
        self.fault(origin, f"the path of {wanted.value}; {place} is {found.value}")
        return None

    def fault(self, origin: SourceLocation, allowed: str) -> None:
        self.faults.report(origin.where, shown(origin.text), allowed, origin.line)

    def has_nul(self, where: str, node: Scalar) -> bool:
        """Returns whether the text contains a NUL, which no process can receive; adds a fault if so."""
        if "\0" in node.text:
            self.faults.add(where, node, "text without a NUL character")
        return "\0" in node.text

    def note(self, where: str, message: str, line: int | None = None) -> None:
        self.notes.append(Note(where, message, line))

    def annotations(self, node: MapNode, where: str) -> None:
        """Reads all annotations under ``tidegate.dev/``; a Knative annotation is a fault here, other prefixes are
        notes."""
        spelt: dict[str, str] = {}
        for pair in node.pairs:
            if pair.key.startswith(PREFIX):
                self.annotation(pair, f"{where}.{shown_key(pair.key)}", spelt)
            elif pair.key.startswith(KNATIVE_PREFIX):
                allowed = f"a {PREFIX} annotation; Knative's belong in a Service manifest"
                self.faults.report(where, shown(pair.key), allowed, pair.line)
            elif "/" in pair.key:
                self.note(
                    f"{where}.{shown_key(pair.key)}", "not an annotation of Tidegate; it has no effect here", pair.line
                )
            else:
                hint = nearest(PREFIX + pair.key, [PREFIX + key for key in ANNOTATION])
                got = f"the unknown annotation {shown(pair.key)}"
                self.faults.report(where, got, f"annotations under {PREFIX}{hint}", pair.line)

    def annotation(self, pair: Pair, where: str, spelt: dict[str, str]) -> None:
        """Reads one annotation under ``tidegate.dev/``; ``spelt`` maps the keys read so far to the spelling used."""
        if not isinstance(pair.value, Scalar) or pair.value.is_null:
            self.faults.add(where, pair.value, "one value", pair.line)
            return
        key = pair.key.removeprefix(PREFIX)
        origin = SourceLocation(where, pair.value.text, pair.value.line)
        row = ANNOTATION.get(key)
        canonical = row.key if row is not None else key
        if canonical in spelt:
            self.faults.report(
                where, "the same annotation again", f"once; {spelt[canonical]} is given as well", pair.line
            )
            return
        spelt[canonical] = key
        self._one(key, row, origin)

    def _one(self, key: str, row: Row | None, origin: SourceLocation) -> None:
        if row is not None:
            self.read(row, origin.text, origin)
        elif key.startswith(PARAMETER_PREFIX):
            self.parameters.setdefault(key.removeprefix(PARAMETER_PREFIX), origin)
        else:
            known = [row.key for row in ANNOTATIONS]
            allowed = f"{', '.join(known)}, {PARAMETER_PREFIX}NAME{nearest(key, ANNOTATION.keys())}"
            self.faults.report(origin.where, f"an unknown annotation {shown(key)}", allowed, origin.line)

    def _take_flags(self) -> None:
        found = {key: ANNOTATION.get(key) for key in self.context.flags}
        for key, text in self.context.flags.items():
            self._one(key, found[key], SourceLocation(f"--{key}", text))
        self._flags = {row.field: self.context.flags[key] for key, row in found.items() if row is not None}

    # --- checks across keys ---------------------------------------------------------------------------------------

    def _has(self, field: str) -> bool:
        """Returns whether the field has a value, readable or not."""
        return self.values.get(field) is not None or field in self._unread

    def given(self, field: str) -> bool:
        return field in self.origins

    def finish(self, name: str, server: Server) -> Function:
        """Checks across keys and fills in dependent values. The result counts only if no fault was found."""
        self._check_scale()
        self._check_gpu()
        self._check_sla()
        self._check_routing()
        self._check_rollout()
        self._choose_policy()
        self._check_parameters()
        self._note_unserved()
        self.values.setdefault("models", (name,))
        return assemble(Function(name=name, server=server), self.values)

    def _note_unserved(self) -> None:
        reasons = dict(UNSERVED)
        if self.values["scaling.policy"] == SLA_POLICY:
            del reasons["sla.target_ips"]
            if self.values.get("protocol") is Protocol.OPENAI:
                del reasons["sla.target_tps"]
            else:
                reasons["sla.target_tps"] = "tokens are counted with protocol: openai"
        if self.values.get("protocol") is Protocol.GRPC:
            reasons |= dict.fromkeys(("routing.hedging", "rollout.shadow_percent"), "gRPC calls get no second copy")
        if not self.context.images:
            reasons["volume_mounts"] = "volumes are mounted on Kubernetes only"
        for path, reason in reasons.items():
            origin = self._first_of(path)
            if origin is not None:
                self.note(origin.where, f"is kept, but has no effect: {reason}", origin.line)

    def _check_scale(self) -> None:
        low, high = self.whole("scaling.min_scale", 0), self.whole("scaling.max_scale", 0)
        if high and low > high:
            self.fault(self.origins["scaling.min_scale"], f"at most max-scale, which is {high}")
        initial = self.origins.get("scaling.initial_scale")
        if initial is None:
            self.values["scaling.initial_scale"] = max(1, low)
        elif not low <= self.whole("scaling.initial_scale", 1) <= (high or float("inf")):
            self.fault(initial, f"{low} (min-scale) to {high or 'any number'} (max-scale)")

    def whole(self, field: str, default: int) -> int:
        """Returns a whole number found so far."""
        value = self.values.get(field, default)
        assert isinstance(value, int)
        return value

    def _check_gpu(self) -> None:
        if self.whole("gpu.core_percentage", 100) < 100 and not self.values.get("gpu.mps"):
            self.fault(self.origins["gpu.core_percentage"], "100, unless mps-on is true")
        gpu, repository = self._asks_for_gpu(), self._first_of("dnn.quantization")
        self._require("dnn.name", "dnn-model", gpu or repository)
        self._require("gpu.memory_gb", "gpu-mem-limit", gpu)

    def _require(self, field: str, key: str, cause: SourceLocation | None) -> None:
        if cause is not None and not self._has(field):
            self.faults.report(PREFIX + key, "nothing", f"a value, because of {cause.where}", cause.line)

    def _asks_for_gpu(self) -> SourceLocation | None:
        """Returns the reason why SMIF's required annotations are required: a GPU that is named, or described. None
        without one."""
        kinds = self.context.accelerators or {}
        named, origin = self.values.get("accelerators", ()), self.origins.get("accelerators")
        if origin is not None and isinstance(named, tuple) and any(kinds.get(name) == "nvidia" for name in named):
            return origin
        return self._first_of("gpu.model", "gpu.memory_gb", "gpu.mps", "gpu.core_percentage", "gpu.count")

    def _first_of(self, *places: str) -> SourceLocation | None:
        """Returns the location of the first of these fields with a value other than its default, or None."""
        said = (field for field in places if field in self.origins and self.values[field] != reach(_DEFAULTS, field))
        return next((self.origins[field] for field in said), None)

    def _check_sla(self) -> None:
        if self.values.get("sla.drop_after") is not None and not self._has("sla.latency_s"):
            self.fault(self.origins["sla.drop_after"], f"no such key without {PREFIX}latency")
        overhead = self._first_of("batch_rule.overhead_bytes")
        if overhead is not None and not self._has("batch_rule.bytes_per_item"):
            self.fault(overhead, f"no such key without {PREFIX}bytes-per-item")

    def _check_routing(self) -> None:
        hashed, spread = self._first_of("routing.hash_on"), self.values.get("routing.spread")
        if hashed is not None and spread is not Spread.HASH and "routing.spread" not in self._unread:
            self.fault(hashed, "no such key unless spread is hash")
        hedged = self._first_of("routing.hedging")
        if hedged is not None and not self.values.get("idempotent") and "idempotent" not in self._unread:
            self.fault(hedged, f"off, unless {PREFIX}idempotent is true")
        weighed, there = self._first_of("routing.group_weights"), self.context.accelerators
        if weighed is not None and there is not None:
            weights, own = self.values["routing.group_weights"], self.values.get("accelerators")
            usable = sorted(own if isinstance(own, tuple) and own else there)
            unknown = [] if not isinstance(weights, Mapping) else [name for name in weights if name not in usable]
            if unknown:
                self.fault(
                    weighed, f"accelerators that the function may use ({', '.join(usable)}), not {', '.join(unknown)}"
                )

    def _check_rollout(self) -> None:
        ways = ("rollout.duration_s", "rollout.canary_steps", "rollout.shadow_percent")
        given = [origin for field in ways if (origin := self._first_of(field)) is not None]
        for origin in given[1:]:
            self.fault(origin, f"no such key beside {given[0].where}: a revision is rolled out in one way")
        window = self._first_of("rollout.canary_window_s")
        if window is not None and not self.values.get("rollout.canary_steps"):
            self.fault(window, f"no such key without {PREFIX}canary-steps")

    def _choose_policy(self) -> None:
        policies = self.context.policies
        has_latency = self._has("sla.latency_s")
        origin = self.origins.get("scaling.policy")
        if origin is None:
            # Parameters of the other policy select it: a Knative manifest with a target keeps Knative's autoscaler.
            fits = self.parameters.keys() <= by_spelling(PARAMETERS[SLA_POLICY]).keys()
            self.values["scaling.policy"] = SLA_POLICY if has_latency and fits and SLA_POLICY in policies else "kpa"
            return
        policy = self.values["scaling.policy"]
        assert isinstance(policy, str)
        if policy not in policies:
            self.fault(origin, (", ".join(sorted(policies)) or "none") + nearest(policy, policies))
        elif policy == SLA_POLICY and not has_latency:
            self.fault(origin, f"another policy, or {PREFIX}latency as well")

    def _check_parameters(self) -> None:
        policy = str(self.values["scaling.policy"])
        if policy not in self.context.policies or "scaling.policy" in self._unread:
            return
        rows = by_spelling(PARAMETERS.get(policy, ()))
        read: dict[str, str] = {}
        for spelt, origin in self.parameters.items():
            row = rows.get(spelt)
            if row is None:
                known = sorted({row.key for row in rows.values()})
                allowed = f"{', '.join(known) or 'none'}{nearest(spelt, known)}"
                self.faults.report(origin.where, f"a parameter that {policy} does not have", allowed, origin.line)
            elif row.key in read:
                self.fault(origin, f"once; {row.key} is given in two spellings")
            elif not row.accepts(origin.text):
                self.fault(origin, row.kind.allowed)
            else:
                read[row.key] = origin.text
        self.values["scaling.parameters"] = read
        self._check_activation(read)

    def _check_activation(self, read: Mapping[str, str]) -> None:
        if "activation-scale" not in read:
            return
        origin = next(self.parameters[key] for key in ("activation-scale", "activationScale") if key in self.parameters)
        low, high = self.whole("scaling.min_scale", 0), self.whole("scaling.max_scale", 0)
        if not low <= go_int(origin.text) <= (high or float("inf")):
            self.fault(origin, f"{low} (min-scale) to {high or 'any number'} (max-scale)")
