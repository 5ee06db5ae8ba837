"""The prefix index: which replica has the beginning of a prompt in its cache, as far as can be known from outside.

Model servers keep the attention state of prompts in blocks, found by their contents from the prompt's beginning on. A
conversation that returns to its replica pays for its newest turn only. A :class:`PrefixIndex` remembers, for each
replica, the beginnings of the prompts that went there, in blocks hashed in a chain (a block's hash stands for all
before it as well). Like the cache behind it, it forgets what was not used for longest.

:meth:`PrefixIndex.choose` takes the replica that remembers most, unless that has more than its part of the load. If no
replica remembers any block, or several remember equally many, it takes the hash that every gateway worker would choose
by (:func:`tidegate.activator.choice.preferred`), of the first unknown block. So conversations with one system prompt
spread, and each keeps its place.

An answer may be wrong (another worker's requests, another eviction): that costs a prefill, never correctness. Hashes
have 32 bits; all that a client could gain by equal hashes is the wrong replica.
"""

import zlib
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from tidegate.activator.choice import LOAD_BOUND, Preferable, preferred

BLOCK_BYTES: Final = 256
"""About 64 tokens. Our choice: as fine as a short turn."""
FINE_BYTES: Final = 64 * BLOCK_BYTES
"""The first bytes of a prompt, which are hashed in blocks of ``BLOCK_BYTES``: about 15 us. The rest is hashed in blocks
of eight times the size: agents begin with tens of KB that all of them share, and their conversations differ behind
that."""
PROMPT_BYTES: Final = 9 * FINE_BYTES
"""Bytes hashed of one prompt: 144 KB, about 60 us."""
_ENDS: Final = (
    *range(BLOCK_BYTES, FINE_BYTES + 1, BLOCK_BYTES),
    *range(FINE_BYTES + 8 * BLOCK_BYTES, PROMPT_BYTES + 1, 8 * BLOCK_BYTES),
)
MAX_BLOCKS: Final = len(_ENDS)
REPLICA_BLOCKS: Final = 8192
"""Blocks remembered of one replica: 2 MB of prompts or more, about 1.4 MB of memory. Our choice."""
KNOWN_BOUND: Final = 1.5
"""A replica that remembers all of a prompt may have this many times the mean number of running requests. Our choice, of
1.25 to 2.25 in benchmarks/micro/affinity_sim: most of the possible gain, at little more unevenness."""
REPLICA_MODELS: Final = 8
"""Models remembered of one replica if only the model counts: adapters that a server is likely to hold. Our choice."""


class Named(Preferable, Protocol):
    """A replica, as the index reads it."""

    @property
    def id(self) -> Hashable: ...


R = TypeVar("R", bound=Named)


def block_hashes(prompt: bytes, model: bytes = b"") -> list[int]:
    """Returns the hashes of a prompt's whole blocks, each of everything up to its end; for a shorter prompt its own
    hash.

    ``model``: the cache of an adapter is its own, so its name is the first link. The server where it is loaded is
    preferred as well.
    """
    point = zlib.crc32(model)
    hashes = [point] if model else []
    size, begin = len(prompt), 0
    for end in _ENDS:
        if end > size:
            break
        point = zlib.crc32(prompt[begin:end], point)
        hashes.append(point)
        begin = end
    return hashes or [zlib.crc32(prompt, point)]


def blocks_per_replica(hash_on: str) -> int:
    """Returns how many blocks are remembered of one replica for this ``FunctionRoute.hash_on``."""
    return REPLICA_MODELS if hash_on == "model" else REPLICA_BLOCKS


class PrefixIndex(Generic[R]):
    """The prompts that each replica of a revision was sent."""

    __slots__ = ("_sent", "blocks")

    def __init__(self, replica_blocks: int = REPLICA_BLOCKS) -> None:
        self.blocks = replica_blocks
        """Blocks remembered of each replica at most."""
        self._sent: dict[Hashable, OrderedDict[int, None]] = {}
        """Hashes by replica, the least recently used first. A block is never used after the ones before it in its
        prompt, so the part of a prompt that is remembered is always its beginning."""

    @property
    def size(self) -> int:
        """The number of remembered blocks, of all replicas."""
        return sum(map(len, self._sent.values()))

    def match(self, replica: R, hashes: Sequence[int]) -> int:
        """Returns how many of a prompt's first blocks the replica was sent, by bisection."""
        sent = self._sent.get(replica.id)
        if not sent or hashes[0] not in sent:
            return 0
        known, unknown = 1, len(hashes) + 1
        while unknown - known > 1:
            middle = (known + unknown) // 2
            if hashes[middle - 1] in sent:
                known = middle
            else:
                unknown = middle
        return known

    def record(self, replica: R, hashes: Sequence[int]) -> None:
        """Records that the replica got this prompt."""
        sent = self._sent.get(replica.id)
        if sent is None:
            sent = self._sent[replica.id] = OrderedDict()
        for point in reversed(hashes):  # The first block last: it is the last to be forgotten.
            sent[point] = None
            sent.move_to_end(point)
        while len(sent) > self.blocks:
            sent.popitem(last=False)

    def forget(self, replica: Hashable) -> None:
        """Forgets a replica that is gone, or that restarted with an empty cache."""
        self._sent.pop(replica, None)

    def choose(self, replicas: Sequence[R], hashes: Sequence[int], inferences: int) -> R | None:
        """Returns the replica with a free slot that should have this prompt (:func:`block_hashes`); None if none has
        one.

        Bounded as :func:`tidegate.activator.choice.preferred` is, and wider the more there is to lose: a replica may
        run ``LOAD_BOUND`` times the mean, this request counted, and up to ``KNOWN_BOUND`` times and one more if it
        remembers all of the prompt. Beyond that its memory does not count while another replica has a free slot.
        """
        ready = [replica.in_flight for replica in replicas if replica.ready]
        mean = (sum(ready) + 1) / len(ready) if ready else 0.0
        bound, each = LOAD_BOUND * mean, ((KNOWN_BOUND - LOAD_BOUND) * mean + 1.0) / len(hashes)
        best: list[R] = []
        longest = 0
        for replica in replicas:
            if replica.free and replica.fits(inferences):
                known = self.match(replica, hashes)
                if replica.in_flight >= bound + each * known:
                    continue
                if known > longest:
                    best, longest = [], known
                if known == longest:
                    best.append(replica)
        if len(best) == 1:
            return best[0]
        key = hashes[min(longest, len(hashes) - 1)]
        return preferred(best or replicas, b"%08x" % key, inferences)

    def __repr__(self) -> str:
        return f"<PrefixIndex { ({name: len(sent) for name, sent in self._sent.items()}) }>"
