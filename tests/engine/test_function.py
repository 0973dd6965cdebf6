"""Functions: tracing by specs, the cache, effects, structures, shapes that are relaxed, methods, errors."""

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.graph import Graph, Value
from anabranch.engine.session.function import Function

Point = namedtuple("Point", ["x", "y"])


def counted(python_function: Any, **options: Any) -> tuple[Any, list[Any]]:
    """A function, and the list of the argument tuples with which it was traced."""
    traces: list[Any] = []

    def traced(*args: Any, **kwargs: Any) -> Any:
        traces.append((*args, *kwargs.values()))
        return python_function(*args, **kwargs)

    return ab.function(traced, **options), traces


# --- tracing --------------------------------------------------------------------------------------------------------


def test_a_function_over_arrays_returns_values():
    @ab.function
    def hypotenuse(a: Any, b: Any) -> Any:
        """The longest side."""
        return ab.ops.sqrt(a * a + b * b)

    value = hypotenuse(3.0, np.array([4.0, 0.0], "float32"))
    assert type(value) is Value
    assert value.tolist() == [5, 3]
    assert (str(hypotenuse(3.0, 4.0).dtype), hypotenuse(3.0, 4.0).shape) == ("float32", ())
    assert isinstance(hypotenuse, Function)
    assert (vars(hypotenuse)["__name__"], hypotenuse.__doc__) == ("hypotenuse", "The longest side.")


def test_traces_are_kept_by_dtype_and_shape():
    double, traces = counted(lambda x: x * 2)
    for value in (1.0, 2.5, np.float32(3), np.zeros(2), np.ones(2), 1, np.zeros((2, 1)), np.zeros(2, "float32")):
        assert np.array_equal(double(value), np.asarray(value) * 2)

    specs = [str(x.spec) for (x,) in traces]
    assert specs == ["float32[]", "float64[2]", "int32[]", "float64[2,1]", "float32[2]"]
    assert double.trace_count() == 5


def test_other_arguments_are_part_of_the_trace():
    scale, traces = counted(lambda x, mode, training=False: x * {"two": 2, "three": 3}[mode] + (1 if training else 0))

    assert [scale(1.0, "two"), scale(5.0, "three"), scale(2.0, "two")] == [2, 15, 4]
    assert [scale(1.0, "two", True), scale(1.0, "two", training=True), scale(1.0, mode="two")] == [3, 3, 2]
    assert len(traces) == 5


def test_keyword_order_makes_no_other_trace():
    subtract, traces = counted(lambda *, a, b: a - b)

    assert [subtract(a=3.0, b=1.0), subtract(b=1.0, a=3.0)] == [2, 2]
    assert len(traces) == 1


def test_arguments_that_have_no_hash_are_known_by_identity():
    count, traces = counted(lambda x, chosen: x * len(chosen))
    for size in range(5):
        assert count(1.0, set(range(size))) == size
    chosen = {1, 2}

    assert [count(1.0, chosen), count(2.0, chosen)] == [2, 4]
    assert len(traces) == 6


def test_variables_are_read_at_each_call():
    v = ab.Variable(2.0)
    scale, traces = counted(lambda x, by: x * by)

    assert scale(3.0, v) == 6
    v.assign(5.0)
    assert scale(3.0, v) == 15
    assert scale(3.0, ab.Variable(1.0)) == 3
    assert len(traces) == 2


def test_a_failing_trace_is_not_kept():
    fail = [True]

    def unsure(x: Any) -> Any:
        if fail[0]:
            raise KeyError("not yet")
        return x + 1

    function = ab.function(unsure)
    with pytest.raises(KeyError, match="not yet"):
        function(1.0)
    fail[0] = False
    assert function(1.0) == 2
    assert function.trace_count() == 1


# --- structures -----------------------------------------------------------------------------------------------------


def test_structures_of_arguments_and_results():
    @ab.function
    def rearrange(point: Any, table: dict[str, Any], *rest: Any) -> Any:
        return {"point": Point(point.y, point.x), "all": [table["a"], (table["b"], None), *rest]}

    found = rearrange(Point(1.0, 2), {"b": [3.0], "a": None}, 4, 5.0)

    assert found == {"point": Point(2, 1), "all": [None, ([3], None), 4, 5]}
    assert type(found["point"]) is Point


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (lambda x: None, None),
        (lambda x: (), ()),
        (lambda x: 3, 3),
        (lambda x: [x, 1.5, None], [2, 1.5, None]),
        (lambda x: np.float64(4), 4),
        (lambda x: ab.TensorArray("float32", 2).write(1, x), [None, 2]),
        (lambda x: ab.Variable(7.0), 7),
        (lambda x: (x + 1).operation, None),
        (lambda x: ((x + 1).operation, x), (None, 2)),
    ],
)
def test_results_of_every_kind(result: Any, expected: Any):
    assert ab.function(result)(2.0) == expected


def test_results_do_not_alias_arguments():
    array = np.ones(3, "float32")
    result = ab.function(lambda x: x)(array)
    array[0] = 5
    assert result.tolist() == [1, 1, 1]

    result.numpy()[1] = 7
    assert array.tolist() == [5, 1, 1]
    assert result.tolist() == [1, 1, 1]


# --- effects --------------------------------------------------------------------------------------------------------


def test_effects_always_run_and_in_program_order():
    v = ab.Variable(1.0)

    @ab.function
    def step(x: Any) -> Any:
        before = v + 0
        v.assign(v * 2)
        v.assign_add(x)
        return before

    assert [step(1.0), step(10.0)] == [1, 3]
    assert v.numpy() == 16


def test_effects_inside_loops_and_branches_run():
    v = ab.Variable(0)

    @ab.function
    def climb(n: Any) -> None:
        def up(i: Any) -> Any:
            ab.cond(i > 1, lambda: v.assign_add(i), lambda: v.assign_add(100))
            return i + 1

        ab.while_loop(lambda i: i < n, up, 0)

    assert climb(4) is None
    assert v.numpy() == 205


def test_random_numbers_are_fresh_at_each_call():
    generator = ab.random.SeedGenerator(3)
    draw = ab.function(lambda: ab.random.uniform((2,), seed=generator))

    assert draw().tolist() != draw().tolist()
    assert generator.state.tolist() == [3, 2]


# --- functions inside graphs ----------------------------------------------------------------------------------------


def test_on_tensors_a_function_adds_to_their_graph():
    square = ab.function(lambda x: x * x)
    with Graph().as_default():
        x = ab.placeholder(())
        y = square(x) + 1
        (dx,) = ab.gradients(y, [x])
        z = ab.while_loop(lambda i, _: i < 2, lambda i, z: (i + 1, square(z)), (0, x))[1]

        assert ab.Session().run([y, dx, z], {x: 3.0}) == [10, 6, 81]
    assert square.trace_count() == 0


def test_a_function_may_call_another():
    v = ab.Variable(0.0)

    @ab.function
    def add(x: Any) -> Any:
        return v.assign_add(x)

    @ab.function
    def twice(x: Any) -> Any:
        add(x)
        return add(x) * 10

    assert twice(1.5) == 30
    assert v.numpy() == 3


def test_gradients_inside():
    slope = ab.function(lambda x: ab.gradients(x * x * x, [x])[0])

    assert slope(np.array([1.0, 2.0], "float32")).tolist() == [3, 12]


def test_tracing_leaves_the_current_graph_alone():
    with Graph().as_default() as graph:
        ab.function(lambda x: x + 1)(1.0)
        assert ab.get_default_graph() is graph
        assert not graph.get_operations()


def test_tensors_of_other_graphs_are_refused():
    with Graph().as_default():
        outside = ab.placeholder((), name="outside")
    with pytest.raises(ValueError, match="belongs to another graph"):
        ab.function(lambda x: x + outside)(1.0)


def test_errors_of_a_run_name_operation_and_line():
    pick = ab.function(lambda x, i: x[i])
    with pytest.raises(IndexError, match=r"7 .* size 3") as caught:
        pick(np.ones(3), 7)
    assert f"defined at {__file__}" in caught.value.__notes__[0]


# --- relaxing shapes ------------------------------------------------------------------------------------------------


def test_many_shapes_become_one_trace():
    total, traces = counted(lambda x: ab.ops.sum(x, axis=0), relax_shapes=3)
    for rows in (1, 2, 3, 4, 5, 0, 6, 2):
        assert total(np.ones((rows, 2), "float32")).tolist() == [rows, rows]

    assert [x.shape for (x,) in traces] == [(1, 2), (2, 2), (3, 2), (None, None)]
    assert total(np.ones(3)) == 3
    assert [str(x.spec) for (x,) in traces[4:]] == ["float64[?]"]


def test_other_arguments_do_not_relax_shapes():
    scale, traces = counted(lambda x, by: x * len(by), relax_shapes=2)
    for word in ("a", "ab", "abc", "abcd"):
        assert scale(np.ones(2), word).tolist() == [len(word)] * 2

    assert [x.shape for x, _ in traces] == [(2,)] * 4


def test_objects_do_not_relax_each_other():
    models = [_Model(float(k)) for k in range(12)]

    assert [model.apply(np.ones(2)).tolist() for model in models] == [[k, k] for k in range(12)]
    assert {shape for model in models for shape in model.shapes} == {(2,)}


# --- methods --------------------------------------------------------------------------------------------------------


class _Model:
    def __init__(self, weight: float) -> None:
        self.weight = ab.Variable(weight)
        self.shapes: list[Any] = []

    @ab.function
    def apply(self, x: Any, *, bias: Any = 0.0) -> Any:
        self.shapes.append(x.shape)
        return x * self.weight + bias


def test_methods_trace_once_for_each_object():
    first, second = _Model(2.0), _Model(3.0)

    assert [first.apply(1.0), second.apply(1.0), first.apply(2.0), first.apply(1.0, bias=5.0)] == [2, 3, 4, 7]
    assert first.shapes == [(), ()]
    assert second.shapes == [()]
    assert _Model.apply(first, 10.0) == 20
    first.weight.assign(7.0)
    assert first.apply(1.0) == 7


@dataclass(frozen=True)
class _Scale:
    by: float

    @ab.function
    def apply(self, x: Any) -> Any:
        return x * self.by


def test_methods_of_objects_that_compare_by_value():
    assert [_Scale(2.0).apply(3.0), _Scale(4.0).apply(3.0), _Scale(2.0).apply(5.0)] == [6, 12, 10]


def test_arrays_find_their_trace_by_type_dtype_and_shape():
    """Each value twice: when the trace is made, and when it is known; Python numbers and 0-d arrays among them."""
    double, traces = counted(lambda x: x + x)
    values = [
        *[np.float32(1), np.float64(1), np.int32(1), np.bool_(True), np.array(2.5, "float32"), 3.0, np.float32(4)],
        *[np.ones(2, "float32"), np.ones((2, 1), "float32"), np.ones(2, ">f4"), np.ones(2), np.arange(4.0)[::2]],
        *[np.array("ab"), np.array(["c", "d"])],
    ]
    expected = [value + value if np.asarray(value).dtype.kind != "U" else None for value in values]
    for _ in range(3):
        for value, wanted in zip(values, expected, strict=True):
            found = double(value)
            if wanted is not None:
                assert np.array_equal(found, wanted)
            else:
                assert np.asarray(found).tolist() == np.char.add(value, value).tolist()
    assert double.trace_count() == len(traces)


def test_a_known_trace_is_not_taken_for_other_arguments():
    scale, traces = counted(lambda x, y=2.0, *more: x * y + len(more))
    x = np.array([1, 2], "float32")
    assert [scale(x).tolist(), scale(x, np.float32(3)).tolist(), scale(x, y=np.float32(4)).tolist()] == [
        [2, 4],
        [3, 6],
        [4, 8],
    ]
    assert scale(x, np.float32(3), np.float32(0)).tolist() == [4, 7]
    assert [scale(x).tolist(), scale(x, np.float32(3)).tolist()] == [[2, 4], [3, 6]]
    assert len(traces) == scale.trace_count() == 4


@pytest.mark.parametrize("given", [(), (2.0,), (np.float32(2.0),), (np.ones(3, "float32"),)])
def test_a_call_without_tensors_is_part_of_the_graph_around_it(given: tuple[Any, ...]) -> None:
    """It runs whenever that graph does, in its loops and branches, and not while it is built."""
    count = ab.Variable(0.0)

    @ab.function
    def step(x: Any = 1.0) -> Any:
        count.assign_add(1.0)
        return x * 2.0

    @ab.function
    def around(y: Any) -> Any:
        return ab.cond(y > 0, lambda: step(*given) + y, lambda: step() * 0.0 + y)

    for calls in (1, 2):
        around(1.0)
        assert float(count.numpy()) == calls

    @ab.function
    def loop() -> Any:
        return ab.while_loop(lambda i: i < 3, lambda i: (i + 1, step(*given))[:1], (0,))

    loop()
    assert float(count.numpy()) == 5
    with ab.Graph().as_default() as graph:
        doubled = ab.ops.convert_to_tensor(step(*given))
        assert float(count.numpy()) == 5
        assert np.all(ab.Session(graph).run(doubled) == np.multiply(2.0, given[0] if given else 1.0))


def test_random_bits_of_a_call_without_tensors_are_drawn_in_each_step() -> None:
    draw = ab.function(lambda: ab.random.normal((2,)))
    around = ab.function(lambda x: x + draw())
    assert not np.allclose(around(0.0), around(0.0))
