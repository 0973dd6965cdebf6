"""Logs of a server on standard error: lines for people, or an object of JSON a line for machines."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Generator

FORMATS = ("text", "json")


class JsonLines(logging.Formatter):
    """Writes a record as an object: time (UTC), level, logger, message and, where there is one, the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        found = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return json.dumps(found)


@contextlib.contextmanager
def logging_to_stderr(format: str) -> Generator[None]:
    """Let loggers write to standard error, as long as the block runs: the server's, and warnings of all others.

    Python's warnings are among these.

    Args:
        format: one of `FORMATS`.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if format == "json" else logging.Formatter("%(levelname)s %(message)s"))
    root, logger = logging.getLogger(), logging.getLogger("anabranch.serving")
    level = logger.level
    root.addHandler(handler)
    logger.setLevel(logging.INFO)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)
        logger.setLevel(level)
