"""Device names: ``/job:J/task:N/device:CPU:0`` and their short forms."""

from __future__ import annotations

import re

_NAME = re.compile(
    r"^(?:/job:(?P<job>[\w.-]+))?(?:/task:(?P<task>\d+))?/?(?:device:)?(?:(?P<kind>[A-Za-z]+)(?::(?P<number>\d+|\*))?)?$"
)


def canonical_device(name: str) -> str:
    """The full form of a device name; parts that are not given stay open.

    Raises:
        ValueError: the name can't be read.

    >>> canonical_device("cpu:1"), canonical_device("/job:ps/task:3"), canonical_device("gpu")
    ('/device:CPU:1', '/job:ps/task:3', '/device:GPU:*')
    """
    match = _NAME.match(name.strip())
    if match is None or not name.strip():
        raise ValueError(f"Device {name!r} can't be read. Write 'cpu:0', 'gpu:1' or '/job:worker/task:0/device:CPU:0'.")
    text = ""
    if match["job"]:
        text += f"/job:{match['job']}"
    if match["task"]:
        text += f"/task:{match['task']}"
    if match["kind"]:
        text += f"/device:{match['kind'].upper()}:{match['number'] or '*'}"
    return text
