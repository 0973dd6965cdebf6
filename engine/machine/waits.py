"""Operations of a step that wait for what others do, in other threads or in this step, and hold no thread meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..graph.op import without_bare_strings
from ..lower.nodes import Node
from ..queues.attempts import Attempt, Request, WaitingOp
from ..runtime.errors import annotate
from .frames import Iteration


class Wait:
    """One operation under way.

    Args:
        node: stands for the operation, and for no other.
        values: its inputs.
        it: the iteration in which it runs.
        finish: takes the iteration and the results.
        notify: called, in any thread, when `go_on` has to be called again.

    Attributes:
        is_over: whether it has its results, or has failed.
    """

    def __init__(
        self,
        node: Node,
        values: Sequence[Any],
        it: Iteration,
        finish: Callable[[Iteration, Any], None],
        notify: Callable[[], None],
    ) -> None:
        (self._operation,) = node.operations
        op = self._operation.op
        assert isinstance(op, WaitingOp), f"{node!r} does not wait"
        self.node = node
        self.it = it
        self.finish = finish
        self.is_over = False
        self._values = values
        self._notify = notify
        self._course = op.course(*values)
        self._request: Request | None = None
        self._attempt: Attempt | None = None

    def go_on(self) -> Any:
        """Go on up to the next request that is not served at once, or to the end; then the results."""
        try:
            while True:
                request = self._next()
                attempt, is_pending = request.begin(self._notify)
                self._request, self._attempt = request, attempt
                if is_pending:
                    return None
        except StopIteration as end:
            self.is_over = True
            return self._results(end.value)
        except Exception as error:
            self.is_over = True
            self.annotate(error)
            raise

    def _next(self) -> Request:
        """Return the next request, once the one before is done."""
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return next(self._course)
        if attempt.error is not None:
            return self._course.throw(attempt.error)
        return self._course.send(attempt.result)

    def _results(self, value: Any) -> tuple[Any, ...]:
        """Return the outputs that it gives to others."""
        outputs = self._operation.outputs
        if any(tensor.dtype.kind == "T" for tensor in outputs):
            value = without_bare_strings(value)
        found = dict(zip(outputs, (value,) if len(outputs) == 1 else value, strict=True))
        return tuple([found[tensor] for tensor in self.node.given])

    def annotate(self, error: Exception) -> None:
        """Note on an error the operation, its device, and the iteration of each loop around it."""
        loops = [(plan.operation, number) for plan, number in self.it.path()]
        annotate(error, self._operation, self._values, loops, device=self.node.device)

    def describe(self) -> str:
        """Return a description of what it waits for."""
        if self._request is None or self._attempt is None:
            return "nothing"
        return self._request.describe(self._attempt)

    def give_up(self) -> None:
        """Take back what was asked for and not served."""
        if self._request is not None and self._attempt is not None:
            self._request.withdraw(self._attempt)
        self._course.close()
