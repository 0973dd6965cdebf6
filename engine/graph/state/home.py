"""`Home`: the place of state that a task of a cluster holds; what plain Python does with it is done there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Home:
    """The place of one variable or queue, outside of this process.

    Attributes:
        task: the task that holds it, "/job:ps/task:0".
        container, path: its names in the task.
        device: its device in the task.
        incarnation: of the task, when it was made there.
    """

    task: str
    container: str
    path: str
    device: str
    incarnation: int

    def run(
        self, action: str, build: Callable[..., Any], arrays: Sequence[Any] = (), *, is_repeatable: bool = True
    ) -> list[Any]:
        """Run operations in the task.

        Args:
            action: names what `build` builds: it is built once for each name, and each dtype and rank of the arrays.
            build: makes the operations in a graph of their own, of tensors for the arrays; gives the tensors to fetch,
                or an operation.
            arrays: the values of these tensors.
            is_repeatable: whether doing it twice is the same as doing it once.

        Returns:
            The values of the tensors; an empty list for an operation.

        Raises:
            StateLostError: the task is gone, or was started again and the state has no value yet.
        """
        raise NotImplementedError(f"{type(self).__name__} must define run().")
