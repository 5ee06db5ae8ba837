"""A function while its manifest is read: values with their source locations, and the checks across them.

Both readers, of Tidegate's own manifests and of Knative's, fill a :class:`FunctionBuilder`. Checks across keys (bounds
of scale, needs of a GPU, the policy and its parameters) are made here once.
"""

from collections.abc import Collection, KeysView, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidegate.function import DnnModel, Function, Protocol, Server, ServerKind
from tidegate.manifest.annotations import ANNOTATION, ANNOTATIONS, PARAMETER_PREFIX, PARAMETERS, PREFIX
from tidegate.records.route_table import Spread
from tidegate.schema.files import Disk, Files, Found, absolute
from tidegate.schema.rows import NAME, Row, Text, allowed_for, assemble, by_spelling, reach
from tidegate.schema.units import UnreadableError, UnreadablePartsError, go_int
from tidegate.schema.yaml_nodes import Faults, MapNode, Node, Pair, Scalar, nearest, shown, shown_key

NAME_KIND: Final = Text(NAME, "a DNS label: 1 to 63 of a-z, 0-9 and -, neither end a -")
SPEC_FLAG: Final = "spec."
"""Prefix of the flags that are keys of ``spec`` and no annotations."""
KNATIVE_PREFIX: Final = "autoscaling.knative.dev/"


UNSERVED: Final[Mapping[str, str]] = {
    "sla.target_ips": "its policy does not read it",
    "sla.target_tps": "its policy does not read it",
    "sla.per_token_s": "tokens are counted with protocol: openai",
    "dnn.quantization": "its server is no model repository",
    "dnn.batch_size": "its server is no model repository",
}
"""Fields that are kept with the function, but have no effect in this version: reported as warnings."""
SLA_POLICIES: Final = ("tide", "smif")
"""The policies that need a latency, and read ``target-ips`` and ``target-tps``. A function with a latency gets the
first one that has all of its policy's parameters."""

LATENCY_POLICIES: Final = (*SLA_POLICIES, "themis", "horizontal-only", "vertical-only")
"""All policies that need a latency."""

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
    """Values given on the command line: they override the text. Annotations without prefix, and ``spec.python``,
    ``spec.accelerators`` (separated by commas), ``spec.env.NAME``, ``spec.args.NAME``."""

    def spec_flag(self, key: str) -> str | None:
        """Returns the value of ``--python`` or ``--accelerators``; None if it was not given."""
        return self.flags.get(f"{SPEC_FLAG}{key}")

    def spec_flags(self, key: str) -> dict[str, str]:
        """Returns the values of ``--env`` or ``--arg`` by name."""
        prefix = f"{SPEC_FLAG}{key}."
        return {name.removeprefix(prefix): text for name, text in self.flags.items() if name.startswith(prefix)}


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


def _spellings(policy: str) -> KeysView[str]:
    """Returns the spellings of the parameters of a policy."""
    return by_spelling(PARAMETERS[policy]).keys()


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
                self.fault(origin, row.kind.allowed + parts if parts else allowed_for(row.kind, text))
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
        """Returns the absolute path of ``text`` if ``wanted`` exists there, or it lies where it cannot be seen from
        here; otherwise adds a fault and returns None."""
        if not text or not text.isprintable():
            self.fault(origin, f"the path of {wanted.value}")
            return None
        place = absolute(self.context.base, text)
        found = Found.ELSEWHERE if self._is_mounted(place) else self.context.files.look(place)
        if found in (wanted, Found.ELSEWHERE):
            return place
        self.fault(origin, f"the path of {wanted.value}; {place} is {found.value}")
        return None

    def _is_mounted(self, place: str) -> bool:
        """Returns whether a path lies in a volume, which replicas alone see."""
        mounts = str(self.values.get("volume_mounts", "")) if self.context.images else ""
        paths = [text.split(":")[1] for text in mounts.split(",") if text]
        return any(place.startswith(f"{path.rstrip('/')}/") for path in paths)

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
        if row is None and key in self.context.flags:
            return  # The same unknown key is a fault of the flag.
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
        flags = {key: text for key, text in self.context.flags.items() if not key.startswith(SPEC_FLAG)}
        found = {key: ANNOTATION.get(key) for key in flags}
        for key, text in flags.items():
            self._one(key, found[key], SourceLocation(f"--{key}", text))
        self._flags = {row.field: flags[key] for key, row in found.items() if row is not None}

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
        self._check_volumes()
        self._check_sla()
        self._check_variant()
        self._check_routing()
        self._check_rollout()
        self._choose_policy()
        self._check_parameters()
        self._note_unserved(server)
        self.values.setdefault("models", (name,))
        return assemble(Function(name=name, server=server), self.values)

    def finish_pipeline(self, name: str, server: Server) -> Function:
        """Does the same for a pipeline, which has no replicas: its policy scales its stages, by its latency."""
        self._check_sla()
        self._choose_policy()
        usable = [each for each in LATENCY_POLICIES if each in self.context.policies]
        if self.values["scaling.policy"] in LATENCY_POLICIES:
            self._check_parameters()
        else:
            origin = self.origins.get("scaling.policy")
            if origin is not None and self.values["scaling.policy"] in self.context.policies:
                self.fault(origin, f"{', '.join(usable)}: these divide the latency of the whole among the stages")
            for origin in self.parameters.values():
                self.fault(origin, f"no such key of a pipeline unless its policy is {' or '.join(usable)}")
        self.values["scaling.initial_scale"] = 0
        self.values["models"] = (name,)
        return assemble(Function(name=name, server=server), self.values)

    def _check_volumes(self) -> None:
        if self.values.get("volume_mounts") and not self.context.images:
            allowed = "it on Kubernetes only: a model server here sees this machine's files, by their own paths"
            self.fault(self.origins["volume_mounts"], allowed)

    def _note_unserved(self, server: Server) -> None:
        reasons = dict(UNSERVED)
        if server.forms:
            del reasons["dnn.quantization"], reasons["dnn.batch_size"]
        if self.values["scaling.policy"] in SLA_POLICIES:
            del reasons["sla.target_ips"]
            if self.values.get("protocol") is Protocol.OPENAI:
                del reasons["sla.target_tps"]
            else:
                reasons["sla.target_tps"] = "tokens are counted with protocol: openai"
        if self.values.get("protocol") is Protocol.OPENAI:
            del reasons["sla.per_token_s"]
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

    @property
    def dnn(self) -> DnnModel:
        """The key into a model repository, as found so far."""
        keys = {field.removeprefix("dnn."): value for field, value in self.values.items() if field.startswith("dnn.")}
        return assemble(DnnModel(), keys)

    def whole(self, field: str, default: int) -> int:
        """Returns a whole number found so far."""
        value = self.values.get(field, default)
        assert isinstance(value, int)
        return value

    def _check_gpu(self) -> None:
        if self.whole("gpu.core_percentage", 100) < 100 and not self.values.get("gpu.mps"):
            self.fault(self.origins["gpu.core_percentage"], "100, unless mps-on is true")
        if self.whole("gpu.count", 1) > 1 and self.values.get("gpu.mps"):
            self.fault(self.origins["gpu.mps"], "false: a replica has several whole GPUs, or shares one")
        if self.whole("gpu.time_slices", 1) > 1:
            others = ("gpu.mps", "gpu.count")
            for other in filter(None, map(self._first_of, others)):
                self.fault(other, f"no such key beside {PREFIX}gpu-time-slices")
        gpu, repository = self._asks_for_gpu(), self._first_of("dnn.quantization")
        if gpu is not None and (missing := self._without_gpu()) is not None:
            self.fault(gpu, missing)
            return
        self._require("dnn.name", "dnn-model", gpu or repository)
        self._require("gpu.memory_gb", "gpu-mem-limit", gpu)

    def _without_gpu(self) -> str | None:
        """Returns what is allowed where none of the accelerators can be the GPU that is asked for; None if one can, or
        if they are not known."""
        kinds, model = self.context.accelerators, self.values.get("gpu.model")
        if kinds is None or self.values.get("accelerators"):
            return None  # the list of accelerators decides, and its names are checked
        devices = sorted(name for name, kind in kinds.items() if kind != "cpu")
        wanted = model.lower() if isinstance(model, str) else None
        if any(wanted is None or name.lower() == wanted or name.lower().startswith(f"{wanted}-") for name in devices):
            return None
        hint = nearest(wanted or "", devices)
        found = f"a GPU that is here: {', '.join(devices)}{hint}" if devices else "no such key: there is no GPU here"
        return f"{found} (the accelerators are {', '.join(sorted(kinds)) or 'none'})"

    def _require(self, field: str, key: str, cause: SourceLocation | None) -> None:
        if cause is not None and not self._has(field):
            where = ("--" if cause.where.startswith("--") else PREFIX) + key
            self.faults.report(where, "nothing", f"a value, because of {cause.where}", cause.line)

    def _asks_for_gpu(self) -> SourceLocation | None:
        """Returns the reason why SMIF's required annotations are required: a GPU that is named, or described. None
        without one."""
        kinds = self.context.accelerators or {}
        named, origin = self.values.get("accelerators", ()), self.origins.get("accelerators")
        if origin is not None and isinstance(named, tuple) and any(kinds.get(name) == "nvidia" for name in named):
            return origin
        return self._first_of(
            "gpu.model", "gpu.memory_gb", "gpu.mps", "gpu.core_percentage", "gpu.count", "gpu.time_slices"
        )

    def _first_of(self, *places: str) -> SourceLocation | None:
        """Returns the location of the first of these fields with a value other than its default, or None."""
        said = (field for field in places if field in self.origins and self.values[field] != reach(_DEFAULTS, field))
        return next((self.origins[field] for field in said), None)

    def _check_sla(self) -> None:
        for path in ("sla.drop_after", "sla.per_token_s"):
            if self.values.get(path) is not None and not self._has("sla.latency_s"):
                self.fault(self.origins[path], f"no such key without {PREFIX}latency")
        overhead = self._first_of("batch_rule.overhead_bytes")
        if overhead is not None and not self._has("batch_rule.bytes_per_item"):
            self.fault(overhead, f"no such key without {PREFIX}bytes-per-item")

    def _check_variant(self) -> None:
        """Checks that a variant has an accuracy, and that its requests can be sent to another one."""
        family = self._first_of("variant.family")
        self._require("variant.accuracy", "accuracy", family)
        for path in ("variant.accuracy", "variant.loss"):
            stated = self._first_of(path)
            if stated is not None and family is None:
                self.fault(stated, f"no such key without {PREFIX}variant-of")
        loss = self._first_of("variant.loss")
        if loss is not None and self.values.get("protocol") in (Protocol.OPENAI, Protocol.GRPC):
            self.fault(loss, "no such key with the protocols openai and grpc: another variant has another name there")

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
            # Parameters of another policy select it: a Knative manifest with a target keeps Knative's autoscaler.
            usable = LATENCY_POLICIES if has_latency else ()
            fit = (each for each in usable if each in policies and self.parameters.keys() <= _spellings(each))
            self.values["scaling.policy"] = next(fit, "kpa")
            return
        policy = self.values["scaling.policy"]
        assert isinstance(policy, str)
        if policy not in policies:
            others = sorted(each for each in policies if has_latency or each not in LATENCY_POLICIES)
            needing = [] if has_latency else [each for each in LATENCY_POLICIES if each in policies]
            with_sla = f", or {' or '.join(needing)} with {PREFIX}latency" if needing else ""
            self.fault(origin, (", ".join(others) or "none") + with_sla + nearest(policy, policies))
        elif policy in LATENCY_POLICIES and not has_latency:
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
                self.fault(origin, allowed_for(row.kind, origin.text))
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
