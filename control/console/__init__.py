"""The console: pages for operators, served by the control process."""
