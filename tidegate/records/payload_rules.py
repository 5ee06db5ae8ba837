"""Which payloads of a function are sampled, and where they go (docs/operate/payloads.md)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadRules:
    """Sampling of the bodies of requests and answers; off unless a function asks for it."""

    percent: float = 0.0
    """Share of the requests whose bodies are kept."""
    sink: str | None = None
    """URL that gets the events. None: a file in the state directory."""
    redact: str | None = None
    """Names of JSON fields whose values are replaced, separated by commas. None: none is."""
    max_bytes: int = 64 * 1024
    """Bytes of each body that are kept."""

    @property
    def redacted(self) -> frozenset[str]:
        """The names of ``redact``, in lower case."""
        return frozenset(name.lower() for name in (self.redact or "").split(",") if name)
