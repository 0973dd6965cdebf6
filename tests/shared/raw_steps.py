"""Steps with hand-built primitives, lowered, and run by the rules of Figure 5 of the EuroSys paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from anabranch import raw
from anabranch.engine.graph import Symbol, Tensor
from anabranch.engine.lower.nodes import Machine, Node, Value, frame_of
from anabranch.engine.lower.raw import lower_raw
from anabranch.engine.passes.framework.prune import needed_operations
from anabranch.engine.runtime.interpreter import Interpreter

from .symbols import AnyTensor, feeds_of, symbols_of

DEAD = object()
Tag = tuple[int, ...]  # the number of the iteration in each frame, the outermost first


class Rules:
    """Rules for each value of a machine in each iteration, found by running it."""

    def __init__(self, machine: Machine, fed: dict[Node, Any]) -> None:
        self.fed = fed
        self.known: dict[tuple[Node, Tag], list[Any]] = {}

    def value(self, value: Value, tag: Tag) -> Any:
        node = value.node
        if (node, tag) not in self.known:
            self.known[node, tag] = self.outputs(node, tag)
        outputs = self.known[node, tag]
        return (DEAD if all(o is DEAD for o in outputs) else None) if value.port < 0 else outputs[value.port]

    def outputs(self, node: Node, tag: Tag) -> list[Any]:
        if node in self.fed:
            return [self.fed[node]]
        if node.kind == "enter":
            return [self.value(node.inputs[0], tag[:-1])]
        if node.kind == "exit":
            return [self.leaving(node, tag)]
        if node.kind == "merge" and node.inputs[1:] and node.inputs[1].node.kind == "next_iteration":
            if tag[-1] == 0:
                return [self.value(node.inputs[0], tag), np.int32(0)]
            handing = node.inputs[1].node
            return [self.value(handing.inputs[0], (*tag[:-1], tag[-1] - 1)), np.int32(1)]
        inputs = [self.value(value, tag) for value in node.inputs]
        if node.kind == "merge":
            alive = [(x, np.int32(position)) for position, x in enumerate(inputs) if x is not DEAD]
            assert len(alive) <= 1
            return list(alive[0]) if alive else [DEAD, DEAD]
        if any(x is DEAD for x in (*inputs, *[self.value(v, tag) for v in node.controls])):
            return [DEAD] * max(1, len(node.specs))
        return self.computed(node, inputs)

    def leaving(self, node: Node, tag: Tag) -> Any:
        for number in range(100):
            found = self.value(node.inputs[0], (*tag, number))
            if found is not DEAD:
                return found
            if number == 0 and all(self.value(v, (*tag, 0)) is DEAD for v in heads(node)):
                return DEAD
        raise AssertionError(f"{node} was never alive")

    def computed(self, node: Node, inputs: list[Any]) -> list[Any]:
        if node.kind == "switch":
            return [DEAD, inputs[0]] if inputs[1] else [inputs[0], DEAD]
        if node.kind == "op":
            given = dict(zip(node.taken, inputs, strict=True))
            return Interpreter().run(node.operations[0].graph, node.given, given) if node.given else [None]
        if node.kind == "const":
            return [node.operations[0].op.run(np)]
        return inputs or [None]


def heads(exit_node: Node) -> Iterator[Value]:
    """The Enters of the loop that an Exit leaves."""
    pending, seen = list(exit_node.inputs), set[Node]()
    while pending:
        node = pending.pop().node
        if node in seen or node.frame is not exit_node.frame:
            continue
        seen.add(node)
        pending.extend(node.inputs)
        if node.kind == "enter":
            yield node.output


def lowered(
    fetches: Sequence[Tensor], feeds: Sequence[Symbol] = (), device: Callable[..., str] | None = None
) -> Machine:
    targets = symbols_of(fetches)
    operations = needed_operations(targets[0].graph, targets, feeds)
    return lower_raw(operations, feeds, targets, device or (lambda operation: operation.device or "cpu:0"))


def run(fetches: Sequence[Tensor], feeds: Mapping[AnyTensor, Any] | None = None) -> list[Any]:
    machine = lowered(fetches, list(feeds_of(feeds or {})))
    check_frames(machine)
    rules = Rules(machine, dict(zip(machine.feeds, (feeds or {}).values(), strict=True)))
    return [rules.value(node.inputs[0], ()) for node in machine.fetches]


def check_frames(machine: Machine) -> None:
    """All that a node takes is in its own frame, and before it but for what closes a loop."""
    seen = set[Node]()
    for node in machine.nodes:
        where = node.frame.parent if node.kind == "enter" else node.frame
        for value in node.sources:
            assert frame_of(value) is where, f"{node} takes {value}"
            assert value.node in seen or value.node.kind == "next_iteration" or node.kind == "switch"
        assert any(value.node.kind != "const" for value in node.sources) or node.kind in ("const", "feed", "no_op")
        seen.add(node)


def loop(
    name: str, start: Any, more: Callable[[Tensor], Any], step: Callable[[Tensor], Tensor], **options: Any
) -> Tensor:
    """A while loop over one variable."""
    i = raw.merge([raw.enter(start, name, **options)]).output
    out, on = raw.switch(i, raw.loop_cond(more(i)))
    raw.next_iteration(step(on), into=i)
    return raw.exit(out)
