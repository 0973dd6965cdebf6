"""In which frame each operation of a step with hand-built primitives runs, and whether they fit together.

A frame is known by the Enters that lead into it: those of one name, from one frame. Everything else runs where its
inputs are. Constants are everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..graph.graph import Operation
from ..graph.tensor import Symbol
from ..ops.base import Constant
from ..ops.internal.raw import Enter, Exit, LoopCond, Merge, NextIteration, RawOp, Switch, back_edges
from .nodes import Frame

Sides = frozenset[tuple[Symbol, int]]  # outputs of Switches, all of which have to be alive
_ALWAYS: Sides = frozenset()


def described(operation: Operation) -> str:
    """Return an operation and its place in the user's program."""
    kind = f"raw.{operation.type}" if isinstance(operation.op, RawOp) else "op"
    return f"{kind} {operation.name!r} (defined at {operation.location})"


class RawFrames:
    """The frames of a step, and which sides of Switches its operations are on.

    Args:
        operations: those of the step, in program order.
        feeds: what is fed.
        root: the frame of the step itself.

    Attributes:
        of: for each operation the frame in which it runs; that of an Enter is the one into which it leads.

    Raises:
        ValueError: the primitives do not fit together.
    """

    def __init__(self, operations: Sequence[Operation], feeds: Iterable[Symbol], root: Frame) -> None:
        self.root = root
        self.of: dict[Operation, Frame] = {}
        self._operations = operations
        self._feeds = frozenset(feeds)
        self._frames: dict[tuple[Frame, str], Frame] = {}
        self._enters: dict[Frame, list[Operation]] = {}
        self._sides: dict[Operation, Sides] = {}
        self._settle_all()
        self._loops = {self.of[o] for o in operations if isinstance(o.op, NextIteration)}
        for operation in operations:
            self._check(operation)
        for operation in operations:
            if not self.is_free(operation):
                self._sides[operation] = self._find_sides(operation)
                self._check_end(operation)
        self._check_loops()

    # --- what others ask --------------------------------------------------------------------------------------------

    def is_free(self, operation: Operation) -> bool:
        """Test whether an operation is a constant, which is in no frame."""
        return isinstance(operation.op, Constant) and not operation.control_inputs

    def is_loop(self, frame: Frame) -> bool:
        """Test whether anything in a frame passes a value to the next iteration; otherwise it has one iteration."""
        return frame in self._loops

    def sides_of(self, operation: Operation) -> Sides:
        """Return on which sides of Switches of its frame an operation is. (What a Switch gives is on one more.)"""
        return self._sides[operation]

    def sides_of_entering(self, frame: Frame) -> Sides:
        """Return on which sides of Switches of the frame around is what enters a frame."""
        found = [self._sides_of_value(enter.inputs[0]) for enter in self._enters[frame]]
        return _ALWAYS.union(*found)

    def outside_of(self, enter: Operation) -> Frame:
        """Return the frame from which an Enter leads into another one."""
        outside = self.of[enter].parent
        assert outside is not None, f"{enter!r} leads nowhere"
        return outside

    def guide_of(self, enter: Operation) -> Operation | None:
        """Return the Enter of a non-constant into the same frame; that of a loop variable, if there is one."""
        others = [other for other in self._enters[self.of[enter]] if not self._is_guided(other)]
        return min(others, key=_is_constant, default=None)

    def check_fetch(self, tensor: Symbol) -> None:
        """Fail if a tensor is inside a loop."""
        frame = self._frame_of_value(tensor)
        if frame not in (None, self.root):
            raise ValueError(
                f"{described(tensor.operation)} is fetched, but is in {_named(frame)}, where it has a value in every "
                "iteration. Fetch raw.exit(...) of the false side of its raw.switch."
            )

    def no_condition(self, frame: Frame, device: str) -> ValueError:
        """Return the error of a loop of which a device does not receive the condition."""
        first = self._enters[frame][0]
        return ValueError(
            f"{_named(frame).capitalize()}, entered by {described(first)}, has operations on {device}, where no loop "
            "variable is, so that nothing says there whether the loop goes on. Give its raw.switch the result of "
            "raw.loop_cond(pred)."
        )

    # --- finding frames ---------------------------------------------------------------------------------------------

    def _settle_all(self) -> None:
        waiting = [operation for operation in self._operations if not self.is_free(operation)]
        while waiting:
            left = [operation for operation in waiting if not self._settle(operation)]
            if len(left) == len(waiting):
                self._settle_one(left)
            waiting = left

    def _settle_one(self, waiting: list[Operation]) -> None:
        """Enter the operation that is alone, or else the first, of those that have no input from a known frame."""
        open_ended = [operation for operation in waiting if self._is_guided(operation)]
        led = {_frame_name(other) for other in waiting if isinstance(other.op, Enter) and not self._is_guided(other)}
        alone = [operation for operation in open_ended if _frame_name(operation) not in led]
        self._enter((alone or open_ended)[0], self.root)

    def _settle(self, operation: Operation) -> bool:
        """Find the frame of an operation, if those of its inputs are known."""
        if operation in self.of:
            return True
        if any(source is not None and source not in self.of for source in self._sources(operation)):
            return False
        frames = self._frames_of_sources(operation)
        if not isinstance(operation.op, Enter):
            self.of[operation] = frames[0] if frames else self.root
            return True
        if not frames:
            return self._join(operation)
        self._enter(operation, frames[0])
        return True

    def _join(self, operation: Operation) -> bool:
        """Let a constant enter where others enter a frame of that name."""
        name = _frame_name(operation)
        known = [parent for parent, other in self._frames if other == name]
        if not known:
            return False
        if len(known) > 1:
            raise ValueError(
                f"{described(operation)} takes a constant into frame {name!r}, and there are {len(known)} of this "
                f"name: in {' and in '.join(map(_named, known))}. Give them names of their own."
            )
        self._enter(operation, known[0])
        return True

    def _enter(self, operation: Operation, outside: Frame) -> None:
        op = operation.op
        assert isinstance(op, Enter), f"{operation!r} enters nothing"
        frame = self._frames.get((outside, op.frame_name))
        if frame is None:
            name = f"{outside.name}/{op.frame_name}" if outside.name else op.frame_name
            frame = Frame(name, outside, op.parallel_iterations, operation)
            self._frames[outside, op.frame_name] = frame
        elif frame.parallel_iterations != op.parallel_iterations:
            first = self._enters[frame][0]
            raise ValueError(
                f"{described(operation)} has parallel_iterations={op.parallel_iterations} for frame {op.frame_name!r}, "
                f"and {described(first)} says {frame.parallel_iterations}. A loop has one number: give all the same."
            )
        self.of[operation] = frame
        self._enters.setdefault(frame, []).append(operation)

    def _is_guided(self, operation: Operation) -> bool:
        """Test whether an operation is an Enter of a constant, which is in whatever frame others enter from."""
        return isinstance(operation.op, Enter) and not self._sources(operation)

    def _sources(self, operation: Operation) -> list[Operation | None]:
        """Return the operations that make its inputs; None for those that are fed. Constants do not count."""
        made = [None if tensor in self._feeds else tensor.operation for tensor in operation.inputs]
        return [o for o in (*made, *operation.control_inputs) if o is None or not self.is_free(o)]

    def _frames_of_sources(self, operation: Operation) -> list[Frame]:
        """Return the frames of what it takes and waits for: one, or none if that is constants alone."""
        found: dict[Frame, Operation] = {}
        for tensor in operation.inputs:
            frame = self._frame_of_value(tensor)
            if frame is not None:
                found.setdefault(frame, tensor.operation)
        for control in operation.control_inputs:
            if not self.is_free(control):
                found.setdefault(self._frame_of_result(control), control)
        if len(found) > 1:
            listed = " and ".join(f"{described(source)} in {_named(frame)}" for frame, source in found.items())
            raise ValueError(
                f"{described(operation)} takes values of different frames: {listed}. Bring outer tensors into a "
                "loop with raw.enter(..., is_constant=True), and inner ones out of it with raw.exit."
            )
        return list(found)

    def _frame_of_value(self, tensor: Symbol) -> Frame | None:
        if tensor in self._feeds:
            return self.root
        return None if self.is_free(tensor.operation) else self._frame_of_result(tensor.operation)

    def _frame_of_result(self, operation: Operation) -> Frame:
        frame = self.of[operation]
        if not isinstance(operation.op, Exit):
            return frame
        if frame.parent is None:
            raise _outside(operation)
        return frame.parent

    # --- checks -----------------------------------------------------------------------------------------------------

    def _check(self, operation: Operation) -> None:
        op = operation.op
        if self.is_free(operation):
            return
        if isinstance(op, (Exit, LoopCond, NextIteration)) and self.of[operation] is self.root:
            raise _outside(operation)
        if isinstance(op, NextIteration) and op.into is not None:
            self._check_edge(operation, op.into.operation)
        taken = [tensor.operation for tensor in operation.inputs if tensor not in self._feeds]
        if isinstance(op, Merge):
            self._check_merge(operation)
            taken = []
        for source in (*taken, *operation.control_inputs):
            self._check_taken(operation, source)

    def _check_taken(self, operation: Operation, source: Operation) -> None:
        """Refuse to take a value of one iteration only, or of another one, except by a Merge."""
        if isinstance(source.op, NextIteration):
            raise ValueError(
                f"{described(operation)} takes what {described(source)} hands to the next iteration. Only raw.merge "
                "can take that."
            )
        if isinstance(source.op, Enter) and not source.op.is_constant and self.is_loop(self.of[source]):
            raise ValueError(
                f"{described(operation)} takes what {described(source)} brings into the first iteration, and "
                "would find nothing in the second one. Pass is_constant=True to raw.enter, or put a raw.merge between."
            )

    def _check_edge(self, operation: Operation, merge: Operation) -> None:
        frame, wanted = self.of[operation], self.of[merge]
        if frame is not wanted:
            raise ValueError(
                f"{described(operation)}, of {_named(frame)}, hands its value to {described(merge)}, of "
                f"{_named(wanted)}. Both have to be in one frame."
            )

    def _check_merge(self, merge: Operation) -> None:
        constant = next((t for t in merge.inputs if t not in self._feeds and self.is_free(t.operation)), None)
        if constant is not None:
            raise ValueError(
                f"{described(merge)} takes the constant {constant.operation.name!r}, which is alive whichever side is "
                "taken. Pass it through raw.switch first, or into a loop with raw.enter."
            )
        makers = [tensor.operation for tensor in merge.inputs if tensor not in self._feeds]
        entering = [o for o in makers if isinstance(o.op, Enter)]
        handing = [o for o in makers if isinstance(o.op, NextIteration)] + back_edges(merge)
        if not entering and not handing:
            return
        if not handing:
            raise ValueError(
                f"{described(merge)} takes what {described(entering[0])} brings into a loop, but no raw.next_iteration "
                f"hands it anything. Write raw.next_iteration(value, into={merge.name}) after the body of the loop."
            )
        others = len(merge.inputs) + len(back_edges(merge)) - len(entering) - len(handing)
        if len(entering) != 1 or len(handing) != 1 or others or _is_constant(entering[0]):
            raise ValueError(
                f"{described(merge)} is the head of a loop, which takes one raw.enter that is no constant and one "
                f"raw.next_iteration. It got {len(entering)} of the first, {len(handing)} of the second, and {others} "
                "other inputs. Join others with a raw.merge of their own."
            )

    def _check_end(self, operation: Operation) -> None:
        """Refuse a value that leaves an iteration, unless it is dead in all but the last one, or in the last one."""
        if not isinstance(operation.op, (Exit, NextIteration)) or self._sides[operation]:
            return
        if isinstance(operation.op, Exit) and not self.is_loop(self.of[operation]):
            return
        if isinstance(operation.op, Exit):
            raise ValueError(
                f"{described(operation)} takes a value that is alive in every iteration. Give it the false side of a "
                "raw.switch, which is alive in the last one."
            )
        raise ValueError(
            f"{described(operation)} hands on a value in every iteration, so that the loop never ends. Compute it from "
            "the true side of a raw.switch."
        )

    def _check_loops(self) -> None:
        """Check that every loop has at most one condition."""
        conditions: dict[Frame, Operation] = {}
        for operation in self._operations:
            if isinstance(operation.op, LoopCond):
                first = conditions.setdefault(self.of[operation], operation)
                if first is not operation:
                    raise ValueError(
                        f"{described(operation)} is the second condition of {_named(self.of[operation])}, after "
                        f"{described(first)}. A loop has one: join them with ops.logical_and."
                    )

    # --- sides of Switches ------------------------------------------------------------------------------------------

    def _find_sides(self, operation: Operation) -> Sides:
        """Return the sides of Switches, of the same frame, that have to be alive for an operation to be."""
        op = operation.op
        if isinstance(op, Enter):
            return _ALWAYS
        inputs = [self._sides_of_value(tensor) for tensor in operation.inputs]
        if isinstance(op, Merge):
            return self._sides_of_merge(operation, inputs)
        return _ALWAYS.union(*inputs, *[self._sides_of_result(control) for control in operation.control_inputs])

    def _sides_of_merge(self, operation: Operation, inputs: list[Sides]) -> Sides:
        if any(isinstance(t.operation.op, Enter) for t in operation.inputs if t not in self._feeds):
            return _ALWAYS  # the head of a loop
        common = inputs[0].intersection(*inputs)
        rest = [sides - common for sides in inputs]
        if not all(rest) or _is_either_or(rest):
            return common
        return common | {(operation.outputs[0], 0)}  # a condition of its own

    def _sides_of_value(self, tensor: Symbol) -> Sides:
        operation = tensor.operation
        if tensor in self._feeds or self.is_free(operation):
            return _ALWAYS
        sides = self._sides_of_result(operation)
        return sides | {(operation.inputs[1], tensor.index)} if isinstance(operation.op, Switch) else sides

    def _sides_of_result(self, operation: Operation) -> Sides:
        if self.is_free(operation):
            return _ALWAYS
        if isinstance(operation.op, Exit):
            return self.sides_of_entering(self.of[operation])
        return self._sides[operation]


def _is_either_or(rest: Sequence[Sides]) -> bool:
    """Test whether two sets of sides are the false and the true side of the same choice."""
    if len(rest) != 2 or any(len(sides) != 1 for sides in rest):
        return False
    ((one, first),), ((other, second),) = rest
    return one is other and {first, second} == {0, 1}


def _is_constant(operation: Operation) -> bool:
    return isinstance(operation.op, Enter) and operation.op.is_constant


def _frame_name(operation: Operation) -> str:
    return operation.op.frame_name if isinstance(operation.op, Enter) else ""


def _named(frame: Frame | None) -> str:
    return f"frame {frame.name!r}" if frame is not None and frame.name else "the step itself"


def _outside(operation: Operation) -> ValueError:
    return ValueError(
        f"{described(operation)} is in no loop: none of its inputs comes from a raw.enter. (Constants are in no "
        "frame: bring them in with raw.enter(..., is_constant=True).)"
    )
