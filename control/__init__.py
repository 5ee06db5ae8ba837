"""The control process: API, rounds, supervision of workers, and the command line."""
