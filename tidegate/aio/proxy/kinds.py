"""Conversion of an exchange to a gRPC call; it does not import HTTP/2, which a process without calls does not load."""

from typing import TYPE_CHECKING

from tidegate.aio.proxy.exchange import Exchange

if TYPE_CHECKING:
    from tidegate.aio.proxy.grpc_call import GrpcCall


def as_call(ex: Exchange) -> "GrpcCall":
    """Returns ``ex`` as a gRPC call. Raises TypeError if it is an HTTP exchange."""
    if TYPE_CHECKING:
        assert isinstance(ex, GrpcCall)
    elif not ex.is_rpc:
        raise TypeError(f"{ex!r} is no gRPC call")
    return ex
