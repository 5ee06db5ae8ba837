"""HTTP/2 engines without IO (RFC 9113, RFC 7541)."""
