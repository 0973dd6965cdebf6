"""The graph: names, scopes, devices, control dependencies, captures, Python's operators over tensors, provenance."""

import operator
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.graph import Graph, Placeholder, Region, TensorSpec, as_dtype, canonical_device, graph_for
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.passes.framework.prune import all_operations


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def run(fetches: Any, feeds: Any = None) -> Any:
    return ab.Session().run(fetches, feeds)


def symbol(*shape: int | None, dtype: str = "float32", name: str = "x") -> Any:
    return ab.placeholder(shape, dtype, name)


# --- names ----------------------------------------------------------------------------------------------------------


def test_names_are_made_unique():
    names = [symbol(name=name).operation.name for name in ("x", "x", "x_2", "x", "y")]

    assert names == ["x", "x_1", "x_2", "x_3", "y"]


def test_an_operation_without_a_name_is_called_after_its_type():
    x = symbol()

    assert [symbol_of(ab.ops.exp(x)).name, symbol_of(ab.ops.exp(x)).name] == ["exp:0", "exp_1:0"]


def test_scopes_nest_and_are_unique():
    with ab.name_scope("encoder") as outer:
        with ab.name_scope("layer") as inner:
            first = symbol()
        with ab.name_scope("layer"):
            second = symbol()
    with ab.name_scope("encoder"):
        third = symbol()

    assert (outer, inner) == ("encoder/", "encoder/layer/")
    names = [tensor.operation.name for tensor in (first, second, third, symbol())]
    assert names == ["encoder/layer/x", "encoder/layer_1/x", "encoder_1/x", "x"]


def test_a_scope_ends_with_an_error():
    with pytest.raises(KeyError), ab.name_scope("inside"):
        raise KeyError
    assert symbol().operation.name == "x"


def test_lookup_by_name(graph: Graph):
    x = symbol()
    parts = ab.ops.split(symbol(4), 2)

    assert graph.get_tensor_by_name("x:0") is x
    assert graph.get_operation_by_name("x") is x.operation
    assert graph.get_tensor_by_name("split:1") is parts[1]


@pytest.mark.parametrize(
    ("name", "match"),
    [("missing:0", "no operation named 'missing'"), ("x:1", "'x' has 1 outputs"), ("x", "'operation:output'")],
)
def test_lookup_errors(graph: Graph, name: str, match: str):
    symbol()
    with pytest.raises(KeyError, match=match):
        graph.get_tensor_by_name(name)


def test_operations_are_in_program_order(graph: Graph):
    x = symbol()
    y = ab.ops.exp(x) + ab.ops.log(x)

    assert [operation.type for operation in graph.get_operations()] == ["placeholder", "exp", "log", "add"]
    assert [operation.index for operation in graph.get_operations()] == [0, 1, 2, 3]
    assert symbol_of(y).operation is graph.get_operations()[-1]
    assert repr(graph) == "<Graph of 4 operations>"


# --- devices --------------------------------------------------------------------------------------------------------


def test_devices_nest_and_none_lifts_them():
    with ab.device("cpu:0"):
        on_cpu = symbol()
        with ab.device("/job:worker/task:1/gpu:2"):
            on_gpu = symbol()
        with ab.device(None):
            anywhere = symbol()
    assert on_cpu.device == "/device:CPU:0"
    assert on_gpu.device == "/job:worker/task:1/device:GPU:2"
    assert anywhere.device == symbol().device == ""


def test_loops_and_branches_are_built_on_the_device_around_them():
    found: list[str] = []
    x = symbol()

    def note(value: Any) -> Any:
        found.append((value + 1).device)
        return value

    with ab.device("gpu:0"):
        ab.cond(x > 0, lambda: note(x), lambda: x)
        ab.while_loop(lambda i: i < 3, lambda i: note(i) + 1, 0)
    assert set(found) == {"/device:GPU:0"}


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("cpu", "/device:CPU:*"),
        ("CPU:0", "/device:CPU:0"),
        ("gpu:*", "/device:GPU:*"),
        ("/cpu:0", "/device:CPU:0"),
        ("/device:GPU:1", "/device:GPU:1"),
        ("/job:ps", "/job:ps"),
        ("/task:1", "/task:1"),
        ("/job:ps/cpu:1", "/job:ps/device:CPU:1"),
        ("/job:worker/task:3/device:CPU:0", "/job:worker/task:3/device:CPU:0"),
    ],
)
def test_device_names(name: str, full: str):
    assert canonical_device(name) == full
    assert canonical_device(full) == full


@pytest.mark.parametrize("name", ["", "  ", "cpu:0:1", "/job:", "foo bar"])
def test_device_names_that_can_not_be_read(name: str):
    with pytest.raises(ValueError, match=r"can't be read. Write 'cpu:0'"), ab.device(name):
        pass


def test_a_device_is_a_name_a_function_or_none():
    wrong: Any = 0
    with pytest.raises(TypeError, match='expected a name such as "gpu:0", a function or None; got 0'), ab.device(wrong):
        pass


# --- control dependencies -------------------------------------------------------------------------------------------


def test_control_dependencies_pull_operations_into_the_step():
    counter = ab.Variable(0.0)
    write = counter.assign_add(1.0)
    with ab.control_dependencies([write]):
        y = symbol() * 2
    z = symbol(name="z") * 2

    assert run(z, {"z:0": 3.0}) == 6
    assert counter.numpy() == 0
    assert run(y, {"x:0": 3.0}) == 6
    assert counter.numpy() == 1


def test_what_is_shared_does_not_carry_control_dependencies_out_of_their_block():
    counter, weight = ab.Variable(0.0), ab.Variable(5.0)
    write = counter.assign_add(1.0)
    x = symbol(None)
    with ab.control_dependencies([write]):
        inside = [x * 2, ab.ops.shape(x)[0], ab.ops.zeros_like(x), weight.value, ab.convert_to_tensor(7)]
    outside = [x * 2, ab.ops.shape(x)[0], ab.ops.zeros_like(x), weight.value, ab.convert_to_tensor(7)]
    feeds = {x: [1.0, 2.0]}

    values = [np.asarray(value).tolist() for value in run(outside, feeds)]
    assert values == [[2, 4], 2, [0, 0], 5, 7]
    assert counter.numpy() == 0
    for position in (0, 3, 4):
        run(inside[position], feeds)
    assert counter.numpy() == 3


def test_control_dependencies_nest_and_none_lifts_them():
    a, b = symbol(name="a").operation, symbol(name="b")
    with ab.control_dependencies([a]):
        with ab.control_dependencies([b]):
            both = symbol()
        with ab.control_dependencies(None):
            none = symbol()
        one = symbol()

    assert both.operation.control_inputs == (a, b.operation)
    assert one.operation.control_inputs == (a,)
    assert none.operation.control_inputs == symbol().operation.control_inputs == ()


@pytest.mark.parametrize("trips", [0, 2])
def test_a_loop_or_branch_runs_after_what_is_named_inside_it(trips: int):
    counter, n = ab.Variable(0.0), symbol(dtype="int32", name="n")
    write = counter.assign_add(1.0)

    def inside(i: Any) -> Any:
        def branch() -> Any:
            with ab.control_dependencies([write]):
                return i + 1

        return ab.cond(i >= 0, branch, lambda: i + 1)

    result = ab.while_loop(lambda i: i < n, inside, 0)

    assert run(result, {n: trips}) == trips
    assert counter.numpy() == 1


def test_control_dependencies_refuse_what_they_can_not_wait_for():
    with Graph().as_default():
        other = symbol()
    with pytest.raises(ValueError, match="belongs to an unrelated graph"):
        ab.control_dependencies([other])
    with pytest.raises(TypeError, match="operations and tensors, not int"):
        ab.control_dependencies([3])


# --- several graphs, captures ---------------------------------------------------------------------------------------


def test_a_graph_is_current_inside_its_block_only(graph: Graph):
    other = Graph()
    with other.as_default():
        assert ab.get_default_graph() is other
        inside = symbol()
    assert ab.get_default_graph() is graph
    assert inside.graph is other


def test_an_operation_over_tensors_of_another_graph_goes_there():
    with Graph().as_default() as other:
        x, y = symbol(), symbol()
    z = x * y

    assert z.graph is other
    assert ab.Session(other).run(z, {x: 2.0, y: 4.0}) == 8


def test_tensors_of_unrelated_graphs_do_not_mix():
    with Graph().as_default():
        x = symbol()
    y = symbol(name="y")
    for build in (
        lambda: x + y,
        lambda: ab.cond(y > 0, lambda: x, lambda: y),
        lambda: ab.while_loop(lambda i: i < 1, lambda i: i + x, y),
        lambda: ab.ops.concatenate([ab.ops.reshape(y, (1,)), ab.ops.reshape(x, (1,))]),
    ):
        with pytest.raises(ValueError, match=r"belongs to another graph .*graph.as_default"):
            build()


def test_captures_through_several_levels(graph: Graph):
    x = symbol()
    regions: list[Any] = []

    def innermost() -> Any:
        regions.append(ab.get_default_graph())
        return x * 3

    def body(i: Any, total: Any) -> Any:
        regions.append(ab.get_default_graph())
        return i + 1, total + ab.cond(i > 0, innermost, lambda: x)

    _, total = ab.while_loop(lambda i, _: i < 3, body, (0, 0.0))

    outer, inner = regions[-2:]
    assert isinstance(outer, Region)
    assert isinstance(inner, Region)
    assert (inner.parent, outer.parent, inner.root) == (outer, graph, graph)
    assert [t for t, _ in outer.captures] == [x]
    assert [t for t, _ in inner.captures] == [outer.captures[0][1]]
    assert inner.is_inside(graph)
    assert inner.sees(x)
    assert not graph.is_inside(inner)
    assert run(total, {x: 2.0}) == 2 + 6 + 6


def test_a_tensor_is_captured_once():
    x = symbol()
    captured: list[Any] = []

    def body(i: Any) -> Any:
        captured.append(ab.get_default_graph())
        return i + ab.ops.cast(x * x + x, "int32")

    ab.while_loop(lambda i: i < 3, body, 0)
    assert [t for t, _ in captured[-1].captures] == [x]


def test_the_graph_of_an_operation_is_the_innermost_of_its_inputs(graph: Graph):
    x = symbol()
    found: list[Any] = []

    def body(i: Any) -> Any:
        with graph.as_default():
            found.append((graph_for([x]), graph_for([i, x])))
        return i + 1

    ab.while_loop(lambda i: i < 3, body, 0)
    assert found[-1][0] is graph
    assert isinstance(found[-1][1], Region)


def test_parameters_of_regions_are_not_found_in_the_graph(graph: Graph):
    ab.while_loop(lambda i: i < 3, lambda i: i + 1, 0)

    assert "parameter" not in {operation.type for operation in graph.get_operations()}


# --- operators ------------------------------------------------------------------------------------------------------

X = np.array([5.0, -3.0, 2.0], "float32")
ARITHMETIC = ["add", "sub", "mul", "truediv", "floordiv", "mod"]


@pytest.mark.parametrize("other", [2.0, np.float32(2), np.array([2, 4, 8], "float32"), [2.0, 4.0, 8.0], np.int8(3)])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_from_both_sides(name: str, other: Any):
    function = getattr(operator, name)
    x = symbol(3)
    right, left = run([function(x, other), function(other, x)], {x: X})

    np.testing.assert_allclose(right, function(X, np.asarray(other)), rtol=1e-6)
    np.testing.assert_allclose(left, function(np.asarray(other), X), rtol=1e-6)
    assert right.dtype == left.dtype == "float32"


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge"])
def test_comparisons_from_both_sides(name: str):
    function = getattr(operator, name)
    x = symbol(3)
    other = np.array([5, -4, 3], "float32")
    results = run([function(x, other), function(other, x), function(x, 2), function(2, x)], {x: X})

    for result, expected in zip(
        results, [function(X, other), function(other, X), function(X, 2), function(2, X)], strict=True
    ):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", ["and_", "or_", "xor", "lshift", "rshift"])
def test_bitwise_operators_from_both_sides(name: str):
    function = getattr(operator, name)
    i = symbol(3, dtype="int32")
    value, other = np.array([5, 6, 1], "int32"), np.array([1, 2, 3], "int32")
    results = run([function(i, other), function(other, i), function(i, 2), function(2, i)], {i: value})

    for result, expected in zip(
        results, [function(value, other), function(other, value), function(value, 2), function(2, value)], strict=True
    ):
        np.testing.assert_array_equal(result, expected)
        assert result.dtype == "int32"


def test_operators_on_bools_are_logical():
    b = symbol(2, dtype="bool")
    value = np.array([True, False])
    results = run([~b, b & True, False | b, b ^ [True, True]], {b: value})

    assert [result.tolist() for result in results] == [[False, True], [True, False], [True, False], [False, True]]


def test_other_operators():
    x = symbol(3)
    matrix = np.arange(9, dtype="float32").reshape(3, 3)
    results = run([-x, +x, abs(x), x**2, 2**x, x @ matrix, matrix @ x, *divmod(x, 2), *divmod(7, x)], {x: X})

    expected = [-X, X, abs(X), X**2, 2**X, X @ matrix, matrix @ X, *divmod(X, 2), *divmod(7, X)]
    for result, value in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, value, rtol=1e-6)
    assert symbol(2, 3).T.shape == (3, 2)


def test_variables_have_the_operators_of_tensors():
    v = ab.Variable(X)
    results = run([v + 1, 1 - v, np.ones(3, "float32") * v, v[0], v @ X, v > 0, -v])

    for result, expected in zip(results, [X + 1, 1 - X, X, X[0], X @ X, X > 0, -X], strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-6)


# --- Python scalars are weak, NumPy scalars are not -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "other", "expected"),
    [
        ("float16", 1, "float16"),
        ("float16", 1.5, "float16"),
        ("bfloat16", 1.5, "bfloat16"),
        ("int8", 1, "int8"),
        ("int8", True, "int8"),
        ("int32", 1.5, "float32"),
        ("bool", 1, "int32"),
        ("float16", np.float32(1), "float32"),
        ("float32", np.float64(1.5), "float64"),
        ("float32", np.int64(1), "float32"),
        ("int8", np.int64(1), "int64"),
        ("uint8", np.int8(1), "int16"),
        ("float32", np.ones(1), "float64"),
        ("float16", np.bool_(True), "float16"),
    ],
)
def test_promotion(dtype: str, other: Any, expected: str):
    x = symbol(1, dtype=dtype)

    assert (x + other).dtype == as_dtype(expected)
    assert (other + x).dtype == as_dtype(expected)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(1, "int32"), (1.5, "float32"), (True, "bool"), (1j, "complex64"), (np.float64(1), "float64"), (2**40, "int64")],
)
def test_constants(value: Any, dtype: str):
    tensor = ab.constant(value)

    assert tensor.dtype == dtype
    assert run(tensor) == value


def test_equal_python_scalars_are_one_constant():
    x = symbol()
    first, second = x + 2.0, x * 2.0

    assert first.operation.inputs[1] is second.operation.inputs[1]
    assert (x + 2).operation.inputs[1].dtype == "float32"


def test_zero_and_minus_zero_are_two_constants():
    x = symbol()

    assert run([1 / (x * 0.0), 1 / (x * -0.0)], {x: 1.0}) == [np.inf, -np.inf]


# --- tensors as Python objects --------------------------------------------------------------------------------------


def test_equality_is_elementwise_and_the_hash_that_of_the_identity():
    x, y = symbol(3), symbol(3)
    table = {x: "x", y: "y"}
    feeds = {x: [1.0, 2.0, 3.0], y: [1.0, 0.0, 3.0]}

    assert ab.Session(x.graph).run([x == y, x != y, x == 2.0], feeds)[0].tolist() == [True, False, True]
    assert ab.Session(x.graph).run(x != 2.0, feeds).tolist() == [True, False, True]
    assert (x == None) is False  # noqa: E711 - which is no question about elements
    assert (table[x], table[y]) == ("x", "y")
    assert len({x, y, x}) == 2


@pytest.mark.parametrize(
    ("use", "match"),
    [
        (bool, r"no truth value while the graph is built. Use ab.cond"),
        (float, "can't become a float. Use ops.cast.*, or run it with Session.run"),
        (int, "can't become an int"),
        (np.asarray, "can't become a NumPy array"),
        (len, r"len\(\) of .* is not known .* ops.shape\(x\)\[0\]"),
        (iter, r"Cannot iterate .* ab.scan"),
        (lambda x: [1, 2][x], "can't become an int"),
        (lambda x: range(x), "can't become an int"),
        (lambda x: 3.0 in x, "`in` has no answer"),
        (lambda x: x and x, "logical_and"),
        (lambda x: 1 < x < 2, "logical_and"),
        (lambda x: x + None, "NoneType can't become a tensor"),
        (lambda x: x + "a", "do not mix"),
        (lambda x: np.exp(x), "np.exp can't be applied to the symbolic tensor"),
        (lambda x: ab.Variable(1.0) in x, "`in` has no answer"),
        (lambda x: x.operation.graph.add(Placeholder(TensorSpec((), x.dtype)), (), "y").outputs[0] in x, "`in`"),
    ],
)
def test_what_a_symbol_can_not_do(use: Any, match: str):
    with pytest.raises(TypeError, match=match):
        use(symbol(None))


def test_known_sizes_can_be_counted_and_visited():
    x = symbol(3, 2)
    rows = list(x)
    first, second, third = x

    assert len(x) == 3
    assert [row.shape for row in (*rows, first, second, third)] == [(2,)] * 6
    np.testing.assert_array_equal(run(rows[2], {x: np.arange(6).reshape(3, 2)}), [4, 5])


def test_variables_can_be_visited():
    v = ab.Variable(X)

    assert [float(run(element)) for element in v] == X.tolist()
    with pytest.raises(TypeError, match="Cannot iterate"):
        list(ab.Variable(X, shape=(None,)))
    with pytest.raises(TypeError, match="`in` has no answer"):
        assert 5.0 in v


def test_what_tensors_say_of_themselves():
    x = symbol(None, 3)

    assert repr(x) == "<Tensor x:0 float32[?,3]>"
    assert (x.ndim, x.shape, x.name, x.index) == (2, (None, 3), "x:0", 0)
    assert repr(ab.placeholder(None, "int32", "y")) == "<Tensor y:0 int32[...]>"
    assert ab.placeholder(None).ndim is None


def test_annotations_belong_to_one_tensor():
    x, y = symbol(), symbol()
    x.annotations["mask"] = y

    assert x.annotations == {"mask": y}
    assert y.annotations == {}


def test_eval_runs_in_a_session_of_its_own():
    with Graph().as_default():
        x = symbol()
        y = x * x
    assert y.eval({x: 3.0}) == 9


# --- provenance -----------------------------------------------------------------------------------------------------


def line_of(tensor: Any) -> tuple[str, str]:
    """The file, and the text of the line that built a tensor."""
    location = tensor.operation.location
    with open(location.filename) as file:
        return location.filename, file.read().splitlines()[location.line - 1].strip()


def test_operations_know_the_line_that_built_them():
    x = symbol(3)
    y = x * 2 + 1
    z = ab.ops.mean(y)

    assert line_of(y) == (__file__, "y = x * 2 + 1")
    assert line_of(z) == (__file__, "z = ab.ops.mean(y)")
    assert repr(y.operation).endswith(f"defined at {__file__}:{y.operation.location.line}>")


def test_operations_inside_loops_and_gradients_know_their_line():
    found: list[Any] = []
    x = symbol()

    def body(i: Any) -> Any:
        found.append(i * x)
        return found[-1] + 1

    y = ab.while_loop(lambda i: i < 3, body, 0.0)
    (dx,) = ab.gradients(y, [x])

    assert line_of(found[-1]) == (__file__, "found.append(i * x)")
    assert line_of(y) == (__file__, "y = ab.while_loop(lambda i: i < 3, body, 0.0)")
    assert line_of(dx) == (__file__, "(dx,) = ab.gradients(y, [x])")


def test_gradients_of_branches_in_branches_know_their_line(graph: Graph):
    found: list[Any] = []
    x = symbol()

    @ab.custom_gradient
    def doubled(value: Any) -> Any:
        def grad(upstream: Any) -> Any:
            found.append(upstream * 2.0)
            return found[-1]

        return value * 2.0, grad

    y = ab.cond(x > 0, lambda: ab.cond(x > 1, lambda: doubled(ab.ops.sin(x)), lambda: x), lambda: x)
    ab.gradients(y, [x])
    (cosine,) = [o for o in all_operations(graph.operations) if o.type == "cos"]

    assert line_of(found[-1]) == (__file__, "found.append(upstream * 2.0)")
    assert line_of(cosine.outputs[0]) == (__file__, "ab.gradients(y, [x])")


def test_an_error_of_a_run_tells_the_line():
    x, i = symbol(None), symbol(dtype="int32", name="i")
    y = x[i]
    with pytest.raises(IndexError) as caught:
        run(y, {x: X, i: 7})

    (note,) = caught.value.__notes__
    assert note.startswith("In operation 'get_item' (get_item); inputs: float32[3], int32[]; defined at ")
    assert note.endswith(f"{__file__}:{y.operation.location.line}")


def test_what_is_made_inside_of_a_branch_or_loop_stays_there():
    kept: list[Any] = []

    def remember(value: Any) -> Any:
        kept.append(value * 2)
        return value + 1

    x = symbol()
    ab.while_loop(lambda i: i < 3, remember, x)
    with pytest.raises(ValueError, match=r"made inside of 'body', a branch or the body of a loop.* return it"):
        kept[0] + 1
    kept.clear()
    with pytest.raises(ValueError, match=r"made inside of 'true_fn', a branch or the body of a loop"):
        ab.cond(x > 0, lambda: remember(x), lambda: kept[0] * 2)
