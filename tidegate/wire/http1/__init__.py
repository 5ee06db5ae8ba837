"""HTTP/1.1 engines without IO (RFC 9110, RFC 9112)."""
