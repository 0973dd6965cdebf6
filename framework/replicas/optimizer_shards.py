"""`OptimizerShards`: the optimizer's state spread over the workers of `DataParallel` (ZeRO, stage 1).

All trainable numbers of one dtype are seen as one vector, cut into as many parts as there are workers. Each worker
keeps the optimizer's variables for its part alone. In a step the gradients are reduced and scattered by parts, each
worker updates its part, and the parts are gathered into the variables of all.

Source: Rajbhandari, Rasley, Ruwase and He, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
SC 2020.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ... import optim
from ...engine import ops
from ...engine.graph import IndexedSlices, Variable
from ...engine.ops.collectives import all_gather, all_reduce, current_group, reduce_scatter
from ...engine.ops.random.draws import Draw
from ...optim.clipping import Clipping
from ...optim.stateless import step_where
from ...optim.updates import constrain

if TYPE_CHECKING:
    from ...engine.graph import Tensor
    from ...optim import LossScaleOptimizer, Optimizer
    from ...optim.clipping import Gradient
    from ..structures import Array

# Those that treat each number by itself: a part of a variable is updated as it would be in the whole.
_BY_NUMBER = {
    getattr(optim, name)
    for name in ("SGD", "RMSprop", "Adam", "AdamW", "Nadam", "Adagrad", "Adadelta", "Adamax", "Ftrl", "Lion")
}


class _Part(NamedTuple):
    """The part of a variable that this worker has.

    Attributes:
        whole: the variable.
        own: its numbers of this part, a vector.
        first, last: which ones, of the flat variable.
    """

    whole: Variable
    own: Variable
    first: int
    last: int


class OptimizerShards:
    """The part that this worker has of one optimizer.

    Args:
        optimizer: the model's.
        variables: what it updates.

    Raises:
        ValueError: it can't be spread; the message says why.
    """

    def __init__(self, optimizer: Any, variables: Sequence[Variable]) -> None:
        check_optimizer(optimizer)
        self.optimizer, self._scaled = _parted(optimizer)
        self._group = current_group()
        self._vectors: list[list[_Part]] = []
        for dtype in dict.fromkeys(variable.spec.dtype for variable in variables):
            self._vectors.append(self._cut([variable for variable in variables if variable.spec.dtype == dtype]))
        parts = {id(part.whole): part for vector in self._vectors for part in vector}
        self._parts = [parts[id(variable)] for variable in variables]
        optimizer.build(variables)
        self._gathered: list[Array] = []  # the whole state, as this worker has it
        self._own = self._like(self.optimizer)

    def _cut(self, variables: list[Variable]) -> list[_Part]:
        """Return the own part of each variable, of the vector that they are together."""
        share = self._share(variables)
        begin, end = self._group.rank * share, (self._group.rank + 1) * share
        found: list[_Part] = []
        at = 0
        for variable in variables:
            size = _size(variable)
            first, last = min(max(begin - at, 0), size), min(max(end - at, 0), size)
            own = Variable(Draw("fill", (), (0,), (last - first,), variable.spec.dtype), name=variable.name)
            own.path = variable.path
            found.append(_Part(variable, own, first, last))
            at += size
        return found

    def _share(self, variables: Sequence[Variable]) -> int:
        """Return how many numbers each worker has; the last one's part may be filled up."""
        return -(-sum(map(_size, variables)) // self._group.size)

    def _like(self, optimizer: Optimizer) -> Optimizer:
        """Return an optimizer like another one, for the own parts; it shares what is not state of variables."""
        config = optimizer.get_config()
        if not isinstance(optimizer._learning_rate, Variable):  # it may be one that no file can have
            config["learning_rate"] = optimizer._learning_rate
        made = type(optimizer).from_config(config)
        made.name = optimizer.name
        made.clipping = Clipping(clipvalue=optimizer.clipping.clipvalue)
        made.loss_scale_factor = None
        listed, pattern = optimizer._not_decayed
        made._not_decayed = frozenset(part.own for part in self._parts if part.whole in listed), pattern
        made._iterations = optimizer._iterations
        made._learning_rate = optimizer._learning_rate
        made.build([part.own for part in self._parts])
        self._slots: list[tuple[Variable, Variable, _Part]] = []
        of_mine = _by_owner(made, [part.own for part in self._parts])
        of_theirs = _by_owner(optimizer, [part.whole for part in self._parts])  # others are those of frozen variables
        for place, part in enumerate(self._parts):
            for mine, theirs in zip(of_mine[place], of_theirs[place], strict=True):
                if tuple(theirs.shape or ()) == tuple(part.whole.shape or ()):
                    self._slots.append((theirs, mine, part))
                else:
                    _share(made, mine, theirs)
        for mine, theirs in zip(of_mine[None], of_theirs[None], strict=True):  # such as the count of steps
            _share(made, mine, theirs)
        return made

    @property
    def slots(self) -> list[Variable]:
        """The model's own optimizer variables that are spread; they hold nothing while `fit` runs."""
        return [whole for whole, _, _ in self._slots]

    @property
    def nbytes(self) -> int:
        """The bytes of spread state that this worker has."""
        return sum(own.nbytes for _, own, _ in self._slots)

    # --- in the graph -----------------------------------------------------------------------------------------------

    def apply(self, gradients: Sequence[Gradient | None]) -> None:
        """Build the update.

        Args:
            gradients: for each variable what this worker adds to the sum over all; None where there is none.
        """
        given = {id(part.whole): gradient for part, gradient in zip(self._parts, gradients, strict=True)}
        reduced: list[Tensor] = []
        parts: list[_Part] = []
        for vector in self._vectors:
            share = self._share([part.whole for part in vector])
            flat = [_flat(given[id(part.whole)], part.whole) for part in vector]
            mine = reduce_scatter(_padded(flat, share * self._group.size))
            at = 0
            for part in vector:
                size = part.last - part.first
                part.own.assign(ops.reshape(part.whole, (-1,))[part.first : part.last])
                if size and given[id(part.whole)] is not None:
                    parts.append(part)
                    reduced.append(ops.cast(mine[at : at + size], part.own.spec.dtype))
                at += size
        if self._scaled is None:
            self._update(parts, self._clipped(parts, reduced))
        else:
            self._update_if_finite(self._scaled, parts, reduced)

    def _update_if_finite(self, scaled: LossScaleOptimizer, parts: list[_Part], reduced: list[Tensor]) -> None:
        """Build the update of gradients of a scaled loss: all workers make it, or all leave it out."""
        overflows = [ops.cast(ops.logical_not(ops.all(ops.isfinite(gradient))), "int32") for gradient in reduced]
        finite = ops.equal(all_reduce(ops.sum(ops.stack([ops.zeros((), "int32"), *overflows]))), 0)
        scale = scaled.dynamic_scale.value
        clipped = self._clipped(parts, [ops.cast(each / scale, each.dtype) for each in reduced])
        step_where(finite, lambda: self._update(parts, clipped))
        scaled.update_scale(finite)

    def _update(self, parts: list[_Part], reduced: list[Tensor]) -> None:
        if parts:
            self._own.apply(reduced, [part.own for part in parts])
        else:  # a worker at the end of few numbers
            self.optimizer._iterations.assign_add(1)
        for vector in self._vectors:
            self._gather(vector)

    def _gather(self, vector: list[_Part]) -> None:
        """Have all workers get the new numbers of all parts."""
        share = self._share([part.whole for part in vector])
        whole = all_gather(_padded([ops.convert_to_tensor(part.own) for part in vector], share))
        at = 0
        for part in vector:
            size = _size(part.whole)
            part.whole.assign(ops.reshape(whole[at : at + size], part.whole.shape))
            constrain(part.whole)
            at += size

    def _clipped(self, parts: list[_Part], reduced: list[Tensor]) -> list[Tensor]:
        """Return gradients without loss scale, clipped by the norms of the whole gradients."""
        scale, clipping = self.optimizer.loss_scale_factor, self.optimizer.clipping
        if scale is not None:
            reduced = [gradient / scale for gradient in reduced]
        most = clipping.clipnorm or clipping.global_clipnorm
        if not most:
            return reduced
        numbers = {id(part.whole): number for number, part in enumerate(self._parts)}
        own: list[Tensor] = [ops.zeros((), "float32")] * len(self._parts)
        for part, gradient in zip(parts, reduced, strict=True):
            wide = gradient if gradient.dtype.itemsize > 4 else ops.cast(gradient, "float32")
            own[numbers[id(part.whole)]] = ops.sum(ops.square(wide))
        squares = all_reduce(ops.stack([ops.cast(square, "float64") for square in own]))
        if clipping.global_clipnorm:
            norm = ops.sqrt(ops.sum(squares))
            factor = most / ops.maximum(norm, most) + (norm - norm)
            return [gradient * ops.cast(factor, gradient.dtype) for gradient in reduced]
        factors = most / ops.maximum(ops.sqrt(squares), most)
        return [
            gradient * ops.cast(factors[numbers[id(part.whole)]], gradient.dtype)
            for part, gradient in zip(parts, reduced, strict=True)
        ]

    # --- between steps ----------------------------------------------------------------------------------------------

    def scatter(self) -> None:
        """Give each worker its part of the state that the chief has; all workers call this."""
        self._gathered = []
        for whole, own, part in self._slots:
            is_new = whole.first_value is not None
            if self._group.broadcast(np.array([is_new]), 0)[0]:
                first: Any = whole.first_value
                number = first.numbers[0] if first is not None and first.kind == "fill" else 0
                own.write_value(np.full(own.shape or (), number, own.spec.dtype))
            else:
                value = self._group.broadcast(np.ascontiguousarray(whole.stored_value()), 0)
                own.write_value(np.array(value.reshape(-1)[part.first : part.last]))
        self.release()

    def take_up(self) -> None:
        """Give each worker its part of the state, if the chief has changed it since `gather`; all workers call this."""
        pairs = zip(self._slots, self._gathered, strict=False)
        is_kept = len(self._gathered) == len(self._slots) and all(
            whole.first_value is None and whole.stored_value() is value for (whole, _, _), value in pairs
        )
        if not self._group.broadcast(np.array([is_kept]), 0)[0]:
            self.scatter()

    def gather(self, keep: bool) -> None:
        """Put the parts of all workers together in the model's optimizer; all workers call this.

        Args:
            keep: whether this worker is to have it; all have what averages of weights need.
        """
        keep = keep or self.optimizer.use_ema
        self._gathered = []
        for whole, own, _ in self._slots:
            value = self._group.all_gather(np.ascontiguousarray(own.stored_value()), 0)
            if keep:
                whole.write_value(value.reshape([int(size or 0) for size in whole.shape or ()])[()])
                self._gathered.append(whole.stored_value())

    def release(self) -> None:
        """Give the memory of the whole state up; it is in the parts."""
        for whole, _, _ in self._slots:
            _empty(whole)

    def release_parts(self) -> None:
        """Give the memory of the parts up, until `scatter` or `take_up`; the chief has the whole state."""
        self._gathered = []
        for _, own, _ in self._slots:
            _empty(own)


def _empty(variable: Variable) -> None:
    """Have a variable hold nothing until it is written, or read: then it is zeros."""
    shape = tuple(int(size or 0) for size in variable.shape or ())
    variable.postpone(Draw("fill", (), (0,), shape, variable.spec.dtype))


def _parted(optimizer: Optimizer) -> tuple[Optimizer, LossScaleOptimizer | None]:
    """Return what makes the steps, and what scales the loss around it."""
    is_scaled = isinstance(optimizer, optim.LossScaleOptimizer)
    return (optimizer.inner_optimizer, optimizer) if is_scaled else (optimizer, None)


def _size(variable: Variable) -> int:
    return math.prod(int(size or 0) for size in variable.shape or ())


def _flat(gradient: Gradient | None, variable: Variable) -> Tensor:
    """Return a gradient as a vector, in a dtype whose sums lose nothing."""
    wide = variable.spec.dtype if variable.spec.dtype.itemsize >= 4 else "float32"
    if gradient is None:
        return ops.zeros((_size(variable),), wide)
    dense = gradient.to_dense() if isinstance(gradient, IndexedSlices) else gradient
    return ops.reshape(ops.cast(dense, wide), (_size(variable),))


def _padded(parts: list[Any], size: int) -> Tensor:
    """Join vectors, and fill them up with zeros."""
    missing = size - sum(int(part.shape[0]) for part in parts)
    if missing:
        parts = [*parts, ops.zeros((missing,), parts[0].dtype)]
    return parts[0] if len(parts) == 1 else ops.concatenate(parts)


def _by_owner(optimizer: Optimizer, owners: Sequence[Variable]) -> dict[int | None, list[Variable]]:
    """Return an optimizer's variables by the place of the variable that each is for, or by None."""
    places = {id(owner): place for place, owner in enumerate(owners)}
    found: dict[int | None, list[Variable]] = {None: [], **{place: [] for place in range(len(owners))}}
    for variable in optimizer._variables:
        near = [each for each in variable.colocations if isinstance(each, Variable)]
        known = [places[id(each)] for each in near if id(each) in places]
        if known or not near:
            found[known[0] if known else None].append(variable)
    return found


def _share(made: Optimizer, mine: Variable, theirs: Variable) -> None:
    """Have an optimizer use a variable of another one in place of its own."""
    made._variables = [theirs if variable is mine else variable for variable in made._variables]
    _replace(made, mine, theirs)


def _replace(holder: object, old: object, new: object) -> None:
    """Put a variable in the place of another one wherever an optimizer's attributes hold that."""
    for name, value in list(vars(holder).items()):
        if value is old:
            setattr(holder, name, new)
        elif isinstance(value, list) and any(item is old for item in value):
            setattr(holder, name, [new if item is old else item for item in value])


def check_optimizer(optimizer: Optimizer) -> None:
    """Check that the state of an optimizer can be spread.

    Raises:
        ValueError: it can't be; the message says why.
    """
    optimizer, _ = _parted(optimizer)
    kind = type(optimizer)
    if kind not in _BY_NUMBER:
        raise ValueError(
            f"DataParallel(shard='optimizer') cuts variables into parts, which {kind.__name__} may not treat as it "
            f"treats the whole. Use {', '.join(sorted(each.__name__ for each in _BY_NUMBER))}, or DataParallel()."
        )
    clipping = optimizer.clipping
    if optimizer.gradient_accumulation_steps and (clipping.clipnorm or clipping.global_clipnorm):
        raise ValueError(
            "DataParallel(shard='optimizer') clips by norm before gradients are accumulated, which is not the same. "
            "Leave clipnorm or gradient_accumulation_steps out, or use DataParallel()."
        )
    if optimizer._is_guarded:
        raise ValueError(
            "DataParallel(shard='optimizer') can't leave updates out by their size, of which each worker has a part. "
            "Use DataParallel()."
        )


__all__ = ["OptimizerShards", "check_optimizer"]
