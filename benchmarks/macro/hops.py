"""gateway -> queue_proxy -> backend beside queue_proxy -> backend: CPU of both hops, and the latency they add.

A real gateway worker with a route table and a real queue_proxy with slots and token; reference POST. Between the two is
a unix socket, as the local backend has it, or TCP (``tcp``), as between two machines. All hops share the proxies' core.

At a fixed 2,000 requests/s hardly two requests share a wake-up, with one hop as with two: both meet cold caches, and
the ratio is of the work. At saturation (``post``) one hop has a core and its caches for itself and reads some thirty
requests per wake-up, while two displace each other after each handful; so the ratio there also holds the sharing. Two
nginx in a row stand beside both: what the arrangement costs a compiled proxy that does much less.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.macro import peers
from benchmarks.macro.clients import LEAD_S, Lane, inference, paced, wrk
from benchmarks.macro.harness import Bench, Server, Stage
from benchmarks.macro.latency import RATE
from benchmarks.macro.report import Book, Row

BOUND = 2.3
PACED, FULL = "2000/s", "post"


@dataclass(frozen=True, slots=True)
class Path:
    """Hops in a row; the first is asked."""

    hops: tuple[Server, ...]

    @property
    def name(self) -> str:
        return "+".join(hop.name for hop in self.hops)

    @property
    def address(self) -> str:
        return self.hops[0].address

    def cpu_us(self) -> list[float]:
        """Processor time of each hop so far."""
        return [hop.cpu_us() for hop in self.hops]


def measure(bench: Bench) -> Iterator[Row]:
    book = Book("hops")
    with Stage(bench) as stage:
        direct = peers.nginx_backend(stage)
        one = Path((peers.queue_proxy(stage, direct.address),))
        behind = peers.queue_proxy(stage, direct.address, name="replica", local=True)
        two = Path((peers.gateway(stage, [behind]), behind))
        far = peers.queue_proxy(stage, direct.address, name="replica (tcp)")
        both_far = Path((peers.gateway(stage, [far], name="gateway-tcp"), far))
        nginx = Path((_nginx(stage, direct.address, "nginx"),))
        nginx_two = Path((_nginx(stage, nginx.address, "nginx-front"), *nginx.hops))
        for number, counts in enumerate(bench.counted()):
            kept = book if counts else Book("warm-up")
            _full(kept, bench, (one, two, both_far, nginx, nginx_two), bench.length_s(counts))
            paths = (one, two, nginx, nginx_two)
            # A core that grows busier during a round is the first one's in one round and the last one's in the next.
            _paced(kept, direct, paths[:: -1 if number % 2 else 1], bench.length_s(counts))
    front = two.hops[0].name
    for load, bound in ((PACED, BOUND), (FULL, None)):
        yield book.row(load, one.name, "cpu_us_per_request")
        yield book.row(load, two.name, "cpu_us_per_request", against=one.name, bound=bound)
        yield book.row(load, front, "cpu_us_per_request", note="its part of both hops")
        if load == FULL:
            yield book.row(load, both_far.name, "cpu_us_per_request", against=one.name, note="TCP between the hops")
        yield book.row(load, nginx.name, "cpu_us_per_request")
        yield book.row(load, nginx_two.name, "cpu_us_per_request", against=nginx.name)
    yield book.row(FULL, two.name, "requests_per_s", against=one.name)
    yield book.row(PACED, one.name, "added_p50_us")
    yield book.row(PACED, two.name, "added_p50_us", against=one.name, bound=BOUND)
    yield book.row(PACED, two.name, "added_p99_us", against=one.name)


def _nginx(stage: Stage, upstream: str, name: str) -> Server:
    (server,) = peers.proxies(stage, upstream, only=("nginx",))
    return replace(server, name=name)


def _full(book: Book, bench: Bench, paths: Sequence[Path], seconds: int) -> None:
    """As many requests as go."""
    for path in paths:
        before = path.cpu_us()
        visit = wrk(bench, path.hops[0], "post", seconds)
        _book(book, FULL, path, before, visit.rps * visit.seconds)
        book.add(FULL, path.name, requests_per_s=visit.rps)


def _paced(book: Book, direct: Server, paths: Sequence[Path], seconds: float) -> None:
    """The fixed rate, and what each path adds to the latency of the bare backend."""
    base = Lane(direct.address, inference(), RATE)
    paced([base], seconds)
    for path in paths:
        lane = Lane(path.address, inference(), RATE)
        before = path.cpu_us()
        paced([lane], seconds)
        _book(book, PACED, path, before, RATE * (LEAD_S + seconds))
        book.add(PACED, path.name, added_p50_us=lane.p50() - base.p50(), added_p99_us=lane.p99() - base.p99())


def _book(book: Book, load: str, path: Path, before: list[float], requests: float) -> None:
    """CPU per request of the path, and of its first hop where it has several."""
    used = [(now - then) / requests for now, then in zip(path.cpu_us(), before, strict=True)]
    book.add(load, path.name, cpu_us_per_request=sum(used))
    if len(used) > 1:
        book.add(load, path.hops[0].name, cpu_us_per_request=used[0])
