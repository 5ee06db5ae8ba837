"""State of the control process: directory, registry, ownership, notices."""
