"""The fork server: a process that has imported what others need, and becomes them."""
