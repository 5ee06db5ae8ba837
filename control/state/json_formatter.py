"""JsonFormatter: the control process's log lines as JSON objects, in the form of all other processes."""

import logging
from typing import Final

from tidegate.aio.log_stream import json_line

NAMES: Final = ("function", "revision", "replica", "subject")
"""Fields that a line has where the caller knows them (``extra`` of the logging call)."""


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}\n{self.formatException(record.exc_info)}"
        fields = {"logger": record.name}
        for name in NAMES:
            value = getattr(record, name, None)
            if value is not None:
                fields[name] = str(value)
        return json_line(record.created, record.levelname.lower(), fields, message)

    def __repr__(self) -> str:
        return "<JsonFormatter>"
