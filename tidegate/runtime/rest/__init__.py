"""Routes of REST protocols beside V2's inference, each imported with its first request."""
