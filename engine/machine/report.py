"""A report, by partition, of the things for which a step waits that does not go on."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from .frames import MASK, FramePlan, Iteration

if TYPE_CHECKING:
    from .blueprint import Place
    from .step import Step

_MOST_LINES = 40
_ITERATION = re.compile(r", iteration ([\d.]+)")


class StalledError(RuntimeError):
    """A step makes no progress: what is there waits for what will never come."""


def waiting_report(step: Step, what: str = "made no progress") -> str:
    """Report, for each partition, waiting nodes: frame, iteration, what is missing, from where, and for how long.

    Args:
        step: a run that is under way.
        what: what happened to it.
    """
    age = time.perf_counter() - step.started
    lines = [f"The step {what} after {age:.3g} s. It waits for:"]
    for number, wait in step.waits.items():
        waited = time.perf_counter() - step.outstanding[number][-1]
        where = f"{wait.node.device}: {wait.node.name!r}{_named(wait.node, wait.it.tag)}"
        lines.append(f"  {where} has waited for {waited:.3g} s: {wait.describe()}")
    for node, it, missing in step.stores.waiting():
        lines.append(f"  {node.device}: {node.kind} {node.name!r}{_named(node, it.tag)}: {missing}")
    for place, plan in step.plans.items():
        for iteration in _alive(step, place, plan):
            lines.extend(_waiting(step, place, iteration))
    for number, (node, where, since) in step.outstanding.items():
        if number in step.waits:
            continue
        tag = where.tag if isinstance(where, Iteration) else where
        waited = time.perf_counter() - since
        lines.append(
            f"  {node.device}: {node.kind} {node.name!r}{_named(node, tag)} has been under way for {waited:.3g} s"
        )
    for (number, tag), _ in step.mail.items():
        node = next(node for node, known in step.blueprint.edges.items() if known == number)
        sender = "" if node.peer is None else f" was sent by {node.peer.device}, but"
        lines.append(f"  {node.device}: {node.name!r}{sender} its iteration{_numbers(tag)} never began")
    lines = _merged(lines)
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES:] = [f"  ... and {len(lines) - _MOST_LINES} more"]
    return "\n".join(lines)


def _merged(lines: list[str]) -> list[str]:
    """Return one line in place of those that differ in nothing but the iteration, of which many run at once."""
    found: dict[str, list[str]] = {}
    for line in lines:
        found.setdefault(_ITERATION.sub("", line), []).append(line)
    return [
        first if not others else _ITERATION.sub(rf"\g<0> (and {len(others)} more)", first)
        for first, *others in found.values()
    ]


def ending_report(step: Step) -> str:
    """Report what a step that is being ended waits for, and how far its loops have come."""
    return "\n".join([waiting_report(step, "was not done"), *_progress(step)])


def _progress(step: Step) -> list[str]:
    """Return how far the loops of a step that is still running have come, by device."""
    found: list[str] = []
    for place, plan in step.plans.items():
        alive = [iteration.number for iteration in _alive(step, place, plan)]
        if alive and place.frame.parent is not None:
            found.append(f"  {place.device}: frame {place.label!r} was in iteration {max(alive)}")
    return found


def _alive(step: Step, place: Place, plan: FramePlan) -> list[Iteration]:
    """Return the iterations of a place that are not over."""
    found: list[Iteration] = []
    for root in step.roots.values():
        _gather(root, plan, found)
    return found


def _gather(iteration: Iteration, plan: FramePlan, found: list[Iteration]) -> None:
    if iteration.run.plan is plan:
        found.append(iteration)
    for child in iteration.children:
        current = child.oldest if child is not None else None
        while current is not None:
            _gather(current, plan, found)
            current = current.next


def _waiting(step: Step, place: Place, iteration: Iteration) -> list[str]:
    lines: list[str] = []
    for number, node in enumerate(place.nodes):
        missing = iteration.p[number]
        low = missing & MASK
        if missing <= 0 or not low or (low == place.pending[number] and (node.kind == "merge" or _comes_at_once(node))):
            continue
        sources = ", ".join(f"{value.node.name!r}" for value in node.sources if value.node.kind != "const")
        count = f"{low} of {place.pending[number]}"
        lines.append(
            f"  {place.device}: {node.kind} {node.name!r}{_named(node, iteration.tag)}: {count} of ({sources})"
        )
    for receive in place.receives:
        if any(iteration.p[step.blueprint.numbers[consumer]] > 0 for consumer in _takers(step, receive)):
            peer = receive.peer
            assert peer is not None, f"{receive!r} has no Send"
            lines.append(
                f"  {place.device}: recv {receive.name!r} (key {step.blueprint.edges[receive]}) from {peer.device}"
                f"{_named(receive, iteration.tag)}"
            )
    return lines


def _comes_at_once(node: Any) -> bool:
    """Test whether all inputs of a node come from one other.

    Then it is not counted, and the other one names what waits.
    """
    return len({value.node for value in node.sources if value.node.kind != "const"}) == 1


def _takers(step: Step, receive: Any) -> list[Any]:
    return [node for node in step.blueprint.consumers.get(receive.output, ()) if node in step.blueprint.numbers]


def _named(node: Any, tag: tuple[int, ...]) -> str:
    if not tag:
        return ""
    return f" in frame {node.frame.name!r}, iteration{_numbers(tag)}"


def _numbers(tag: tuple[int, ...]) -> str:
    return " " + ".".join([str(number) for number in tag]) if tag else ""
