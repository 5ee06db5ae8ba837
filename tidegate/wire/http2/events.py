"""Events of an HTTP/2 engine.

An event is ``(kind, stream, value, flag)``. Events of the whole connection have the stream :attr:`Engine.connection`,
which has number 0:

======== ==================================== ===========================================
kind     value                                flag
======== ==================================== ===========================================
HEAD     the ``Block``                        the message has ended with it
BODY     bytes                                the message has ended with them
TRAILERS the ``Block``                        True
RESET    error code                           True: the engine reset it for the peer's fault
SENT     number of waiting bytes now sent     True: no more bytes of this stream wait
SETTINGS 0                                    False
PONG     the eight bytes                      False
CLOSING  error code of the peer's GOAWAY      False
FAILED   error code of our GOAWAY             False; nothing is received or sent any more
======== ==================================== ===========================================
"""

from typing import Any

from tidegate.wire.http2.streams import Stream

HEAD, BODY, TRAILERS, RESET, SENT, SETTINGS, PONG, CLOSING, FAILED = range(9)
Event = tuple[int, Stream, Any, bool]
