"""HTTP for admin sockets: a small server and a small client."""
