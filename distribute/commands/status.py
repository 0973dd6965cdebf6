"""The command ``python -m anabranch status``: what the tasks of a cluster do, as text, JSON or Prometheus metrics."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

from ..cluster import ClusterSpec
from ..environment import WORKER_JOBS
from ..tasks.task_status import TaskStatus, status

Reading = dict[str, Any]
_TIMEOUT = 2.0  # seconds; clients wait longer, for tasks that start


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument("target", nargs="*", metavar="grpc://HOST:PORT", help="tasks to ask")
    parser.add_argument(
        "--cluster", metavar="JSON", help='ask all tasks: {"ps": ["host:port"], "worker": ["host:port"]}'
    )
    parser.add_argument("--format", choices=("text", "json", "prometheus"), default="text")
    parser.add_argument(
        "--interval",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="between two looks, for steps a second (default: 1)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=_TIMEOUT,
        metavar="SECONDS",
        help="to wait for a task that does not answer (default: %(default)g)",
    )


def run(options: argparse.Namespace) -> int:
    """Ask the tasks, print what they say; the exit status is 1 if one does not answer."""
    try:
        targets = _targets(options)
    except (TypeError, ValueError) as error:
        print(f"anabranch status: {error}", file=sys.stderr)
        return 2
    readings = read(targets, options.interval, timeout=options.timeout)
    print(_FORMATS[options.format](readings))
    return 1 if any("error" in reading for reading in readings) else 0


def _targets(options: argparse.Namespace) -> list[str]:
    targets = list(options.target)
    if options.cluster:
        cluster = ClusterSpec.from_json(options.cluster)
        targets += [f"grpc://{cluster.address(task)}" for task in cluster.tasks]
    if not targets:
        raise ValueError("name a task, such as grpc://localhost:2203, or give --cluster.")
    return targets


def read(
    targets: Sequence[str],
    interval: float,
    wait: Callable[[float], None] = time.sleep,
    timeout: float = _TIMEOUT,
) -> list[Reading]:
    """Look at tasks twice, at all of them at once; at those that do not answer, once.

    Args:
        targets: "grpc://host:port" of each.
        interval: seconds between the two looks.
        wait: waits for so long.
        timeout: seconds to wait for a task that does not answer.

    Returns:
        For each task what `status` gives, as values of JSON, with its "role", "steps_per_second" of the parts of steps
        that it runs, and for each training "steps_per_second" and "dropped", a count for each worker. Of a task that
        does not answer its "target" and the "error".
    """
    with ThreadPoolExecutor(len(targets)) as threads:
        first, began = list(threads.map(partial(_look, timeout=timeout), targets)), time.monotonic()
        if any(isinstance(each, TaskStatus) for each in first):
            wait(interval)
        second = list(threads.map(partial(_look_again, timeout=timeout), targets, first))
        passed = time.monotonic() - began
    return [_reading(*each, passed) for each in zip(targets, first, second, strict=True)]


def _look(target: str, timeout: float) -> TaskStatus | Exception:
    try:
        return status(target, timeout)
    except (OSError, RuntimeError, ValueError) as error:
        return error


def _look_again(target: str, first: TaskStatus | Exception, timeout: float) -> TaskStatus | Exception:
    return _look(target, timeout) if isinstance(first, TaskStatus) else first


def _reading(target: str, first: TaskStatus | Exception, second: TaskStatus | Exception, passed: float) -> Reading:
    if isinstance(second, Exception):
        return {"target": target, "error": str(second)}
    found: Reading = {"target": target, "role": role_of(second.task), **asdict(second)}
    is_same = isinstance(first, TaskStatus) and first.incarnation == second.incarnation
    before = first if is_same and isinstance(first, TaskStatus) else second
    found["steps_per_second"] = round((second.held["steps"] - before.held["steps"]) / passed, 3) if passed else 0.0
    known = {(each["container"], each["name"]): each for each in before.training}
    for each in found["training"]:
        earlier: Any = known.get((each["container"], each["name"]), each)
        each["steps_per_second"] = round((each["step"] - earlier["step"]) / passed, 3) if passed else 0.0
        each["dropped"] = {
            worker: sum(count for receipt, count in counts.items() if receipt != "taken")
            for worker, counts in each["receipts"].items()
        }
    return found


def role_of(task: str) -> str:
    """Return what a task is for: "chief", "worker", "ps", or the name of its job.

    >>> role_of("/job:worker/task:0"), role_of("/job:worker/task:1"), role_of("/job:ps/task:0")
    ('chief', 'worker', 'ps')
    """
    job, number = task.removeprefix("/job:").split("/task:")
    is_chief = job == WORKER_JOBS[0] or (job in WORKER_JOBS and number == "0")
    return "chief" if is_chief else job


# --- formats --------------------------------------------------------------------------------------------------------


def as_text(readings: Sequence[Reading]) -> str:
    """Return a table of tasks, and a line for each training."""
    rows = [("task", "role", "state", "steps/s", "steps", "sessions", "doing")]
    lines: list[str] = []
    for each in readings:
        if "error" in each:
            lines.append(f"{each['target']} does not answer: {each['error']}")
            continue
        numbers = (f"{each['steps_per_second']:g}", str(each["held"]["steps"]), str(each["sessions"]))
        rows.append((each["task"], each["role"], each["state"], *numbers, each["doing"]))
        for training in each["training"]:
            dropped = ", ".join(f"worker {worker}: {count}" for worker, count in training["dropped"].items() if count)
            lines.append(
                f"{training['container']}: step {training['step']}, {training['steps_per_second']:g} steps/s, workers "
                f"{training['members']}, dropped gradients: {dropped or 'none'}"
            )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*(table if len(table) > 1 else []), *lines])


def as_json(readings: Sequence[Reading]) -> str:
    """Return the readings as JSON."""
    return json.dumps(list(readings), indent=1)


def as_prometheus(readings: Sequence[Reading]) -> str:
    """Return the readings in Prometheus's text format, version 0.0.4."""
    found: dict[str, tuple[str, str, list[str]]] = {}

    def add(name: str, kind: str, text: str, value: int, **labels: Any) -> None:
        written = ",".join(f'{key}="{_escaped(str(label))}"' for key, label in labels.items())
        _, _, lines = found.setdefault(f"anabranch_{name}", (kind, text, []))
        lines.append(f"anabranch_{name}{{{written}}} {int(value)}")

    for each in readings:
        task = each.get("task", each["target"])
        add("task_up", "gauge", "Whether the task answers.", "error" not in each, task=task)
        if "error" in each:
            continue
        add("task_steps_total", "counter", "Parts of steps that the task has run.", each["held"]["steps"], task=task)
        add("task_running_steps", "gauge", "Parts of steps under way.", each["held"]["running"], task=task)
        add("task_sessions", "gauge", "Clients that address the task.", each["sessions"], task=task)
        for other in each["connections"]:
            labels = {"task": task, "peer": other["task"], "plane": other["plane"], "by": other["connected_by"]}
            add("sent_bytes_total", "counter", "Bytes sent by sockets.", other["bytes_sent"], **labels)
            add("shared_bytes_total", "counter", "Bytes sent by shared memory.", other["bytes_shared"], **labels)
        for training in each["training"]:
            model = training["container"]
            add("training_steps_total", "counter", "Steps that were applied.", training["step"], model=model)
            for worker, counts in training["receipts"].items():
                for receipt, count in counts.items():
                    labels = {"model": model, "worker": worker, "receipt": receipt}
                    add("gradients_total", "counter", "Gradients of workers, by what became of them.", count, **labels)
    blocks = [[f"# HELP {name} {text}", f"# TYPE {name} {kind}", *lines] for name, (kind, text, lines) in found.items()]
    return "\n".join(line for block in blocks for line in block)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


_FORMATS = {"text": as_text, "json": as_json, "prometheus": as_prometheus}

__all__ = ["as_json", "as_prometheus", "as_text", "read", "role_of"]
