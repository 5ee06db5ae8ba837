"""Limits of the listening side, and how they are read from a configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tidegate.errors import Fault, InvalidInputError
from tidegate.wire.http1.request_head import HeadRules

LimitValue = int | float | str | list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the client side; bytes and seconds. A breach answers the status named and closes."""

    head_bytes: int = 16 * 1024
    """431."""
    headers: int = 100
    """431."""
    target_bytes: int = 8 * 1024
    """414."""
    body_bytes: int = 1 << 30
    """413."""
    head_timeout_s: float = 10.0
    """Absolute, from the first byte of a head; 408."""
    idle_timeout_s: float = 75.0
    """Keep-alive without a request; closes silently."""
    body_idle_timeout_s: float = 30.0
    """The time in which ``body_min_rate`` must be kept; 408."""
    body_min_rate: float = 0.0
    """Bytes per second: as many as this makes in ``body_idle_timeout_s`` must come of a body in any such time, until
    its answer begins; 408. 0: one byte is enough."""
    waiting_body_bytes: int = 256 << 20
    """Limit for the bodies of all waiting requests of the process together. Beyond it no more than 16 KB of a waiting
    request's body are read until it is sent."""
    response_timeout_s: float = 300.0
    """First deadline of an exchange, which the app may move; 504."""
    stream_idle_timeout_s: float = 300.0
    """Between two pieces of a response; aborts."""
    stream_total_s: float = 3600.0
    """From the answer's head to its last byte; aborts."""
    tunnel_idle_timeout_s: float = 7200.0
    """A WebSocket that is silent for an hour lives."""
    handshake_timeout_s: float = 10.0
    """TLS; a slower client is cut off, and counted nowhere."""
    connections: int = 0
    """Client connections of the process at the front door; a further one is closed. 0: what its descriptors allow."""
    connections_per_client: int = 0
    """Those of one address, trusted proxies aside. 0: half of all."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks (``10.0.0.0/8``) whose forwarding fields are kept and appended to; ``unix`` for unix sockets."""
    front_door: bool = True
    """True (gateway): ``tidegate-`` fields other than those of KEPT_FROM_CLIENTS are removed and invisible.
    False (queue_proxy): visible to ``head.get``; only timeout-ms and batch-size are forwarded."""
    upgrades: frozenset[bytes] = frozenset({b"websocket"})
    """Upgrade protocols that pass."""
    via: bytes = b"tidegate"
    """Our name in ``via`` fields."""

    @property
    def due_bytes(self) -> float:
        """Bytes of a body that must come in any ``body_idle_timeout_s``."""
        return max(1.0, self.body_min_rate * self.body_idle_timeout_s)

    @property
    def slow_body(self) -> str:
        """The message of a 408 to a body that came too slowly."""
        time = f"{self.body_idle_timeout_s:g} s"
        if not self.body_min_rate:
            return f"the body took too long: nothing came for {time} (limits.body-idle-timeout)"
        return (
            f"the body took too long: fewer than {self.due_bytes:.0f} bytes came in {time} "
            f"(limits.body-min-rate {self.body_min_rate:g} bytes/s, limits.body-idle-timeout {time})"
        )

    def rules(self, *, trusted: bool) -> HeadRules:
        """Returns these limits as the head grammar needs them."""
        return HeadRules(
            head_bytes=self.head_bytes,
            headers=self.headers,
            target_bytes=self.target_bytes,
            front_door=self.front_door,
            trusted=trusted,
            upgrades=self.upgrades,
        )


def read_limits(values: Mapping[str, LimitValue], source: str, base: Limits | None = None) -> Limits:
    """``base`` (the defaults) with the limits that ``values`` names.

    Raises InvalidInputError for names and types that are none, all of them at once.
    """
    known = {name: field.type for name, field in Limits.__dataclass_fields__.items()}
    faults: list[Fault] = []
    chosen: dict[str, Any] = {}
    for name, value in values.items():
        allowed = known.get(name)
        if name == "trusted_proxies" and isinstance(value, list):
            chosen[name] = tuple(value)
        elif allowed is float and isinstance(value, int | float) and value > 0:
            chosen[name] = float(value)
        elif allowed is int and isinstance(value, int) and not isinstance(value, bool) and value > 0:
            chosen[name] = value
        else:
            wanted = "a limit's name" if allowed is None else f"{getattr(allowed, '__name__', allowed)} above 0"
            faults.append(Fault(f"limits.{name}", repr(value), wanted))
    if faults:
        raise InvalidInputError(source, faults)
    return replace(base if base is not None else Limits(), **chosen)
