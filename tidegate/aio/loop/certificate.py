"""The certificate of a listener: read from files, looked at again, replaced without touching open connections.

Each pair that was read has a context of its own; a handshake takes the newest. (Loading a second pair into one context
would leave an old certificate of another key type in it, and clients that prefer that type would still get it.) A pair
that cannot be used changes nothing, and ``fault`` says why. The key stays in this process.

Imported only where TLS is on.
"""

import ssl
from pathlib import Path

PROTOCOLS = ["h2", "http/1.1"]

Stamp = tuple[tuple[int, int, int, int] | None, ...]


def read_pair(certificate: str, key: str) -> ssl.SSLContext:
    """A server's context for the chain and the key in these PEM files: TLS 1.2 or newer, ALPN ``h2`` or ``http/1.1``.

    Raises OSError (of which ssl.SSLError is one) where they cannot be read or do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(PROTOCOLS)
    # Without a password OpenSSL would ask for one on the terminal.
    context.load_cert_chain(certificate, key, password="")
    return context


class Certificate:
    """A pair of files and what was last read of them."""

    def __init__(self, certificate: str, key: str) -> None:
        """Reads the pair; raises OSError as :func:`read_pair`."""
        self._files = (certificate, key)
        self._stamp = self._look_at_files()
        self.context = self._current = read_pair(*self._files)
        """For the listener, for ever."""
        self.context.sni_callback = self._choose
        self.fault: str | None = None
        """The reason for which the newest pair is not used; None if it is used."""

    def look(self) -> bool:
        """Reads the files if they have changed; True if a new pair is in use."""
        return self._look_at_files() != self._stamp and self.reload()

    def reload(self) -> bool:
        """Reads the files; False where the pair cannot be used: the old one stays."""
        self._stamp = self._look_at_files()
        try:
            self._current = read_pair(*self._files)
        except OSError as error:
            reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
            files = " and ".join(self._files)
            self.fault = f"the new pair in {files} cannot be used ({reason or error}); the old one stays"
            return False
        self.fault = None
        return True

    def _choose(self, handshake: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Called by OpenSSL in each handshake, with or without a server name."""
        if self._current is not context:
            handshake.context = self._current

    def _look_at_files(self) -> Stamp:
        return tuple(_stamp(Path(file)) for file in self._files)

    def __repr__(self) -> str:
        return f"<Certificate {self._files[0]}{', newer one refused' if self.fault else ''}>"


def _stamp(file: Path) -> tuple[int, int, int, int] | None:
    """Returns a value that changes with the file's content, permissions and place; None if the file does not exist."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
