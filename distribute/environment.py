"""`cluster_from_environment`: which cluster there is, and which of its tasks this process is."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from .cluster import ClusterSpec

WORKER_JOBS = ("chief", "worker")  # in the order in which their tasks are numbered


class Place(NamedTuple):
    """The place of a process.

    Attributes:
        cluster: all tasks.
        job_name, task_index: which of them this is.
    """

    cluster: ClusterSpec
    job_name: str
    task_index: int


def cluster_from_environment(environment: Mapping[str, str] | None = None) -> Place | None:
    """Read the cluster that a launcher describes in ``TF_CONFIG``; None if there is none.

    Args:
        environment: in place of ``os.environ``.

    Raises:
        ValueError: the variable can't be read; the message shows how it is written.

    >>> config = '{"cluster": {"worker": ["localhost:2203"]}, "task": {"type": "worker", "index": 0}}'
    >>> cluster_from_environment({"TF_CONFIG": config}).job_name
    'worker'
    """
    text = (os.environ if environment is None else environment).get("TF_CONFIG", "").strip()
    if not text:
        return None
    try:
        config: Any = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        place = Place(ClusterSpec(cluster), str(task["type"]), int(task["index"]))
        place.cluster.task_name(place.job_name, place.task_index)
    except (KeyError, TypeError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"TF_CONFIG is {text!r}, which can't be read: {what}. Write {_EXAMPLE}.") from None
    return place


_EXAMPLE = '{"cluster": {"worker": ["host:2203"], "ps": ["host:2201"]}, "task": {"type": "worker", "index": 0}}'
