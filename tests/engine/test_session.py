"""Sessions: fetches and feeds of every kind, structures, errors, callables, statistics, shapes, threads."""

import sys
import threading
from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.graph import Graph
from anabranch.engine.graph.tensor import symbol_of

Point = namedtuple("Point", ["x", "y"])


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def run(fetches: Any, feeds: Any = None) -> Any:
    return ab.Session().run(fetches, feeds)


# --- fetches --------------------------------------------------------------------------------------------------------


def test_what_can_be_fetched():
    x = ab.placeholder((), name="x")
    v = ab.Variable(5.0)
    write = v.assign_add(1.0)
    array = ab.TensorArray("float32", 3).write(0, x).write(2, 7.0)
    feeds = {x: 2.0}

    assert run(x * 2, feeds) == 4
    assert run("x:0", feeds) == 2
    assert run(v) == 5
    assert run(write.operation) is None
    assert run("variable/assign") is None
    assert v.numpy() == 7
    assert run(array, feeds) == [2, None, 7]


def test_structures_of_fetches():
    x = ab.placeholder((), name="x")
    fetches = {"b": [x, (x * 2, None)], "a": Point(x * 3, {"c": "x:0"}), "none": (), "op": x.operation}

    found = run(fetches, {x: 1.0})

    assert found == {"b": [1, (2, None)], "a": Point(3, {"c": 1}), "none": (), "op": None}
    assert list(found) == list(fetches)
    assert type(found["a"]) is Point
    assert run([]) == []
    assert run(None) is None


def test_different_fetches_do_not_share_memory():
    x = ab.placeholder((2,))
    y = x * 2
    found = run([x, y, x * 3, ab.ops.reshape(y, (1, 2)), y[:1], ab.ops.stop_gradient(y)], {x: [1.0, 2.0]})

    for position, value in enumerate(found):
        assert not any(np.shares_memory(value, other) for other in found[:position])


def test_scalars_are_numpy_scalars():
    x = ab.placeholder(())
    found = run([x, x > 0, ab.ops.cast(x, "int32"), ab.ops.sum(ab.ops.zeros((3,)))], {x: np.array(2.0)})

    assert [type(value) for value in found] == [np.float32, np.bool_, np.int32, np.float32]


@pytest.mark.parametrize(
    ("fetch", "error", "match"),
    [
        (3, TypeError, "3 of type int can be neither fetched nor fed"),
        ("missing:0", KeyError, "no operation named 'missing'"),
        ("x:3", KeyError, "has 1 outputs"),
        (np.zeros(2), TypeError, "ndarray can be neither"),
    ],
)
def test_what_can_not_be_fetched(fetch: Any, error: type[Exception], match: str):
    ab.placeholder((), name="x")
    with pytest.raises(error, match=match):
        run(fetch)


def test_values_of_other_graphs_and_from_inside_loops():
    with Graph().as_default():
        other = ab.placeholder(())
    inside: list[Any] = []

    def body(i: Any) -> Any:
        inside.append(i + 1)
        return inside[-1]

    ab.while_loop(lambda i: i < 3, body, 0)
    with pytest.raises(ValueError, match="is of another graph"):
        run(other)
    assert run(inside[-1]) == [1, 2, 3]
    with pytest.raises(ValueError, match="is of another graph"):
        run(ab.constant(1.0), {other: 1.0})


# --- feeds ----------------------------------------------------------------------------------------------------------


def test_any_tensor_can_be_fed():
    x = ab.placeholder((2,), name="x")
    y = ab.ops.exp(x)
    z = y + 1

    assert run(z, {y: [1.0, 2.0]}).tolist() == [2, 3]
    assert run([z, y], {"exp:0": [1.0, 2.0]})[1].tolist() == [1, 2]
    assert run(ab.constant(3.0) * 2, {"constant:0": 5.0, x: [0.0, 0.0]}) in (6, 10)
    total = ab.while_loop(lambda i: i < 3, lambda i: i + 1, 0)
    assert run(total * 10, {total: 7}) == 70


def test_a_tensor_that_is_fed_is_not_computed():
    v = ab.Variable(1.0)
    write = v.assign(9.0)
    y = write * 2

    assert run(y, {write: 4.0}) == 8
    assert v.numpy() == 1


def test_one_of_several_outputs_is_fed():
    parts = ab.ops.split(ab.constant([1.0, 2.0, 3.0, 4.0]), 2)

    found = run([parts[0], parts[1]], {parts[0]: [8.0, 9.0]})
    assert [value.tolist() for value in found] == [[8, 9], [3, 4]]


@pytest.mark.parametrize(
    ("dtype", "value", "found"),
    [
        ("float32", 1, 1.0),
        ("float32", np.float64(1.5), 1.5),
        ("float32", True, 1.0),
        ("float64", 0.7, 0.7),
        ("float64", [0.1, 0.7], [0.1, 0.7]),
        ("int32", np.int64(7), 7),
        ("int32", True, 1),
        ("uint8", 200, 200),
        ("uint8", np.int64(255), 255),
        ("int64", np.uint8(3), 3),
        ("float16", 0.5, 0.5),
        ("bool", False, False),
        ("complex64", 1.5, 1.5),
        ("float32", [], []),
        ("float32", ab.Variable([1.0]), [1.0]),
        ("float32", [np.float32(1), 2], [1.0, 2.0]),
        ("float32", (1, 2), [1.0, 2.0]),
    ],
)
def test_feeds_are_converted(dtype: str, value: Any, found: Any):
    x = ab.placeholder(None, dtype)
    fetched = run(x, {x: value})

    assert fetched.dtype == dtype
    assert fetched.tolist() == found


@pytest.mark.parametrize(
    ("dtype", "value", "error", "match"),
    [
        ("int32", 1.5, TypeError, "dtype float32 was fed to 'x:0', which is int32. Convert it first"),
        ("float32", 1j, TypeError, "complex64"),
        ("bool", 1, TypeError, "int32 was fed to 'x:0', which is bool"),
        ("float32", "text", TypeError, "dtype string was fed to 'x:0', which is float32"),
        ("float32", None, TypeError, r"NoneType can't become a tensor: .* It was fed to 'x:0'"),
        ("float32", [[1.0], [1.0, 2.0]], TypeError, "rows differ"),
        ("int32", 2**40, ValueError, "The value 1099511627776 was fed to 'x:0', which is int32"),
        ("int32", np.array([1, -(2**40)]), ValueError, "The value -1099511627776"),
        ("uint8", -1, ValueError, "The value -1 .* uint8 and can't hold it"),
        ("int8", np.uint8(128), ValueError, "128"),
    ],
)
def test_feeds_of_wrong_dtype(dtype: str, value: Any, error: type[Exception], match: str):
    x = ab.placeholder(None, dtype, "x")
    with pytest.raises(error, match=match):
        run(x, {x: value})


@pytest.mark.parametrize("value", [np.zeros((2, 3)), np.zeros(2), 1.0, np.zeros((2, 2, 1))])
def test_feeds_of_wrong_shape(value: Any):
    x = ab.placeholder((None, 2), name="x")
    with pytest.raises(ValueError, match=r"was fed to 'x:0', which has shape \[\?,2\]"):
        run(x + 1, {x: value})


def test_what_can_not_be_fed():
    x = ab.placeholder((), name="x")
    array = ab.TensorArray("float32", 2)
    with pytest.raises(TypeError, match=r"can't be fed: feed one of its outputs, such as 'x:0'"):
        run(x, {x.operation: 1.0})
    with pytest.raises(TypeError, match="can't be fed"):
        run(x, {"x": 1.0})
    with pytest.raises(TypeError, match="can't be fed"):
        run(x, {x: 1.0, array: 1.0})
    with pytest.raises(ValueError, match="is fed twice"):
        run(x, {x: 1.0, "x:0": 2.0})
    with pytest.raises(TypeError, match="symbolic"):
        run(x, {x: x})


def test_a_placeholder_that_is_not_fed_is_named_if_it_is_needed():
    x, y = ab.placeholder((), name="x"), ab.placeholder((), name="y")
    z = x * 2

    assert run(z, {x: 1.0}) == 2
    with pytest.raises(ValueError, match="Placeholder 'y' must be fed") as caught:
        run(z + y, {x: 1.0})
    assert __file__ in caught.value.__notes__[0]


@pytest.mark.parametrize("shape", ["float32", np.float32, np.dtype("int64")])
def test_a_dtype_in_place_of_a_shape_is_refused(shape: Any):
    with pytest.raises(TypeError, match=r"Expected a shape.* dtype="):
        ab.placeholder(shape, (None, 3))  # TensorFlow 1's order
    with pytest.raises(TypeError, match=r"Expected a shape.* dtype="):
        ab.Input(shape)


@pytest.mark.parametrize("entry", [2.5, "a", [2]])
def test_sizes_that_are_no_integers_are_refused(entry: Any):
    with pytest.raises(TypeError, match="neither an integer nor None"):
        ab.placeholder((None, entry))
    with pytest.raises(TypeError, match="neither an integer nor None"):
        ab.Input((3, entry))


@pytest.mark.parametrize("layout", [lambda a: a, np.asfortranarray, lambda a: np.repeat(a, 2, 0)[::2], lambda a: a.T.T])
def test_feeds_of_any_layout_are_left_alone(layout: Any):
    x = ab.placeholder((None, None))
    value = layout(np.arange(6, dtype="float32").reshape(2, 3))
    value.setflags(write=False)
    session = ab.Session()

    for _ in range(2):
        found = session.run([x, x + 1, ab.ops.transpose(x) * 2, ab.ops.reshape(x, (-1,))], {x: value})
        assert found[1].tolist() == [[1, 2, 3], [4, 5, 6]]
        assert found[2].tolist() == [[0, 6], [2, 8], [4, 10]]
        for result in found:
            assert not np.shares_memory(result, value)
            result[...] = -1
    assert value.tolist() == [[0, 1, 2], [3, 4, 5]]


NAMES = ["class", "1x", "a b", "x): import os #", "np", "stats", "copied", "step", "None", "id", "λ", "'", "y\nz"]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_will_do(name: str):
    x = ab.placeholder((), name=name)
    with ab.name_scope(name):
        y = ab.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, ab.ops.exp(y) + x), (0, x), name=name)[1]

    np.testing.assert_allclose(run(y, {x: 0.5}), np.exp(np.exp(0.5) + 0.5) + 0.5, rtol=1e-6)


# --- many runs ------------------------------------------------------------------------------------------------------


def test_shapes_may_change_from_run_to_run():
    x = ab.placeholder((None, None))
    y = ab.ops.sum(x * x + 1, axis=0)
    session = ab.Session()
    rng = np.random.default_rng(0)

    for shape in [(k % 7, k % 3 + 1) for k in range(40)]:
        value = rng.normal(size=shape).astype("float32")
        np.testing.assert_allclose(session.run(y, {x: value}), (value * value + 1).sum(0), rtol=1e-5, atol=1e-6)


def test_what_is_built_later_can_be_run_by_the_same_session():
    session = ab.Session()
    x = ab.placeholder(())
    y = x + 1
    assert session.run(y, {x: 1.0}) == 2
    z = y * 10
    assert session.run([y, z], {x: 1.0}) == [2, 20]


def test_a_session_makes_its_graph_the_current_one(graph: Graph):
    other = Graph()
    with ab.Session(other) as session:
        assert ab.get_default_graph() is other
        x = ab.constant(2.0) * 3
        with session:
            pass
        assert ab.get_default_graph() is other
    assert ab.get_default_graph() is graph
    assert session.run(x) == 6


def test_closing_forgets_programs_only():
    x = ab.placeholder(())
    session = ab.Session()
    session.run(x + 1, {x: 1.0})
    session.close()

    assert session.statistics().runs == 0
    assert session.run(x + 1, {x: 1.0}) == 2


def test_an_error_leaves_the_session_usable():
    x, i = ab.placeholder((None,)), ab.placeholder((), "int32")
    v = ab.Variable(0.0)
    write = v.assign_add(x[i])
    session = ab.Session()
    with pytest.raises(IndexError):
        session.run(write, {x: [1.0, 2.0], i: 5})

    assert v.numpy() == 0
    assert session.run(write, {x: [1.0, 2.0], i: 1}) == 2


def test_floating_point_exceptions_are_values():
    x = ab.placeholder((3,))
    found = run([1 / x, ab.ops.log(x), ab.ops.exp(x * 1e4)], {x: [0.0, -1.0, 1.0]})

    np.testing.assert_array_equal(found[0], [np.inf, -1, 1])
    np.testing.assert_array_equal(found[1], [-np.inf, np.nan, 0])
    np.testing.assert_array_equal(found[2], [1, 0, np.inf])


# --- callables, statistics, explain ---------------------------------------------------------------------------------


def test_callables():
    x, y = ab.placeholder((None,)), ab.placeholder(())
    call = ab.Session().make_callable({"sum": ab.ops.sum(x) + y, "y": y}, [x, y])

    assert call([1.0, 2.0], 3) == {"sum": 6, "y": 3}
    assert call(np.zeros(5), 1.0)["sum"] == 1
    with pytest.raises(TypeError, match="takes 2 values, got 1"):
        call([1.0])
    with pytest.raises(ValueError, match="was fed to"):
        call([[1.0]], 1.0)
    with pytest.raises(TypeError, match="can't be fed"):
        ab.Session().make_callable(x, [x.operation])
    assert ab.Session().make_callable(ab.constant(2.0))() == 2


def test_a_callable_runs_effects():
    v = ab.Variable(0.0)
    step = ab.Session().make_callable([v.assign_add(1.0).operation])

    assert [step(), step()] == [[None], [None]]
    assert v.numpy() == 2


def test_statistics_count_runs_and_saved_bytes():
    x, n = ab.placeholder((100,)), ab.placeholder((), "int32")
    _, y = ab.while_loop(lambda i, _: i < n, lambda i, y: (i + 1, ab.ops.sin(y)), (0, x))
    (dx,) = ab.gradients(y, [x])
    session = ab.Session()
    feeds = {x: np.zeros(100), n: 5}
    assert session.statistics().runs == 0

    session.run(y, feeds)
    assert session.statistics().saved_bytes == 0
    for _ in range(2):
        session.run(dx, feeds)
    assert session.statistics().runs == 2
    assert session.statistics().saved_bytes == 5 * 100 * 4
    assert session.statistics().total_saved_bytes == 2 * 5 * 100 * 4


def test_explain_prints_the_program():
    x = ab.placeholder((), name="x")
    y = ab.while_loop(lambda y: y < 100, lambda y: y * x, 1.0)

    source = ab.explain(y).source
    assert "def step(x):" in source
    assert "while" in source
    compile(source, "explained", "exec")


# --- threads --------------------------------------------------------------------------------------------------------


def in_threads(work: Any, count: int = 2) -> None:
    """Run `work(number)` in threads that change over often; raise what any of them raised."""
    errors: list[BaseException] = []
    gate = threading.Barrier(count)

    def guarded(number: int) -> None:
        try:
            gate.wait()
            work(number)
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if errors:
        raise errors[0]


@pytest.mark.parametrize("shared", [True, False], ids=["one session", "two sessions"])
def test_concurrent_runs_on_one_graph_give_right_results(shared: bool):
    x, n = ab.placeholder((None, 16)), ab.placeholder((), "int32")
    w = ab.Variable(np.random.default_rng(0).normal(size=(16, 16)).astype("float32") / 4)
    _, y = ab.while_loop(lambda i, _: i < n, lambda i, y: (i + 1, ab.ops.tanh(y @ w + x) * 0.5 + y * 0.1), (0, x))
    fetches = [y, *ab.gradients(ab.ops.sum(y * y), [w, x])]
    rng = np.random.default_rng(1)
    cases = [{x: rng.normal(size=(k + 3, 16)).astype("float32"), n: k + 2} for k in range(4)]
    expected = [run(fetches, feeds) for feeds in cases]
    sessions = [ab.Session()] * 2 if shared else [ab.Session(), ab.Session()]

    def work(number: int) -> None:
        for step in range(24):
            case = (step + 2 * number) % len(cases)
            for value, wanted in zip(sessions[number].run(fetches, cases[case]), expected[case], strict=True):
                np.testing.assert_array_equal(value, wanted)

    in_threads(work)


def test_threads_build_graphs_of_their_own():
    found: dict[int, list[Any]] = {}

    def work(number: int) -> None:
        with Graph().as_default() as graph, ab.name_scope(f"thread{number}"):
            tensor = ab.constant(float(number))
            for _ in range(20):
                tensor = tensor + 1.0
        found[number] = [len(graph.get_operations()), symbol_of(tensor).name, ab.Session(graph).run(tensor)]

    in_threads(work, 4)
    assert found == {number: [22, f"thread{number}/add_19:0", number + 20] for number in range(4)}


def test_updates_of_two_variables_from_two_threads():
    variables = [ab.Variable(np.zeros(50, "float32")) for _ in range(2)]
    steps = [v.assign_add(np.ones(50, "float32")) for v in variables]
    session = ab.Session()

    def work(number: int) -> None:
        for _ in range(50):
            session.run(steps[number].operation)

    in_threads(work)
    assert [v.numpy().tolist() for v in variables] == [[50] * 50] * 2


def test_equal_operations_that_are_fetched_together_are_separate_arrays():
    x = ab.placeholder((2,), "float32", "x")
    first, second = ab.Session().run([x * 2, x * 2], {x: [1, 2]})
    first[:] = 0
    np.testing.assert_array_equal(second, [2, 4])


def test_constants_lie_beside_the_tensors_they_go_with():
    with ab.Graph().as_default():
        x = ab.placeholder((), "float32", "x")
    y = 2 * x + 1  # outside the block
    assert ab.Session(x.graph).run(y, {x: 3.0}) == 7.0


def test_steps_of_one_model_run_at_once_and_another_step_applies_their_gradients():
    """Several steps compute gradients with the same weights: each waits in its midst until all are there."""
    count, rounds = 3, 5
    all_are_here = threading.Barrier(count)

    def meet(number: Any) -> Any:
        all_are_here.wait(30)
        return number

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(count, 8, 3)).astype("float32")
    targets = rows @ np.array([[1.0], [-2.0], [3.0]], "float32")
    with ab.Graph().as_default() as graph:
        w = ab.Variable(np.zeros((3, 1), "float32"))
        x, y = ab.placeholder((8, 3)), ab.placeholder((8, 1))
        loss = ab.ops.numpy_function(meet, [ab.ops.mean((x @ w - y) ** 2)], "float32", shape=())
        (gradient,) = ab.gradients(ab.ops.mean((x @ w - y) ** 2), [w])
        queue = ab.queues.FIFOQueue(count, ["float32"], shapes=[(3, 1)])
        put = queue.enqueue(gradient)
        applied = w.assign_sub(0.1 * ab.ops.mean(queue.dequeue_many(count), axis=0))
        session = ab.Session(graph)

    done = threading.Barrier(count, action=lambda: session.run(applied))

    def work(number: int) -> None:
        for _ in range(rounds):
            session.run([loss, put], {x: rows[number], y: targets[number]})
            done.wait(30)

    in_threads(work, count)
    expected = np.zeros((3, 1))
    for _ in range(rounds):
        slopes = [2 * r.T @ (r @ expected - t) / 8 for r, t in zip(rows, targets, strict=True)]
        expected = expected - 0.1 * np.mean(slopes, axis=0)
    np.testing.assert_allclose(w.numpy(), expected, 1e-4, 1e-6)


def test_a_call_before_the_next_step_is_made_once(monkeypatch: pytest.MonkeyPatch):
    """Steps in two threads saw one call, and the second of them raised IndexError."""
    y = ab.constant(1.0) + 1.0
    session, made = ab.Session(), list[str]()

    class Raced(list[Any]):
        """Calls of which another thread takes one between each look and what follows it."""

        def __len__(self) -> int:
            count = super().__len__()
            if count:
                super().pop()
            return count

    session.before_next_step(lambda: made.append("called"))
    assert [session.run(y), session.run(y)] == [2.0, 2.0]
    assert made == ["called"]
    monkeypatch.setattr(session, "_before_next", Raced([made.clear, made.clear]))
    assert session.run(y) == 2.0
    assert made == ["called"]
