"""Large feeds and fetches of a client: they go straight between it and the task where they are used or made.

Small ones, and all of a client that reaches its master alone, travel in the messages of the step.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...engine.graph.spec import Spec, TensorSpec
from ...engine.queues.errors import DeadlineExceededError, TaskFailedError
from ..transport.channel import Channel
from ..transport.failures import task_failed
from ..transport.values import decode_value, encode_value, is_large
from ..transport.wire import Frame, Kind
from .channels import Channels
from .front import TaskInfo

REACH_SECONDS = 1.0  # that connecting to a task may take: without a way to it, values go by the master
_AGAIN_SECONDS = 30.0  # after which a task that could not be reached is tried again


class Plan:
    """The feeds and fetches of a program that may go straight.

    Args:
        described: what the master says of them.
        specs: of what is fetched, in order.

    Attributes:
        feeds: by position, the task that alone takes the value.
        fetches: by position, the task that makes the value.
        large: the fetches that are large, as far as that is known.
        tasks: what is known of these tasks.
    """

    def __init__(self, described: dict[str, Any], specs: Sequence[Spec]) -> None:
        self.feeds = {int(position): str(task) for position, task in described["feeds"]}
        self.fetches = {int(position): str(task) for position, task in described["fetches"]}
        self.tasks = {
            str(name): TaskInfo(str(name), int(incarnation), str(host), int(port), (), front=str(front))
            for name, (host, port, incarnation, front) in described["tasks"].items()
        }
        self.large = {position for position in self.fetches if _is_large_spec(specs[position])}

    def note(self, values: Sequence[Any]) -> None:
        """Note what was fetched: what was large once goes straight from the next step on."""
        self.large |= {position for position in self.fetches if is_large(values[position])}


def _is_large_spec(spec: Spec) -> bool:
    known = spec.shape if isinstance(spec, TensorSpec) else None
    if known is None or None in known or spec.dtype.kind == "T":
        return False
    return is_large(np.broadcast_to(np.zeros((), spec.dtype), tuple(int(size or 0) for size in known)))


class Straight:
    """The ways of a client to tasks besides its master, made when something large is to go there.

    Args:
        connect: makes what connects to a task.
    """

    def __init__(self, connect: Callable[[TaskInfo], Channels]) -> None:
        self._connect = connect
        self._ways: dict[str, Channels] = {}
        self._failed: dict[str, tuple[int, float]] = {}  # by task, the start that was not reached, and when
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def run(self, plan: Plan, values: Sequence[Any]) -> Run | None:
        """Return the run of a program in which something goes straight, or None.

        Args:
            plan: of the program.
            values: what is fed, in order.
        """
        feeds = {position: task for position, task in plan.feeds.items() if is_large(values[position])}
        wanted = dict.fromkeys([*feeds.values(), *[plan.fetches[position] for position in plan.large]])
        if not wanted:
            return None
        found = {name: self._way(plan.tasks[name]) for name in wanted}
        ways = {name: way for name, way in found.items() if way is not None}
        if not ways:
            return None
        return Run(next(self._numbers), ways, {each: task for each, task in feeds.items() if task in ways}, values)

    def _way(self, info: TaskInfo) -> tuple[Channels, Channel] | None:
        """Return a connection to a task; None if there is no way to it."""
        with self._lock:
            known = self._ways.get(info.name)
            if known is None:
                known = self._ways[info.name] = self._connect(info)
            channel = known.take()
            if channel is not None:
                return known, channel
            failed = self._failed.get(info.name)
            if failed is not None and failed[0] == info.incarnation and time.monotonic() < failed[1] + _AGAIN_SECONDS:
                return None
        try:
            return known, known.open()
        except (TaskFailedError, OSError):
            self._failed[info.name] = (info.incarnation, time.monotonic())
            return None

    def close(self) -> None:
        """Give the connections up."""
        with self._lock:
            for way in self._ways.values():
                way.close()


class Run:
    """One run of a program in which something goes straight.

    Args:
        number: of all runs of the client.
        ways: by task, the connection, and to whom it is given back.
        feeds: by position, the task to which the value goes.
        values: what is fed.
    """

    def __init__(
        self, number: int, ways: dict[str, tuple[Channels, Channel]], feeds: dict[int, str], values: Sequence[Any]
    ) -> None:
        self.feeds = feeds
        self._number = number
        self._ways = ways
        self._values = values

    @property
    def document(self) -> dict[str, Any]:
        """The description for the master: by which connections values come and go, and which are fed so."""
        ways = {name: channel.own.incarnation for name, (_, channel) in self._ways.items()}
        return {"run": self._number, "ways": ways, "feeds": sorted(self.feeds)}

    def feed(self, master: Channel) -> None:
        """Send what is fed, unless the master answers before all has gone: then the step is over.

        Raises:
            TaskFailedError: a task is dead.
        """
        for name, (_, channel) in self._ways.items():
            positions = [position for position, task in self.feeds.items() if task == name]
            if not positions:
                continue
            arrays: list[Any] = []
            described = [[position, encode_value(self._values[position], arrays)] for position in positions]
            try:
                if not channel.send(Kind.FED, {"run": self._number, "values": described}, arrays, unless=master):
                    return
            except (DeadlineExceededError, TaskFailedError):
                raise
            except OSError:
                channel.close()  # the task sees that, or is gone: the master says which
                return

    def take(self, answer: Frame) -> list[Any]:
        """Return what was fetched, those values among it that tasks have sent straight.

        Raises:
            TaskFailedError: a task was lost before all had come.
        """
        document = answer.document()
        values = [decode_value(description, answer.arrays) for description in document["values"]]
        missing: dict[str, set[int]] = {}
        for position, task in document.get("straight", ()):
            missing.setdefault(str(task), set()).add(int(position))
        for name, positions in missing.items():
            found = self._received(name)
            for position in positions:
                values[position] = found[position]
        return values

    def _received(self, name: str) -> dict[int, Any]:
        channel = self._ways[name][1]
        try:
            frame = channel.receive()
        except (DeadlineExceededError, TaskFailedError):
            raise
        except OSError as error:
            raise task_failed(name, str(error.strerror or error)) from None
        document = frame.document()
        if frame.kind != Kind.FETCHED or document.get("run") != self._number:
            raise task_failed(name, "it has sent something else than what was fetched")
        return {int(position): decode_value(each, frame.arrays) for position, each in document["values"]}

    def end(self, is_whole: bool) -> None:
        """Give the connections back. Of a step that has failed they are closed: nothing of it is left there."""
        for owner, channel in self._ways.values():
            owner.give(channel, is_whole)


__all__ = ["REACH_SECONDS", "Plan", "Run", "Straight"]
