"""`with_padding`: checks that a model masks what sequences are filled up with, and notes what follows their length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ....distribute.inference import RequestError
from ....engine.graph import Graph
from ..lengths import Lengths, padded_length
from ..servable import Servable
from ..signature import DEFAULT, Padding, Signature, TensorInfo
from ..storage import WarmupRequest
from ..values import as_array_of

if TYPE_CHECKING:
    from ...structures import Array

_TOLERANCE = 1e-5
_ROUNDING = {"float16": 2**-9, "bfloat16": 2**-6}  # twice the spacing of numbers next to 1


class _ChangesError(Exception):
    """Answers are others where an input is filled up; the message says which."""


def with_padding(
    caller: str, graph: Graph, signature: Signature, pad: Mapping[str, object], warmup: WarmupRequest | None
) -> Signature:
    """Return a signature with the inputs whose axis 1 may be filled up, checked on example inputs.

    Args:
        caller: the function that was given `pad`, for errors.
        graph: the graph of the signature.
        signature: inputs and outputs.
        pad: the value to fill up with, by the name of an input.
        warmup: the example inputs.

    Raises:
        ValueError: an input can't be padded, there are no example inputs, or answers for them change by more than 1e-5.
    """
    if signature.states:
        raise ValueError(f"{caller}(pad=...): what is filled up would become part of the states of stateful layers.")
    values = _values(caller, signature, pad)
    if warmup is None or not all(array.size for array in warmup[1].values()):
        raise ValueError(f"{caller}(pad=...): give warmup, too: example inputs on which the answers are compared.")
    servable = Servable(Path(), 0, graph, {DEFAULT: signature})
    why_alone = servable.why_alone()
    if why_alone is not None:
        raise ValueError(f"{caller}(pad=...): requests are computed one at a time anyway, since {why_alone}.")
    check = _Check(servable, [warmup[1][info.name] for info in signature.inputs])
    try:
        groups = _groups(check, values)
        padded = replace(signature, paddings=groups)
        check.all_at_once(padded)
    except _ChangesError as error:
        raise ValueError(
            f"{caller}(pad={dict(pad)!r}): with the inputs of warmup filled up, {error}. The model has to mask what is "
            "filled up, as layers do after Embedding(mask_zero=True). Inputs of one length have to be named all."
        ) from None
    return padded


def _values(caller: str, signature: Signature, pad: Mapping[str, object]) -> dict[str, float | str]:
    """Return the values to fill up with, of the inputs' dtypes, by name."""
    if not isinstance(pad, Mapping) or not pad:
        raise TypeError(f'{caller}(pad={pad!r}): expected values by the names of inputs, such as {{"tokens": 0}}.')
    infos = {info.name: info for info in signature.inputs}
    found: dict[str, float | str] = {}
    for name, value in pad.items():
        if name not in infos:
            raise ValueError(f"{caller}(pad=...): there is no input {name!r}. There are {', '.join(map(repr, infos))}.")
        found[name] = _value(caller, infos[name], value)
    return found


def _value(caller: str, info: TensorInfo, value: object) -> float | str:
    if len(info.shape) < 2 or info.shape[0] is not None or info.shape[1] is not None:
        raise ValueError(
            f"{caller}(pad=...): input {info.name!r} has the shape {info.shape}; the sizes of axes 0 (rows) and 1 have "
            "to be open (None)."
        )
    try:
        array = as_array_of(f"Input {info.name!r}", info.dtype, value)
    except RequestError as error:
        raise ValueError(f"{caller}(pad=...): {error}") from None
    if array.ndim or (info.dtype != "string" and not np.isfinite(array.astype("float64"))):
        raise ValueError(f"{caller}(pad=...): expected one finite value for {info.name!r}, got {value!r}.")
    return array.item()


class _Check:
    """Compares the answers for example inputs with those for the same filled up."""

    def __init__(self, servable: Servable, arrays: Sequence[Array]) -> None:
        self.servable, self.arrays = servable, arrays
        self.signature = servable.signature()
        self.expected = servable.run(arrays)

    def length(self, name: str) -> int:
        return self.arrays[self._place(name)].shape[1]

    def _place(self, name: str) -> int:
        return [info.name for info in self.signature.inputs].index(name)

    def group(self, values: Mapping[str, float | str]) -> Padding:
        """Fill inputs up by one, and find the axes of outputs that grow with them.

        Raises:
            _ChangesError: an op refuses them, or what was there before changes.
        """
        padding = Padding(tuple(values.items()), ())
        lengths = Lengths(Signature(self.signature.inputs, self.signature.outputs, "list", None, (padding,)))
        (length,) = {self.length(name) for name in values}
        outputs = self._run(lengths.pad(self.arrays, [length + 1]))
        follow: list[tuple[str, int]] = []
        for info, before, after in zip(self.signature.outputs, self.expected, outputs, strict=True):
            sizes = zip(before.shape, after.shape, strict=True)
            follow += [(info.name, axis) for axis, (old, new) in enumerate(sizes) if new == old + 1]
        found = Padding(padding.inputs, tuple(follow))
        cutting = Lengths(Signature(self.signature.inputs, self.signature.outputs, "list", None, (found,)))
        self._compare(cutting.cut(outputs, [length]))
        return found

    def all_at_once(self, signature: Signature) -> None:
        """Fill all inputs up as far as a server does, and further than they are.

        Raises:
            _ChangesError: answers change.
        """
        lengths = Lengths(signature)
        own = [self.length(each.inputs[0][0]) for each in signature.paddings]
        try:
            outputs = self._run(lengths.pad(self.arrays, [padded_length(length + 1) for length in own]))
        except _ChangesError:  # so much is too long for the model, such as for its positions: computed as it comes
            return
        self._compare(lengths.cut(outputs, own))

    def _run(self, arrays: Sequence[Array]) -> list[Array]:
        try:
            return self.servable.run(arrays)
        except RequestError as error:
            raise _ChangesError(f"it does not compute them: {error}") from None

    def _compare(self, outputs: Sequence[Array]) -> None:
        for info, before, after in zip(self.signature.outputs, self.expected, outputs, strict=True):
            if before.shape != after.shape:
                raise _ChangesError(f"output {info.name!r} has the shape {after.shape}; it had {before.shape}")
            if before.dtype.kind in "fV":
                tolerance = _ROUNDING.get(info.dtype, _TOLERANCE)
                old, new = before.astype("float64"), after.astype("float64")
                same = np.isclose(new, old, rtol=tolerance, atol=tolerance, equal_nan=True)
            else:
                same = before == after
            if not same.all():
                place = tuple(int(index) for index in np.argwhere(~same)[0])
                raise _ChangesError(f"output {info.name!r} at {place} is {after[place]}; it was {before[place]}")


def _groups(check: _Check, values: Mapping[str, float | str]) -> tuple[Padding, ...]:
    """Group the inputs: by themselves those that can be filled up alone, the others with those of their length."""
    groups: list[Padding] = []
    tied: dict[int, dict[str, float | str]] = {}
    for name, value in values.items():
        try:
            groups.append(check.group({name: value}))
        except _ChangesError:
            if len(values) == 1:
                raise
            tied.setdefault(check.length(name), {})[name] = value
    return (*groups, *[check.group(each) for each in tied.values()])
