"""The engines against python-hyper's ``h2``: a proxy between its client and its server, split at any byte."""

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, ResponseReceived, StreamEnded, StreamReset, TrailersReceived
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.http2.proxy import Proxy

Fields = list[tuple[bytes, bytes]]
CALL: Fields = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
    (b":authority", b"a.example"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
]
ANSWER: Fields = [(b":status", b"200"), (b"content-type", b"application/grpc")]
TRAILER: Fields = [(b"grpc-status", b"0")]


class Link:
    """client -> proxy -> server; the server echoes bodies and adds trailers."""

    def __init__(self, cuts: list[int]) -> None:
        self.client = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self.server = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self.proxy = Proxy()
        self._cuts = cuts
        self._turn = 0
        self.heads: dict[int, Fields] = {}
        self.asked: dict[int, Fields] = {}
        self.bodies: dict[int, bytes] = {}
        self.ends: dict[int, Fields] = {}
        self.waiting: dict[int, list[bytes]] = {}
        self.done: set[int] = set()
        self.resets: dict[int, int] = {}
        self.client.initiate_connection()
        self.server.initiate_connection()
        self.carry()

    def _pieces(self, data: bytes) -> list[bytes]:
        pieces = []
        while data:
            size = self._cuts[self._turn % len(self._cuts)]
            self._turn += 1
            pieces.append(data[:size])
            data = data[size:]
        return pieces

    def carry(self) -> None:
        """Carries bytes until all are silent."""
        moved = True
        while moved:
            moved = False
            up, down = [], []
            for piece in self._pieces(self.client.data_to_send()):
                moved = True
                to_client, to_server = self.proxy.from_client(piece)
                down.append(to_client)
                up.append(to_server)
            for piece in self._pieces(self.server.data_to_send()):
                moved = True
                to_client, to_server = self.proxy.from_upstream(piece)
                down.append(to_client)
                up.append(to_server)
            for piece in self._pieces(self.proxy.client.take() + b"".join(up)):
                moved = True
                self._serve(piece)
            for piece in self._pieces(self.proxy.server.take() + b"".join(down)):
                moved = True
                self._receive(piece)

    def _serve(self, data: bytes) -> None:
        for event in self.server.receive_data(data):
            if isinstance(event, RequestReceived):
                self.asked[event.stream_id] = list(event.headers)
                self.waiting[event.stream_id] = []
                self.server.send_headers(event.stream_id, ANSWER)
            elif isinstance(event, DataReceived):
                self.server.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                self.waiting[event.stream_id].append(event.data)
            elif isinstance(event, StreamEnded):
                self.done.add(event.stream_id)
        for number, pieces in self.waiting.items():
            self._echo(number, pieces)

    def _echo(self, number: int, pieces: list[bytes]) -> None:
        while pieces:
            room = min(self.server.local_flow_control_window(number), self.server.max_outbound_frame_size)
            if room <= 0:
                return
            piece, pieces[0] = pieces[0][:room], pieces[0][room:]
            self.server.send_data(number, piece)
            if not pieces[0]:
                pieces.pop(0)
        if number in self.done:
            self.done.discard(number)
            self.server.send_headers(number, TRAILER, end_stream=True)

    def _receive(self, data: bytes) -> None:
        for event in self.client.receive_data(data):
            if isinstance(event, ResponseReceived):
                self.heads[event.stream_id] = list(event.headers)
            elif isinstance(event, DataReceived):
                self.client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
            elif isinstance(event, TrailersReceived):
                self.ends[event.stream_id] = list(event.headers)
            elif isinstance(event, StreamReset):
                self.resets[event.stream_id] = int(event.error_code)


CUTS = st.one_of(st.just([1]), st.lists(st.integers(1, 60), min_size=1, max_size=8), st.just([1 << 20]))
METADATA = st.lists(
    st.tuples(
        st.sampled_from((b"x-a", b"x-trace", b"x-bin-bin")), st.sampled_from((b"", b"1", b"0123456789abcdef" * 3))
    ),
    max_size=4,
)


@given(CUTS, st.lists(st.tuples(METADATA, st.lists(st.binary(max_size=300), max_size=3)), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_calls_and_answers_arrive_whole(cuts: list[int], calls: list[tuple[Fields, list[bytes]]]) -> None:
    link = Link(cuts)
    for index, (metadata, pieces) in enumerate(calls):
        number = 2 * index + 1
        link.client.send_headers(number, CALL + metadata)
        for piece in pieces:
            link.client.send_data(number, piece)
        link.carry()
    for index, (metadata, pieces) in enumerate(calls):
        number = 2 * index + 1
        link.client.end_stream(number)
        link.carry()
        assert link.asked[number] == CALL + metadata
        assert (link.heads[number], link.ends[number]) == (ANSWER, TRAILER)
        assert link.bodies.get(number, b"") == b"".join(pieces)
    assert not link.resets
    assert not link.proxy.server.streams
    assert not link.proxy.client.streams


def test_large_messages_flow_through_default_windows() -> None:
    link = Link([70_000])
    text = b"0123456789" * 100_000
    link.client.send_headers(1, CALL)
    at = 0
    while at < len(text):
        room = min(link.client.local_flow_control_window(1), link.client.max_outbound_frame_size)
        if room:
            link.client.send_data(1, text[at : at + room])
            at += room
        else:
            link.carry()
    link.client.end_stream(1)
    link.carry()
    assert link.bodies[1] == text
    assert link.ends[1] == TRAILER


def test_a_cancelled_call_is_reset_at_the_server() -> None:
    link = Link([1 << 20])
    link.client.send_headers(1, CALL)
    link.carry()
    link.client.reset_stream(1, 8)
    link.carry()
    assert not link.proxy.client.streams
    link.client.send_headers(3, CALL, end_stream=True)
    link.carry()
    assert link.ends[3] == TRAILER


def test_the_server_resets() -> None:
    link = Link([1 << 20])
    link.client.send_headers(1, CALL)
    link.carry()
    link.server.reset_stream(1, 11)
    link.carry()
    assert link.resets == {1: 11}
