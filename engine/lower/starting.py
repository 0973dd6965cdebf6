"""A search for devices that would begin a loop's iterations late: their loop variables wait for other devices.

An iteration begins on a device when a loop variable there has its next value. Where all of these come from elsewhere
(sums of gradients, which wait for what later devices compute of this iteration), work that does not depend on them
would wait, too. Such devices get a control loop, which goes on as soon as the predicate is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .nodes import Frame, Node

# What starts, hands on or ends iterations, and is no work.
_MOVING = frozenset({"enter", "merge", "switch", "switch_n", "next_iteration", "exit", "loop_cond", "const", "recv"})


def late_starters(nodes: Sequence[Node], frame: Frame, devices: Iterable[str]) -> list[str]:
    """Return the devices, of those given, that had better have a control loop of their own.

    Args:
        nodes: of a machine that has not been cut.
        frame: of a loop.
        devices: on which iterations begin with loop variables.
    """
    inside = [node for node in nodes if node.device is not None and frame in node.frame.around()]
    takers: dict[Node, list[Node]] = {}
    for node in inside:
        for value in node.sources:
            takers.setdefault(value.node, []).append(node)
    return [device for device in devices if _waits(inside, takers, frame, device)]


def _waits(inside: Sequence[Node], takers: dict[Node, list[Node]], frame: Frame, device: str) -> bool:
    """Test whether work of a device does not depend on its loop variables, all of which wait for other devices."""
    nexts = [node for node in inside if node.kind == "next_iteration" and (node.frame, node.device) == (frame, device)]
    if not all(_comes_from_elsewhere(node, frame, device) for node in nexts):
        return False
    reached: set[Node] = set()
    rest = [node for node in inside if node.frame is frame and (_is_of(node, device) or _reads_history(node))]
    while rest:
        node = rest.pop()
        if node in reached or (node.kind == "next_iteration" and node.frame is frame):
            continue
        reached.add(node)
        rest += takers.get(node, ())
    return any(node.device == device and node not in reached and node.kind not in _MOVING for node in inside)


def _is_of(node: Node, device: str) -> bool:
    """Test whether a node gives the value of a loop variable that is on a device."""
    return node.kind == "merge" and node.device == device


def _reads_history(node: Node) -> bool:
    """Test whether a node brings the saved values of one loop into another.

    These are to be there when they are used, not before.
    """
    return node.kind == "enter" and node.is_constant and node.inputs[0].node.kind == "collect"


def _comes_from_elsewhere(node: Node, frame: Frame, device: str) -> bool:
    """Test whether a loop variable's next value takes something computed by another device in the same iteration."""
    seen: set[Node] = set()
    rest = [value.node for value in node.sources]
    while rest:
        node = rest.pop()
        if node in seen or node.device is None or frame not in node.frame.around():
            continue
        if node.frame is frame and (node.kind == "enter" or node.kind == "merge"):
            continue
        seen.add(node)
        if node.device != device:
            return True
        # The predicate comes early wherever it is made.
        sources = node.inputs[:1] if node.kind in ("switch", "switch_n") and node.frame is frame else None
        rest += [value.node for value in (node.sources if sources is None else sources)]
    return False


__all__ = ["late_starters"]
