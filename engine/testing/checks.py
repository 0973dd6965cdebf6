"""Checks of an op alone, by its samples: values, inferred specs, emitted source, layouts of memory, and dtypes.

Each check takes a sample, returns how many cases it went through, and raises AssertionError with what is wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from ..common.dtypes import as_dtype, is_dtype, is_floating, is_integer
from ..graph.axis_maps import Follows, axis_map_of
from ..graph.op import Op, Sample, as_scalar_or_array, is_array
from ..graph.spec import TensorSpec
from ..ops.math.special import erf_values, erfc_values, erfinv_values
from .comparing import (
    KNOWN,
    all_floating,
    as_tuple,
    assert_close,
    assert_fits,
    assert_identical,
    assert_same_form,
    fail_unless,
    pairs,
    same_values,
    spec_of,
    weak_spec,
)

FLOATS = ("bfloat16", "float16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")

# --- value, specs ---------------------------------------------------------------------------------------------------


def check_value(sample: Sample) -> int:
    """Check that `run` gives what is expected (or twice the same), in the form of `infer`, and no input changes."""
    inputs = [_frozen(x) for x in sample.inputs]
    results = as_tuple(sample.op.run(np, *inputs))
    may_vary = sample.op.shape_from_values or not all_floating(inputs)
    for value, spec in pairs(results, sample.op.infer(*[spec_of(x) for x in inputs])):
        assert_fits(value, spec)
        fail_unless(
            spec.is_static or may_vary,
            f"infer gives {spec} although the shapes of the inputs are known: say so with `shape_from_values = True` "
            "if the result's shape depends on values",
        )
    for x, before in zip(inputs, sample.inputs, strict=True):
        fail_unless(same_values(x, before), "run changes its input")
    if not sample.op.view:
        shared = any(np.shares_memory(x, y) for x in inputs for y in results)
        fail_unless(not shared, "run returns memory of its input: copy it, or say so with `view = True`")
    if sample.expected is None:
        for value, again in pairs(results, sample.op.run(np, *inputs)):
            assert_identical(value, again)
    else:
        for value, expected in pairs(results, sample.expected):
            assert_close(value, expected, sample.tolerance, sample.op.elementwise)
    return 1


def _frozen(x: Any) -> Any:
    copy = x.copy()
    if is_array(copy):
        copy.setflags(write=False)
    return copy


def check_specs(sample: Sample) -> int:
    """Check that what is inferred from less still describes the result, and is no more than what more gives."""
    op = sample.op
    results = as_tuple(op.run(np, *sample.inputs))
    full = [spec_of(x) for x in sample.inputs]
    strong = as_tuple(op.infer(*full))
    weakened = [[weak_spec(sample, position, known) for position in range(len(full))] for known in KNOWN[1:]]
    for position, value in enumerate(sample.inputs):
        weaker = [weak_spec(sample, position, known) for known in KNOWN[1:]]
        if op.needs_known.get(position) != "last axis":
            shape = value.shape
            weaker += [TensorSpec((*shape[:k], None, *shape[k + 1 :]), value.dtype) for k in range(len(shape))]
        weakened += [[*full[:position], spec, *full[position + 1 :]] for spec in weaker]
    for specs in weakened:
        for (value, spec), least in zip(pairs(results, op.infer(*specs)), strong, strict=True):
            assert_fits(value, spec)
            fail_unless(spec.accepts(least), f"{least} became {spec} when less was known: {[str(s) for s in specs]}")
    return len(weakened)


def check_axes(sample: Sample) -> int:
    """Check that axes of results are as long as those that they follow by `axis_map`, and whether index by index."""
    op, inputs = sample.op, list(sample.inputs)
    axes = axis_map_of(op, [spec_of(x) for x in inputs])
    if axes is None:
        return 0
    results = as_tuple(op.run(np, *inputs))
    for value in results:
        fail_unless(len(axes) <= value.ndim, f"axis_map lists {len(axes)} axes of a result of shape {value.shape}")
        for axis, each in [(axis, each) for axis, own in enumerate(axes) for each in own]:
            size = inputs[each.input].shape[each.axis]
            fail_unless(
                size == value.shape[axis] or (each.may_broadcast and size == 1),
                f"axis {axis} of the result is {value.shape[axis]} long, axis {each.axis} of input {each.input}, which "
                f"it follows by axis_map, {size}",
            )
    return sum(_check_reversed(sample, axis, own, results) for axis, own in enumerate(axes))


def _check_reversed(sample: Sample, axis: int, followed: Sequence[Follows], results: Sequence[Any]) -> int:
    """Check that a result is reversed along an axis where those axes of inputs are that it follows index by index."""
    if not any(each.by_index for each in followed):
        return 0
    inputs = list(sample.inputs)
    for each in followed:
        if each.by_index:
            inputs[each.input] = np.flip(inputs[each.input], each.axis)
    for value, again in pairs([np.flip(value, axis) for value in results], sample.op.run(np, *inputs)):
        try:
            assert_close(again, value, sample.tolerance, sample.op.elementwise)
        except AssertionError as error:
            message = f"axis {axis} of the result does not follow {followed} index by index: {error}"
            raise AssertionError(message) from error
    return 1


# --- facts about values ---------------------------------------------------------------------------------------------


def check_facts(sample: Sample) -> int:
    """Check that results are linear in inputs that `linear_in` names, and grow with those of `grows_with`."""
    op, inputs = sample.op, list(sample.inputs)
    kinds = [getattr(each, "dtype", np.dtype(object)).kind for each in inputs]
    linear = [position for position in op.linear_in if kinds[position] in "fc"]
    growing = [(position, sign) for position, sign in enumerate(op.grows_with) if kinds[position] == "f"]
    if not linear and not growing:
        return 0
    results = as_tuple(op.run(np, *inputs))
    for position in linear:
        doubled = [2 * each if place == position else each for place, each in enumerate(inputs)]
        for value, again in pairs([2 * value for value in results], op.run(np, *doubled)):
            assert_close(again, value, sample.tolerance, op.elementwise)
    for position, sign in growing:
        moved = [each + np.ones_like(each) if place == position else each for place, each in enumerate(inputs)]
        for value, again in pairs(results, op.run(np, *moved)):
            low, high = (value, again) if sign > 0 else (again, value)
            fail_unless(
                bool(np.all((low <= high) | np.isnan(low) | np.isnan(high))),
                f"the result does not {'grow' if sign > 0 else 'fall'} with input {position}, as grows_with says",
            )
    return len(linear) + len(growing)


# --- emitted source, layouts ----------------------------------------------------------------------------------------


class _NumpyExpressions:
    """The namespace of `expression`: NumPy, and the functions of the expression language that NumPy lacks."""

    def cast(self, x: Any, dtype: Any) -> Any:
        return x.astype(dtype)

    def sigmoid(self, x: Any) -> Any:
        return 1 / (1 + np.exp(-x))

    def erf(self, x: Any) -> Any:
        return erf_values(np, x.astype("float64")).astype(x.dtype)

    def erfc(self, x: Any) -> Any:
        return erfc_values(np, x.astype("float64")).astype(x.dtype)

    def erfinv(self, x: Any) -> Any:
        return erfinv_values(np, x.astype("float64")).astype(x.dtype)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def check_emission(sample: Sample) -> int:
    """Check that `emit`, `emit_out` and `expression` give the bits that `run` gives."""
    op, inputs = sample.op, sample.inputs
    expected = op.run(np, *inputs)
    cases = _check_emitted(op, inputs, expected)
    if op.elementwise:
        definition: Any = op
        assert hasattr(op, "expression"), (
            "elementwise is True, and there is no expression(self, e, x) for kernels. Define it in place of run, or "
            "say by_element = True."
        )
        assert_identical(as_scalar_or_array(definition.expression(_NumpyExpressions(), *inputs)), expected)
        cases += 1
    return cases + _check_emitted_into(op, inputs, expected)


def _check_emitted(op: Op, inputs: Sequence[Any], expected: Any) -> int:
    source = op.emit(_names(inputs))
    if source is None:
        return 0
    for value, wanted in pairs(eval(source, {"np": np}, _scope(inputs)), expected):
        assert_identical(value, wanted)
    return 1


def _check_emitted_into(op: Op, inputs: Sequence[Any], expected: Any) -> int:
    source = op.emit_out(_names(inputs), "out")
    if source is None or not is_array(expected):
        return 0
    out = _garbage(expected)
    eval(source, {"np": np}, {**_scope(inputs), "out": out})
    assert_identical(out, expected)
    return 1


def _names(inputs: Sequence[Any]) -> list[str]:
    return [f"x{position}" for position in range(len(inputs))]


def _scope(inputs: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(_names(inputs), inputs, strict=True))


def _garbage(like: Any) -> Any:
    return np.frombuffer(b"\x5a" * like.nbytes, like.dtype).reshape(like.shape).copy() if like.size else like.copy()


def _fortran(x: Any) -> Any:
    return np.asfortranarray(x) if x.ndim else x


def _spread(x: Any) -> Any:
    """Return every second element of a larger array along each axis, from its end to its start."""
    larger = np.zeros([2 * dim for dim in x.shape], x.dtype)
    larger = _garbage(larger) if x.dtype.kind in "biufcV" else larger
    part = larger[(..., *(slice(None, None, -2),) * x.ndim)]
    part[...] = x
    return part


LAYOUTS: dict[str, Callable[[Any], Any]] = {"fortran": _fortran, "strided": _spread}


def check_layouts(sample: Sample) -> int:
    """Check that other layouts give the same values; what is emitted for them still equals `run` on them."""
    op = sample.op
    expected = op.run(np, *sample.inputs)
    if not any(is_array(x) and x.size > 1 for x in sample.inputs):
        return 0
    for layout in LAYOUTS.values():
        inputs = [layout(x) if is_array(x) else x for x in sample.inputs]
        result = op.run(np, *inputs)
        for value, wanted in pairs(result, expected):
            assert_same_form(value, wanted)
            assert_close(value, wanted, 1e-5)
        _check_emitted(op, inputs, result)
        source = op.emit_out(_names(inputs), "out")
        if source is not None and is_array(expected):
            out = layout(_garbage(expected))
            eval(source, {"np": np}, {**_scope(inputs), "out": out})
            assert_close(out, expected, 1e-5)
    return len(LAYOUTS)


# --- dtypes ---------------------------------------------------------------------------------------------------------


def with_floats(op: Op, dtype: Any) -> Op:
    """Return the op with the floating dtypes among its attributes replaced by `dtype`."""
    if not dataclasses.is_dataclass(op):
        return op
    fields = {field.name: getattr(op, field.name) for field in dataclasses.fields(op)}
    changed = {k: np.dtype(dtype) for k, v in fields.items() if is_dtype(v) and is_floating(v)}
    return dataclasses.replace(cast(Any, op), **changed) if changed else op


def in_float64(sample: Sample) -> tuple[Op, list[Any]]:
    """Return the op and inputs of a sample in double precision."""
    return with_floats(sample.op, "float64"), [in_double(x) for x in sample.inputs]


def in_double(value: Any) -> Any:
    """Return a floating-point or complex value in double precision; any other as it is."""
    if value.dtype.kind == "c":
        return value.astype("complex128")
    return value.astype("float64") if is_floating(value.dtype) else value


def check_dtypes(sample: Sample) -> int:
    """Check that, for each dtype that `infer` takes, `run` gives the dtype it says, and emitted code equals it.

    The sample's floating inputs are tried in all dtypes, its integers in those that hold their values. `infer` may
    refuse dtypes by TypeError, but neither float32 nor float64 where the sample is floating. In double precision the
    values have to be those of single precision.
    """
    return _check_floats(sample) + _check_other_kinds(sample) + _check_integers(sample)


def _check_floats(sample: Sample) -> int:
    cases = 0
    base = as_tuple(sample.op.run(np, *sample.inputs))
    for dtype in (*FLOATS, *COMPLEX):
        inputs = _cast_where(sample.inputs, is_floating, dtype)
        if inputs is None:
            continue
        results = _run_if_taken(with_floats(sample.op, as_dtype(dtype)), inputs)
        fail_unless(results is not None or dtype not in ("float32", "float64"), f"infer refuses {dtype}")
        cases += results is not None
        if dtype == "float64" and results is not None and _is_determined(sample):
            for value, wanted in zip(results, base, strict=True):
                assert_close(value, wanted, max(sample.tolerance, 1e-5))
    return cases


def _check_other_kinds(sample: Sample) -> int:
    """Return integers and bools where the sample has floating-point numbers."""
    cases = 0
    for dtype in ("bool", *INTEGERS):
        inputs = _cast_where(sample.inputs, is_floating, dtype)
        if inputs is None:
            continue
        try:
            cases += _run_if_taken(sample.op, inputs) is not None
        except ValueError:
            continue  # at these values the op is not defined for integers: 2 ** -1, steps of 0
    return cases


def _check_integers(sample: Sample) -> int:
    cases = 0
    for dtype in INTEGERS:
        inputs = _cast_where(sample.inputs, is_integer, dtype)
        if inputs is not None and _keeps_values(inputs, sample.inputs):
            cases += _run_if_taken(sample.op, inputs) is not None
    return cases


def _is_determined(sample: Sample) -> bool:
    """Test whether the values are the same in any precision: random numbers are not."""
    finite = all(np.isfinite(x).all() for x in sample.inputs if x.dtype.kind in "biufcV")
    return finite and sample.expected is not None and not sample.op.type_name.startswith("random_")


def _cast_where(inputs: Sequence[Any], chosen: Callable[[Any], bool], dtype: str) -> list[Any] | None:
    """Return the inputs of some kind of dtype in another one; None if there are none."""
    if not any(chosen(x.dtype) for x in inputs):
        return None
    with np.errstate(all="ignore"):
        return [x.astype(as_dtype(dtype)) if chosen(x.dtype) else x for x in inputs]


def _keeps_values(inputs: Sequence[Any], before: Sequence[Any]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(inputs, before, strict=True) if is_integer(y.dtype))


def _run_if_taken(op: Op, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return the results, after their dtype and what is emitted were checked; None if `infer` refuses the dtype."""
    try:
        specs = as_tuple(op.infer(*[spec_of(x) for x in inputs]))
    except (TypeError, ValueError):  # ValueError: shapes that go with the dtype of the sample alone, as for `view`
        return None
    try:
        return _run_in(op, inputs, specs)
    except (AssertionError, TypeError, ValueError, OverflowError) as error:
        error.add_note(f"With inputs of dtypes {', '.join(str(x.dtype) for x in inputs)}, which infer takes.")
        raise


def _run_in(op: Op, inputs: Sequence[Any], specs: Sequence[Any]) -> tuple[Any, ...]:
    result = op.run(np, *inputs)
    for value, spec in pairs(result, specs):
        assert_fits(value, spec)
    _check_emitted(op, inputs, result)
    _check_emitted_into(op, inputs, result)
    return as_tuple(result)
