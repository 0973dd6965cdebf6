"""The rules that hold of every step between passes. A step that breaks one is a bug of the pass that ran before.

Each rule is a function of one block (the step's own graph, or a region inside) that yields what is wrong; `RULES` lists
them, and `verify` applies them to all blocks. MLIR's verifier and tinygrad's spec tables serve the same purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import is_
from typing import Any

from ...common.quick_dataclass import dataclass
from ...control_flow.cond import Branch
from ...control_flow.frames import History, Saved
from ...control_flow.while_loop import While
from ...graph.graph import Graph, Operation, Parameter, Placeholder
from ...graph.op import Op
from ...graph.region import Region, merged_effects
from ...graph.spec import Spec
from ...graph.tensor import Symbol
from .prune import Kept
from .rewriter import Rewriter
from .specialise import Inferred, facts_of, note_inferred

Writers = Mapping[Any, Sequence[Operation]]


class BrokenStepError(AssertionError):
    """A pass left a step behind that breaks a rule. This is a bug in anabranch; please report it."""


@dataclass(frozen=True)
class Block:
    """The operations of a graph that run.

    Attributes:
        graph: the step's own graph, or a region.
        operations: those of it that are needed, in program order.
        holder: the operation that holds the region; None for the step.
        is_placed: whether devices were given.
        kept: the tensors whose values are wanted from outside of their block.
        inferred: the operations whose specs were found right before; it gets those that are found right now.
        narrowed: the ops whose results may have narrower specs than `infer` gives, by facts that passes declare.
    """

    graph: Graph
    operations: Sequence[Operation]
    holder: Operation | None
    is_placed: bool
    kept: Kept
    inferred: Inferred
    narrowed: tuple[type[Op], ...] = ()

    @cached_property
    def holding(self) -> Sequence[Operation]:
        """The operations that have regions: few, and several rules are about them alone."""
        return [operation for operation in self.operations if operation.op.regions]

    def named(self, operation: Operation) -> str:
        """Return how messages call an operation."""
        inside = f" in {self.graph.name!r}" if isinstance(self.graph, Region) else ""
        return f"{operation.name!r} ({operation.type}){inside}"


Rule = Callable[[Block], Iterator[str]]


def verify(
    step: Rewriter,
    is_placed: bool | None = None,
    inferred: Inferred | None = None,
    narrowed: tuple[type[Op], ...] = (),
) -> Iterator[str]:
    """Yield each rule that a step breaks, with the operation that breaks it.

    Args:
        step: the step, pruned.
        is_placed: whether its operations have devices; by default that is not looked at.
        inferred: what earlier calls for the same step found right, for which specs are not inferred again.
        narrowed: see `Block`.
    """
    yield from _fetched(step)
    rules = RULES if is_placed is not None else tuple(rule for rule in RULES if rule is not on_devices)
    found = {} if inferred is None else inferred
    own = Block(step.graph, step.operations, None, bool(is_placed), step.kept_tensors, found, narrowed)
    for block in _blocks(own):
        for rule in rules:
            for message in rule(block):
                yield f"{rule.__name__}: {message}"


def _blocks(block: Block) -> Iterator[Block]:
    yield block
    shared = (block.inferred, block.narrowed)
    for operation in block.holding:
        for region in operation.op.regions:
            needed, kept = block.kept.needed_in(region), block.kept.inside(region)
            yield from _blocks(Block(region, needed, operation, block.is_placed, kept, *shared))


def _fetched(step: Rewriter) -> Iterator[str]:
    there = {*step.operations, *[tensor.operation for tensor in step.fed]}
    for item in step.kept:
        source = item.operation if isinstance(item, Symbol) else item
        if source not in there:
            yield f"fetched: {source.name!r} ({source.type}) is wanted of the step, and is not among its operations"


# --- rules of a block -----------------------------------------------------------------------------------------------


def listed(block: Block) -> Iterator[str]:
    """Check that each operation is listed by its graph, once, at its index."""
    places = block.graph.operations
    for operation in block.operations:
        if operation.graph is not block.graph:
            yield f"{block.named(operation)} says that it is of {operation.graph!r}"
        elif operation.index >= len(places) or places[operation.index] is not operation:
            yield f"{block.named(operation)} is not listed at its index, {operation.index}"


def back_pointers(block: Block) -> Iterator[str]:
    """Check that each output points to its operation and position."""
    for operation in block.operations:
        for position, tensor in enumerate(operation.outputs):
            if tensor.operation is not operation or tensor.index != position:
                target = f"{tensor.operation.name!r}:{tensor.index}"
                yield f"output {position} of {block.named(operation)} points to {target}"


def defined_before(block: Block) -> Iterator[str]:
    """Check that each input is a tensor of the same graph that is computed before."""
    there = set(block.graph.inner_inputs()) if isinstance(block.graph, Region) else set[Symbol]()
    for operation in block.operations:
        for tensor in operation.inputs:
            if tensor.operation.graph is not block.graph:
                yield f"{block.named(operation)} takes {tensor.name!r}, a tensor of another graph"
            elif tensor not in there and not isinstance(tensor.operation.op, Placeholder):
                yield f"{block.named(operation)} takes {tensor.name!r}, which is not computed before"
        there.update(operation.outputs)


def waits(block: Block) -> Iterator[str]:
    """Check that each operation waits for operations of its graph that come before."""
    for operation in block.operations:
        for source in operation.control_inputs:
            if source.graph is not block.graph:
                yield f"{block.named(operation)} waits for {source.name!r}, an operation of another graph"
            elif source.index >= operation.index:
                yield f"{block.named(operation)} waits for {source.name!r}, which comes later"


def effects(block: Block) -> Iterator[str]:
    """Check that the effects of each operation are those of its op."""
    for operation in block.operations:
        known = operation.op.effects()
        if (operation.effects or known) and set(merged_effects(operation.effects)) != set(merged_effects(known)):
            has, says = len(operation.effects), len(tuple(known))
            yield f"{block.named(operation)} is noted with {has} effects, its op has {says}, or others"


def specs(block: Block) -> Iterator[str]:
    """Check that the outputs have the specs that follow from the inputs, or narrower ones by a fact of a pass.

    In a region an op may refuse its inputs: the branch or loop may never run, and fails when it does. There outputs
    may keep wider specs, too, where a value takes the place of one of which less was known.
    """
    for operation in block.operations:
        facts = facts_of(operation)
        known = block.inferred.get(operation)
        if known is not None and len(known) == len(facts) and all(map(is_, known, facts)):
            continue
        broken = list(_broken_specs(block, operation))
        yield from broken
        if not broken:
            note_inferred(block.inferred, operation, facts)


def _broken_specs(block: Block, operation: Operation) -> Iterator[str]:
    try:
        found = operation.op.infer(*[tensor.spec for tensor in operation.inputs])
    except (TypeError, ValueError, IndexError) as error:
        if block.holder is None:
            yield f"{block.named(operation)} does not take its inputs: {error}"
        return
    inferred: tuple[Spec, ...] = found if isinstance(found, tuple) else (found,)
    if len(inferred) != len(operation.outputs):
        yield f"{block.named(operation)} has {len(operation.outputs)} outputs, its op gives {len(inferred)}"
        return
    for tensor, spec in zip(operation.outputs, inferred, strict=True):
        if tensor.spec == spec or (block.holder is not None and tensor.spec.accepts(spec)):
            continue
        is_narrower = spec.accepts(tensor.spec)
        if is_narrower and isinstance(operation.op, block.narrowed):
            continue
        why = ", and no pass declares a fact (`Pass.narrows`) by which it is narrower" if is_narrower else ""
        yield f"output {tensor.index} of {block.named(operation)} is {tensor.spec}, its op gives {spec}{why}"


def captures(block: Block) -> Iterator[str]:
    """Check that inputs of an op with regions end with their captures, and a capture's parameter has the same spec."""
    for operation in block.holding:
        regions = operation.op.regions
        outers = [outer for region in regions for outer, _ in region.captures]
        last = operation.inputs[len(operation.inputs) - len(outers) :]
        if [id(tensor) for tensor in last] != [id(tensor) for tensor in outers]:
            yield f"the inputs of {block.named(operation)} do not end with what its regions capture"
        for region in regions:
            if region.parent is not block.graph:
                yield f"region {region.name!r} of {block.named(operation)} belongs to {region.parent!r}"
            for outer, inner in region.captures:
                if inner.operation.graph is not region:
                    yield f"region {region.name!r} of {block.named(operation)} captures {outer.name!r} for another one"
                elif not isinstance(inner.operation.op, Parameter):
                    yield f"{inner.name!r}, by which {region.name!r} captures {outer.name!r}, is no parameter"
                elif not inner.spec.accepts(outer.spec):
                    yield f"{region.name!r} captures {outer.name!r}, {outer.spec}, as {inner.spec}"


def needed(block: Block) -> Iterator[str]:
    """Check that each operation of a region is needed by a run of it, or is a parameter."""
    if isinstance(block.graph, Region):
        there = set(block.operations)
        for operation in block.graph.operations:
            if operation not in there and not isinstance(operation.op, Parameter):
                yield f"{block.named(operation)} is needed by nothing"


def captures_taken(block: Block) -> Iterator[str]:
    """Check that each capture of a region is taken by an operation that a run needs, is its result, or is recorded."""
    if not isinstance(block.graph, Region):
        return
    taken = {tensor for operation in block.operations for tensor in operation.inputs} | block.kept.own
    for outer, inner in block.graph.captures:
        if inner not in taken:
            yield f"{block.graph.name!r} captures {outer.name!r}, which nothing in it takes"


def loop_variables(block: Block) -> Iterator[str]:
    """Check that a loop has as many first values as parameters and results, of specs that the parameters take."""
    for operation in block.holding:
        op = operation.op
        if not isinstance(op, While):
            continue
        firsts, parameters, results = operation.own_inputs, op.body.parameters, op.body.results
        counts = [len(firsts), len(parameters), len(results), len(op.condition.parameters)]
        if len(set(counts)) > 1:
            numbers = "{} first values, {} parameters of the body, {} results, {} parameters of the condition"
            yield f"{block.named(operation)} has {numbers.format(*counts)}"
            continue
        for first, parameter, result in zip(firsts, parameters, results, strict=True):
            if not parameter.spec.accepts(first.spec):
                yield f"{parameter.name!r} of {block.named(operation)} is {parameter.spec}, and starts as {first.spec}"
            if not parameter.spec.accepts(result.spec):
                yield f"{parameter.name!r} of {block.named(operation)} is {parameter.spec}, and becomes {result.spec}"


def branches(block: Block) -> Iterator[str]:
    """Check that all branches give as many results as the operation has outputs beside its frame."""
    for operation in block.holding:
        if isinstance(operation.op, Branch):
            counts, wanted = [len(region.results) for region in operation.op.regions], len(operation.outputs) - 1
            if set(counts) != {wanted}:
                yield f"the branches of {block.named(operation)} give {counts} results, it has {wanted} outputs"


def results(block: Block) -> Iterator[str]:
    """Check that the results of a region are tensors of the region."""
    if isinstance(block.graph, Region) and block.holder is not None:
        for result in block.graph.results:
            if result.operation.graph is not block.graph:
                yield f"{block.graph.name!r} of {block.holder.name!r} gives {result.name!r}, a tensor of another graph"


def recorded(block: Block) -> Iterator[str]:
    """Check that each record of a frame is of a tensor of a region of the loop or branch that the frame is of."""
    for operation in block.operations:
        op = operation.op
        if isinstance(op, (History, Saved)):
            regions = operation.inputs[0].operation.op.regions
            if isinstance(operation.inputs[0].operation.op, Parameter):
                continue  # the frame of an operation further out
            if not any(op.inner.operation.graph is region for region in regions):
                yield f"{block.named(operation)} is of {op.inner.name!r}, which no region of the frame's loop computes"


def on_devices(block: Block) -> Iterator[str]:
    """Check that in a step that is placed each operation has a device, and in any other step none."""
    for operation in block.operations:
        if bool(operation.device) != block.is_placed:
            where, what = operation.device or "no device", "placed" if block.is_placed else "not placed"
            yield f"{block.named(operation)} is on {where} in a step that is {what}"


RULES: tuple[Rule, ...] = (
    listed,
    back_pointers,
    defined_before,
    waits,
    effects,
    specs,
    captures,
    needed,
    captures_taken,
    loop_variables,
    branches,
    results,
    recorded,
    on_devices,
)


# --- rules of a pass: what must be as before ------------------------------------------------------------------------


def writers(operations: Iterable[Operation]) -> Writers:
    """Return for each resource the operations of a step that write it, in order."""
    found: dict[Any, list[Operation]] = {}
    for operation in operations:
        for resource, writes in operation.effects:
            if writes:
                found.setdefault(resource, []).append(operation)
    return found


def moved_writes(before: Writers, after: Writers) -> Iterator[str]:
    """Yield the resources that are written more or less often than before, or in another order."""
    for resource in dict.fromkeys([*before, *after]):
        old, new = before.get(resource, []), after.get(resource, [])
        name = getattr(resource, "name", None) or str(resource)
        if len(old) != len(new):
            yield f"moved_writes: {name!r} was written by {len(old)} operations, and now is by {len(new)}"
        stay = [operation for operation in old if operation in new]
        if stay != [operation for operation in new if operation in old]:
            yield f"moved_writes: {name!r} is written in another order than before"


def signature(operations: Iterable[Operation]) -> int:
    """Return a number that changes with the operations of a step, with what they are and what they take."""
    facts: list[object] = []
    devices: list[str] = []
    _note_facts(operations, facts, devices)
    return hash((*map(id, facts), *devices))


def _note_facts(operations: Iterable[Operation], facts: list[object], devices: list[str]) -> None:
    for operation in operations:
        op = operation.op
        facts += (operation, op, *operation.inputs)
        devices.append(operation.device)
        for tensor in operation.outputs:
            facts += (tensor, tensor.spec)
        if op.regions:
            for region in op.regions:
                facts += region.results
                _note_facts(region.operations, facts, devices)


__all__ = ["RULES", "Block", "BrokenStepError", "moved_writes", "signature", "verify", "writers"]
