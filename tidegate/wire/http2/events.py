"""What an HTTP/2 engine reports.

An event is ``(kind, stream, value, flag)``; what concerns the whole connection names :attr:`Engine.connection`, the
stream with number 0:

======== ==================================== ===========================================
kind     value                                flag
======== ==================================== ===========================================
HEAD     the ``Block``                        the message has ended with it
BODY     bytes                                the message has ended with them
TRAILERS the ``Block``                        True
RESET    error code                           True: we reset it for the peer's fault
SENT     bytes that waited and have now gone  True: none of this stream waits any more
SETTINGS 0                                    False
PONG     the eight bytes                      False
CLOSING  error code of the peer's GOAWAY      False
FAILED   error code of our GOAWAY             False; nothing is heard or sent any more
======== ==================================== ===========================================
"""

from typing import Any

from tidegate.wire.http2.streams import Stream

HEAD, BODY, TRAILERS, RESET, SENT, SETTINGS, PONG, CLOSING, FAILED = range(9)
Event = tuple[int, Stream, Any, bool]
