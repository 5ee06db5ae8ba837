"""The command of a gateway worker process: ``python -P -m tidegate.gateway.main --config FILE.json``."""

import os
import random
import sys
from pathlib import Path

from tidegate.aio.log_stream import say, use_json
from tidegate.aio.loop.certificate import Certificate
from tidegate.aio.loop.places import raise_descriptors
from tidegate.aio.loop.run import run
from tidegate.aio.loop.sockets import inherited
from tidegate.errors import InvalidInputError
from tidegate.gateway.config import WorkerConfig, read_config
from tidegate.gateway.live import GatewayWorker

EXIT_INVALID = 2


def main(arguments: list[str]) -> int:
    """Runs one worker to its end. Returns the exit code of the process."""
    if len(arguments) != 2 or arguments[0] != "--config":
        sys.stderr.write("usage: python -P -m tidegate.gateway.main --config FILE.json\n")
        return EXIT_INVALID
    try:
        config = read_config(Path(arguments[1]).read_bytes(), arguments[1])
        if config.log is not None:
            _append_output(config.log)
        if config.log_format == "json":
            use_json({"logger": "gateway", "worker": config.worker})
        raise_descriptors()
        sock = inherited(config.listen_fd)
        certificate = _certificate(config)
    except (InvalidInputError, OSError) as error:
        say(f"gateway worker cannot start: {error}", level="error")
        return EXIT_INVALID

    async def serve(config: WorkerConfig) -> None:
        rng = random.Random(os.urandom(16))
        worker = GatewayWorker(config, incarnation=os.urandom(8).hex(), rng=rng, certificate=certificate)
        await worker.serve(sock)

    run(serve(config))
    return 0


def _certificate(config: WorkerConfig) -> Certificate | None:
    """Returns the certificate of the configuration, if it has one. Raises OSError if the pair cannot be used."""
    if config.tls_cert is None or config.tls_key is None:
        return None
    return Certificate(config.tls_cert, config.tls_key)


def _append_output(path: str) -> None:
    """Sends standard output and error to the end of a file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
