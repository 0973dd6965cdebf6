"""The variables of a loop, compared with what a body returns: every difference is reported, in the user's names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from ..common.dtypes import is_differentiable, name_of
from ..common.nest import flatten, flatten_with_path, is_mapping, is_nested, is_sequence, sorted_keys
from ..graph.context import graph_context
from ..graph.spec import ArraySpec, Spec, TensorSpec, as_shape, kind_of, shape_accepts, shape_text
from ..graph.tensor import Tensor
from ..graph.value import Value
from ..ops.base import apply
from ..ops.math.elementwise import Identity
from .region_op import as_component, parameter_names


def as_arguments(values: Iterable[Tensor]) -> list[Tensor]:
    """Return the values of loop variables as tensors of their own, for a loop that runs at once.

    The gradient by a variable would otherwise count what else uses the same value: another variable, or a function of
    the loop that takes its initial value from around.
    """
    return [_own(value) if isinstance(value, Value) and is_differentiable(value.dtype) else value for value in values]


def _own(value: Value) -> Tensor:
    if type(value) is Value and not graph_context.tapes:  # there is nothing to record
        return Value(value.array, value.of_weights)
    return apply(Identity(), value) if isinstance(value.spec, TensorSpec) else value


class LoopVariables:
    """The loop variables of one `while_loop`.

    Args:
        body: the user's function, whose parameters name the variables.
        structure: their initial values, a tuple or list of structures.
        invariants: the shapes that the user declares, or None.
        single: the user gave one value and no sequence.

    Attributes:
        names: a name for each leaf: the body's parameter, with the way into it if it is a structure.
        inits: the initial values.
        specs: what is known of the values in each iteration, before the body was seen.
    """

    def __init__(self, body: Callable[..., Any], structure: Any, invariants: Any, single: bool) -> None:
        self.structure = structure
        self._single = single
        self._parameters = parameter_names(body, len(structure))
        self._paths = [path for path, _ in flatten_with_path(structure)]
        self.names = [self._named(path) for path in self._paths]
        self.inits = [as_component(leaf) for leaf in flatten(structure)]
        self._declared = self._declared_specs(invariants, single)
        self.specs: list[Spec] = [
            init.spec if declared is None else declared
            for init, declared in zip(self.inits, self._declared, strict=True)
        ]

    def _named(self, path: str) -> str:
        """Return the way to a leaf of the whole, ``[1]['h']``, as the user writes it in the body: ``state['h']``."""
        match = re.match(r"\[(\d+)\]", path)
        if match is None or int(match[1]) >= len(self._parameters):
            return path
        return self._parameters[int(match[1])] + path[match.end() :]

    # --- declared shapes --------------------------------------------------------------------------------------------

    def _declared_specs(self, invariants: Any, single: bool) -> list[TensorSpec | None]:
        if invariants is None:
            return [None] * len(self.inits)
        if single and not _is_list_of_one(invariants):
            invariants = [invariants]
        leaves = self._invariant_leaves(self.structure, invariants, "")
        return [self._declared_spec(*each) for each in zip(leaves, self.inits, self.names, strict=True)]

    def _invariant_leaves(self, structure: Any, declared: Any, path: str) -> list[Any]:
        """Return shapes declared for the leaves of `structure`, which are tuples themselves; None is any shape.

        Raises:
            ValueError: they are not in the structure of the loop variables.
        """
        if structure is None:
            return []
        if declared is not None and not _is_declared_like(structure, declared):
            where = self._named(path) if path else "loop_vars"
            raise ValueError(
                f"while_loop: shape_invariants must have the structure of loop_vars ({', '.join(self.names)}), with a "
                f"shape for each; got {declared!r} for {where}."
            )
        if not is_nested(structure):
            return [declared]
        leaves: list[Any] = []
        for key in sorted_keys(structure) if is_mapping(structure) else range(len(structure)):
            inner = None if declared is None else declared[key]
            leaves += self._invariant_leaves(structure[key], inner, f"{path}[{key!r}]")
        return leaves

    def _declared_spec(self, leaf: Any, init: Tensor, name: str) -> TensorSpec | None:
        if isinstance(init.spec, ArraySpec):
            return None
        shape = as_shape(getattr(leaf, "shape", leaf))
        if not shape_accepts(shape, init.shape):
            raise ValueError(
                f"while_loop: the initial value of {name} has shape {shape_text(init.shape)}, "
                f"which its shape invariant {shape_text(shape)} does not allow."
            )
        return TensorSpec(shape, init.dtype)

    # --- what a body returns ----------------------------------------------------------------------------------------

    def checked(self, result: Any, specs: list[Spec]) -> list[Tensor]:
        """Return the body's result as flat tensors.

        Args:
            result: what the body returned.
            specs: what the loop variables were when it was called.

        Raises:
            TypeError: it differs from the loop variables; the message lists every difference.
        """
        if self._single and not (is_sequence(result) and len(result) == 1):
            result = (result,)
        if len(self.structure) == 1 and not is_sequence(result):
            result = (result,)
        found = {} if self._other_count(result) else dict(flatten_with_path(result))
        differences = [self._other_count(result)] if not found and self._paths else self._missing(found)
        common = [each for each in zip(self._paths, specs, self._declared, strict=True) if each[0] in found]
        tensors: list[Tensor] = []
        for path, spec, declared in common:
            tensors.append(as_component(found[path], spec))
            differences.append(_difference(self._named(path), spec, tensors[-1].spec, declared))
        listed = [difference for difference in differences if difference]
        if listed:
            raise TypeError(
                "while_loop: the body must return its loop variables in the same structure, dtypes and declared "
                "shapes.\n" + "\n".join(listed)
            )
        return tensors

    def _other_count(self, result: Any) -> str:
        """Describe what is wrong with the outermost container, which may be a list or a tuple; "" for nothing."""
        if is_sequence(result) and len(result) == len(self.structure):
            return ""
        got = f"{len(result)} values" if is_sequence(result) else f"one {type(result).__name__}"
        return f"  It has {len(self.structure)} loop variables ({', '.join(self.names)}), but the body returned {got}."

    def _missing(self, found: dict[str, Any]) -> list[str]:
        missing = [f"  {self._named(path)} is missing from the result." for path in self._paths if path not in found]
        known = set(self._paths)
        extra = [f"  {self._named(path)} was not among the loop variables." for path in found if path not in known]
        return [*missing, *extra]


def _difference(name: str, spec: Spec, result: Spec, declared: TensorSpec | None) -> str:
    if kind_of(result) != kind_of(spec):
        return f"  {name}: went in as {spec}, came out as {result}."
    if result.dtype != spec.dtype:
        before, after = name_of(spec.dtype), name_of(result.dtype)
        return (
            f"  {name}: went in as {before}, came out as {after}; cast it back with ops.cast(..., '{before}'), or "
            f"start with {'an' if after[0] in 'aeiou' else 'a'} {after} value."
        )
    if declared is not None and not declared.accepts(result):
        return (
            f"  {name}: declared as {shape_text(declared.shape)} by shape_invariants, came out as "
            f"{shape_text(result.shape)}; declare what varies as None, or leave the declaration out: it is found."
        )
    return ""


def _is_list_of_one(invariants: Any) -> bool:
    """Test whether what is declared for one value is a list with its shape, rather than the shape."""
    if not is_sequence(invariants) or len(invariants) != 1:
        return False
    return is_sequence(invariants[0]) or hasattr(invariants[0], "shape")


def _is_declared_like(structure: Any, declared: Any) -> bool:
    if is_mapping(structure):
        return is_mapping(declared) and declared.keys() == structure.keys()
    if is_sequence(structure):
        return is_sequence(declared) and len(declared) == len(structure)
    return not is_mapping(declared)
