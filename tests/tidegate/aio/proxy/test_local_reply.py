"""Messages of a call that a process answers by itself."""

from tests.support.http2.grpc_client import framed
from tidegate.aio.proxy.grpc_call import LOCAL_BYTES, LocalReply


def own(body: bytes) -> LocalReply:
    return LocalReply(lambda rpc: None, body)


def test_messages_are_taken_one_by_one_as_they_become_whole() -> None:
    one = own(framed(b"a") + framed(b"", compressed=True)[:3])
    assert one.take() == (False, b"a")
    assert one.take() is None
    one.add(framed(b"", compressed=True)[3:] + framed(b"c"))
    assert [one.take(), one.take(), one.take()] == [(True, b""), (False, b"c"), None]


def test_a_message_that_would_never_be_whole_is_reported() -> None:
    """The stream's window ends before a message of a gigabyte does."""
    one = own(b"\0" + (1 << 30).to_bytes(4, "big") + b"x")
    assert one.take() is None
    assert one.is_too_large
    whole = own(framed(bytes(LOCAL_BYTES)))
    assert whole.take() == (False, bytes(LOCAL_BYTES))
    assert not whole.is_too_large
    assert own(framed(bytes(LOCAL_BYTES + 1))).take() is None
