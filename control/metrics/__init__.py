"""What the control process exposes to Prometheus."""
