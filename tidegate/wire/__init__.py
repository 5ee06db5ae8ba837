"""Protocol engines without IO: HTTP/1.1, HTTP/2, gRPC, and readers of bodies; bytes in, events and bytes out."""
