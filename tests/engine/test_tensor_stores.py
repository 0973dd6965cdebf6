"""TensorStores: every method, on both roads, in loops, branches, functions and files, and the values behind them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs.loops import repeat, run
from shared.examples import examples

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import eagerly
from anabranch.engine.graph.spec import ArraySpec, StoreSpec, TensorSpec, kind_of
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.containers.store_value import StoreValue
from anabranch.engine.place.kernels import is_host_value, why_not
from anabranch.engine.runtime.interpreter import Interpreter


@pytest.fixture(autouse=True)
def graph() -> Iterator[ab.Graph]:
    with ab.Graph().as_default() as graph:
        yield graph


def fails(error: type[Exception], match: str, fetch: Any, feeds: Any = None) -> None:
    """Both roads raise, and name the operation and the line that built it."""
    for road in (ab.Session().run, lambda *each: Interpreter().run(ab.get_default_graph(), [each[0]], each[1])):
        with pytest.raises(error, match=match) as raised:
            road(fetch, feeds)
        assert f"In operation {fetch.operation.name!r}" in raised.value.__notes__[0]
        assert f"defined at {Path(__file__).name}" in raised.value.__notes__[0].replace(f"{Path(__file__).parent}/", "")


def held(store: ab.TensorStore, feeds: Any = None) -> dict[Any, Any]:
    """Return what a store holds, as lists; both roads have to agree."""
    found = ab.Session().run(store, feeds)
    (interpreted,) = Interpreter().run(ab.get_default_graph(), [symbol_of(store.flow)], feeds)
    assert {key: np.shape(value) for key, value in found.items()} == {k: np.shape(v) for k, v in interpreted.items()}
    return {key: np.asarray(value).tolist() for key, value in found.items()}


# --- keys and elements ----------------------------------------------------------------------------------------------


def test_writes_and_reads():
    store = ab.TensorStore("float32").write(7, [1.0, 2.0]).write(-1, 3)
    fetches = [store.read(7), store.read(-1), store.contains(7), store.contains(1), store.size()]
    values = run(fetches)
    assert [value.tolist() for value in values] == [[1.0, 2.0], 3.0, True, False, 2]
    assert [value.dtype.name for value in values] == ["float32", "float32", "bool", "bool", "int32"]
    assert held(store) == {7: [1.0, 2.0], -1: 3.0}


def test_pairs_as_keys():
    node = ab.placeholder((), "int32", "node")
    store = ab.TensorStore("float64", key_shape=2).write((0, node), 1.5).write([1, node + 1], [2.5])
    pair = ab.placeholder((2,), "int64", "pair")
    feeds = {node: 4, pair: [1, 5]}
    assert run([store.read((0, 4)), store.read(ops.stack([1, node + 1])), store.contains((1, 4))], feeds) == [
        1.5,
        [2.5],
        False,
    ]
    assert run([store.read(pair), store.contains(pair[::-1])], feeds) == [[2.5], False]
    assert held(store, feeds) == {(0, 4): 1.5, (1, 5): [2.5]}


def test_strings_as_keys():
    name = ab.placeholder((), "string", "name")
    store = ab.TensorStore("int32", key_dtype="string").write("weight", [1, 2]).write(name, 5)
    session = ab.Session()
    assert session.run(store.read("bias"), {name: "bias"}) == 5
    assert session.run(store.read(name), {name: "bias"}) == 5
    assert not session.run(store.contains("bias"), {name: "other"})
    assert held(store, {name: "bias"}) == {"weight": [1, 2], "bias": 5}
    fails(
        LookupError, "TensorStore key 'bias' is read, but no operation before wrote it", store.read("bias"), {name: ""}
    )


def test_pairs_of_strings_as_keys():
    store = ab.TensorStore("int32", key_dtype="string", key_shape=2).write(("a", "b"), 1).write(("b", "a"), 2)
    assert ab.Session().run(store.read(("b", "a"))) == 2
    assert held(store) == {("a", "b"): 1, ("b", "a"): 2}
    assert ab.Session().run(store.gather([["b", "a"], ["a", "b"]])).tolist() == [2, 1]


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_integers_of_any_width_are_the_same_keys(dtype: str):
    key = ab.placeholder((), dtype, "key")
    store = ab.TensorStore("float32", key_dtype="int16").write(key, 1.0)
    assert run([store.read(np.int64(9)), store.contains(np.uint8(9)), store.contains(np.int32(8))], {key: 9}) == [
        1.0,
        True,
        False,
    ]


def test_elements_differ_in_shape_and_are_strings_or_truth_values():
    store = ab.TensorStore("string").write(0, "one").write(1, ["two", "three"])
    assert held(store) == {0: "one", 1: ["two", "three"]}
    store = ab.TensorStore("bool").write(0, np.zeros((2, 0), "bool")).write(1, True)
    assert held(store) == {0: [[], []], 1: True}
    assert store.read(0).shape is None


def test_shapes_of_elements_are_found():
    store = ab.TensorStore("float32")
    assert store.element_shape is None
    assert store.write(0, np.zeros((2, 3), "float32")).read(0).shape == (2, 3)
    both = store.write(0, np.zeros((2, 3), "float32")).write(1, np.zeros((4, 3), "float32"))
    assert both.element_shape == (None, 3)
    assert both.key_dtype == "int64"
    assert both.key_shape == ()
    assert ab.TensorStore("float32", (2, None)).element_shape == (2, None)
    assert str(both.flow.spec) == "store<int64[] -> float32[?,3]>"
    assert repr(both.identity()) == "<TensorStore store_write_2:0 store<int64[] -> float32[?,3]>>"


def test_gather():
    x = np.arange(12.0).reshape(4, 3)
    store = ab.TensorStore("float64")
    for key in range(4):
        store = store.write(10 * key, x[key])
    keys = ab.placeholder((None,), "int32", "keys")
    assert store.gather(keys).shape == (None, 3)
    assert store.gather([0, 10]).shape == (2, 3)
    (found,) = run([store.gather(keys)], {keys: [30, 0, 30]})
    np.testing.assert_array_equal(found, x[[3, 0, 3]])
    assert run([store.gather(keys)], {keys: []})[0].shape == (0, 3)
    assert run([store.gather([])])[0].shape == (0, 3)
    fails(LookupError, r"key 5 is read, .* \(it holds 4 keys\)", store.gather(keys), {keys: [0, 5]})


def test_gather_of_elements_of_different_shapes():
    store = ab.TensorStore("float64").write(0, [1.0]).write(1, [1.0, 2.0])
    fails(ValueError, r"TensorStore\.gather needs elements of one shape; got \[1\], \[2\]", store.gather([0, 1]))
    assert run([store.gather([1, 1])])[0].tolist() == [[1.0, 2.0]] * 2


def test_earlier_stores_stay_as_they_were():
    first = ab.TensorStore("float32").write(0, 1.0)
    left, right = first.write(1, 2.0), first.write(1, 3.0)
    further = left.write(2, 4.0)
    assert [held(each) for each in (first, left, right, further)] == [
        {0: 1.0},
        {0: 1.0, 1: 2.0},
        {0: 1.0, 1: 3.0},
        {0: 1.0, 1: 2.0, 2: 4.0},
    ]
    assert run([first.contains(1), first.size(), right.read(1), left.read(1)]) == [False, 1, 3.0, 2.0]


def test_what_is_stored_shares_no_memory_with_variables():
    v = ab.Variable(np.ones(3, "float32"), name="v")
    store = ab.TensorStore("float32").write(0, v.value)
    with ab.control_dependencies([store.flow]):
        changed = v.assign_add([1.0, 2.0, 3.0])
    found, _ = ab.Session().run([store, changed])
    np.testing.assert_array_equal(found[0], np.ones(3))
    found[0][:] = 9.0
    np.testing.assert_array_equal(ab.Session().run(v), [2.0, 3.0, 4.0])


# --- errors ---------------------------------------------------------------------------------------------------------


def test_reading_what_nobody_wrote():
    store = ab.TensorStore("float32", key_shape=(2,)).write((1, 2), 1.0)
    text = (
        r"TensorStore key \(2, 1\) is read, but no operation before wrote it \(it holds 1 key\)\. "
        r"Write it first; `write` returns the new store, which has to be kept\."
    )
    fails(LookupError, text, store.read((2, 1)))
    fails(LookupError, r"key 0 is read, .* \(it holds 0 keys\)", ab.TensorStore("float32").read(0))


def test_writing_a_key_twice():
    key = ab.placeholder((), "int32", "key")
    store = ab.TensorStore("float32").write(3, 1.0).write(key, 2.0)
    assert held(store, {key: 4}) == {3: 1.0, 4: 2.0}
    text = r"TensorStore key 3 is written a second time; each key is written once\. Write another key, or"
    fails(ValueError, text, store.flow, {key: 3})


def test_errors_in_loops_name_the_iteration():
    store = repeat(5, lambda i, s: s.write(i % 3, 1.0), ab.TensorStore("float32"))
    for road in (ab.Session().run, lambda store: Interpreter().run(ab.get_default_graph(), [store.flow])):
        with pytest.raises(ValueError, match="key 0 is written a second time") as raised:
            road(store)
        assert "iteration 3 of 'while/while'" in raised.value.__notes__[0]


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"key_dtype": "float32"}, TypeError, r"key_dtype must be an integer dtype or 'string', got float32"),
        ({"key_dtype": "bool"}, TypeError, r"key_dtype must be an integer dtype or 'string', got bool"),
        ({"key_shape": None}, ValueError, r"key_shape must be \(\) or one known length, got None"),
        ({"key_shape": (None,)}, ValueError, r"key_shape must be \(\) or one known length"),
        ({"key_shape": (2, 2)}, ValueError, r"key_shape must be \(\) or one known length, got \(2, 2\)"),
    ],
)
def test_keys_that_can_not_be_declared(arguments: dict[str, Any], error: type[Exception], match: str):
    with pytest.raises(error, match=match):
        ab.TensorStore("float32", **arguments)


def test_keys_of_another_kind():
    store = ab.TensorStore("float32")
    with pytest.raises(TypeError, match=r"read: a key was expected of dtype int64, got float32\. Cast it, or declare"):
        store.read(1.0)
    with pytest.raises(TypeError, match=r"contains: a key was expected of dtype int64, got string"):
        store.contains("a")
    with pytest.raises(TypeError, match=r"write: a key was expected of dtype string, got int32"):
        ab.TensorStore("float32", key_dtype="string").write(1, 1.0)
    with pytest.raises(
        ValueError, match=r"write: a key was expected of shape \[\], got \[2\]\. The key_shape of the store says"
    ):
        store.write((1, 2), 1.0)
    with pytest.raises(ValueError, match=r"read: a key was expected of shape \[2\], got \[3\]"):
        ab.TensorStore("float32", key_shape=2).read((1, 2, 3))
    with pytest.raises(ValueError, match=r"gather: keys were expected in rows of shape \[\?,2\], got \[2\]"):
        ab.TensorStore("float32", key_shape=2).gather((1, 2))


def test_values_of_another_kind():
    store = ab.TensorStore("float32", element_shape=(2, None))
    with pytest.raises(
        ValueError, match=r"write: the elements were declared as \[2,\?\], but the value has shape \[3,1\]"
    ):
        store.write(0, np.zeros((3, 1), "float32"))
    with pytest.raises(TypeError, match=r"of float32 elements: a float64 value was written\. Cast it first"):
        store.write(0, np.zeros((2, 1), "float64"))


# --- loops, branches, functions -------------------------------------------------------------------------------------


def test_a_loop_writes_and_reads_what_it_wrote():
    n = ab.placeholder((), "int32", "n")
    start = ab.TensorStore("int64").write(0, np.int64(0)).write(1, np.int64(1))
    store = ab.while_loop(
        lambda i, s: i < n, lambda i, s: (i + 1, s.write(i, s.read(i - 1) + s.read(i - 2))), (2, start)
    )[1]
    assert store.read(0).shape == ()
    for count in (2, 3, 12):
        fibonacci = [0, 1]
        while len(fibonacci) < count:
            fibonacci.append(sum(fibonacci[-2:]))
        assert held(store, {n: count}) == dict(enumerate(fibonacci))
    assert run([store.size(), store.contains(12)], {n: 0}) == [2, False]


def test_zero_iterations_leave_an_empty_store():
    n = ab.placeholder((), "int32", "n")
    store = repeat(n, lambda i, s: s.write(i, ops.ones(i)), ab.TensorStore("float32"))
    assert held(store, {n: 0}) == {}
    assert held(store, {n: 3}) == {0: [], 1: [1.0], 2: [1.0, 1.0]}
    assert run([store.gather(ops.arange(n))], {n: 0})[0].shape == (0, 0)
    fails(LookupError, "key 0 is read", store.read(0), {n: 0})


def test_nested_loops_with_pairs_as_keys():
    rows, columns = ab.placeholder((), "int32", "rows"), ab.placeholder((), "int32", "columns")

    def cell(i: Any, j: Any, s: Any) -> Any:
        edge = ops.logical_or(ops.equal(i, 0), ops.equal(j, 0))
        return s.write((i, j), ab.cond(edge, lambda: 1, lambda: s.read((i - 1, j)) + s.read((i, j - 1))))

    def row(i: Any, s: Any) -> Any:
        return repeat(columns, lambda j, s: cell(i, j, s), s)

    store = repeat(rows, row, ab.TensorStore("int32", (), key_shape=2))
    feeds = {rows: 4, columns: 3}
    assert run([store.read((3, 2)), store.size()], feeds) == [10, 12]  # the paths through a grid
    assert held(store, feeds)[(2, 2)] == 6
    assert held(store, {rows: 2, columns: 0}) == {}


def test_branches_give_stores():
    flag = ab.placeholder((), "bool", "flag")
    start = ab.TensorStore("float32").write(0, [1.0])
    store = ab.cond(flag, lambda: start.write(1, [2.0, 3.0]), lambda: start)
    assert isinstance(store, ab.TensorStore)
    assert held(store, {flag: True}) == {0: [1.0], 1: [2.0, 3.0]}
    assert held(store, {flag: False}) == {0: [1.0]}
    (found,) = run([ab.cond(store.contains(1), lambda: store.read(1), lambda: store.read(0))], {flag: False})
    assert found.tolist() == [1.0]


def test_stores_in_structures():
    def body(i: Any, state: Any) -> Any:
        h = state["h"].write(i, 2.0 * ops.cast(i, "float32"))
        return i + 1, {"h": h, "c": (state["c"][0].write((i, i), i),)}

    start = {"h": ab.TensorStore("float32"), "c": (ab.TensorStore("int32", key_shape=2),)}
    _, state = ab.while_loop(lambda i, _: i < 3, body, (0, start))
    assert held(state["c"][0]) == {(0, 0): 0, (1, 1): 1, (2, 2): 2}
    assert held(state["h"]) == {0: 0.0, 1: 2.0, 2: 4.0}


@pytest.mark.parametrize("other", ["array", "keys", "tensor"])
def test_a_loop_must_return_a_store_of_the_same_kind(other: str):
    others: dict[str, Any] = {
        "array": ab.TensorArray("float32", 1),
        "keys": ab.TensorStore("float32", key_shape=2),
        "tensor": ab.constant(1.0),
    }
    with pytest.raises(TypeError, match=r"s: went in as store<int64\[\] -> float32\[\.\.\.\]>, came out as"):
        ab.while_loop(lambda s: True, lambda s: others[other], (ab.TensorStore("float32"),))
    with pytest.raises(TypeError, match="cond: the branches must return the same dtypes"):
        ab.cond(ab.placeholder((), "bool"), lambda: ab.TensorStore("float32"), lambda: others[other])


def test_functions_take_and_give_stores():
    @ab.function
    def squared(store: Any, key: Any) -> Any:
        return store.write(key + 1, store.read(key) ** 2)

    store = squared(squared(ab.TensorStore("float32").write(0, 3.0), ab.constant(0)), ab.constant(1))
    assert held(store) == {0: 3.0, 1: 9.0, 2: 81.0}


def test_functions_called_on_arrays_give_dicts():
    @ab.function
    def rows(x: Any) -> Any:
        return repeat(ops.shape(x)[0], lambda i, s: s.write(i, x[i, :i]), ab.TensorStore("float32"))

    with eagerly():
        found = rows(np.arange(6, dtype="float32").reshape(2, 3))
    assert {key: value.tolist() for key, value in found.items()} == {0: [], 1: [3.0]}


def test_recursive_functions_carry_stores():
    left, right = ab.constant([1, 3, -1, -1, -1]), ab.constant([2, 4, -1, -1, -1])

    @ab.function
    def heights(node: Any, store: Any) -> Any:
        """The store with the heights of all nodes of the tree."""

        def inner() -> Any:
            below = heights(right[node], heights(left[node], store))
            return below.write(node, 1 + ops.maximum(below.read(left[node]), below.read(right[node])))

        return ab.cond(left[node] < 0, lambda: store.write(node, 0), inner)

    store = heights(ab.constant(0), ab.TensorStore("int32", ()))
    assert dict(sorted(held(store).items())) == {0: 2, 1: 1, 2: 0, 3: 0, 4: 0}


def test_vectorized_map_with_stores_inside():
    x = np.arange(12.0).reshape(4, 3)

    def one(row: Any) -> Any:
        store = repeat(3, lambda i, s: s.write(i, row[i] * 2.0), ab.TensorStore("float64", ()))
        return ops.where(store.contains(2), store.read(0) + store.read(2), 0.0) * ops.cast(store.size(), "float64")

    (found,) = run([ab.vectorized_map(one, ab.constant(x))])
    np.testing.assert_allclose(found, (x[:, 0] + x[:, 2]) * 6.0)


def test_vectorized_map_reads_one_store_at_many_keys():
    store = ab.TensorStore("float64", (2,)).write(5, [1.0, 2.0]).write(6, [3.0, 4.0])
    (found,) = run([ab.vectorized_map(lambda key: store.read(key) * 2.0, ab.constant([6, 5, 6]))])
    assert found.tolist() == [[6.0, 8.0], [2.0, 4.0], [6.0, 8.0]]


def test_vectorized_map_loops_over_keys_that_differ(caplog: pytest.LogCaptureFixture):
    def one(key: Any) -> Any:
        return ab.TensorStore("float64", ()).write(key, 1.0).write(2, 3.0).read(key)

    (found,) = run([ab.vectorized_map(one, ab.constant([1, 4]))])
    assert found.tolist() == [1.0, 1.0]
    assert "vectorized_map loops over what it can't batch: 'store_write'" in caplog.text


# --- passes ---------------------------------------------------------------------------------------------------------


def test_what_only_one_branch_reads_is_read_there():
    """A read is pure: it moves into the branch that needs it, and equal ones are one."""
    flag, x = ab.placeholder((), "bool", "flag"), ab.placeholder((2,), "float32", "x")
    store = ab.TensorStore("float32").write(0, x)
    missing, again = store.read(1), store.read(1)
    y = ab.cond(flag, lambda: missing + again, lambda: store.read(0))
    assert ab.Session().run(y, {flag: False, x: [1, 2]}).tolist() == [1.0, 2.0]
    with pytest.raises(LookupError, match="key 1 is read"):
        ab.Session().run(y, {flag: True, x: [1, 2]})
    printed = ab.explain(missing * again)
    assert printed.count(".read(") == 1
    assert printed.count(".write(") == 1


def test_shapes_are_specialised_through_stores():
    x = ab.placeholder((None, None), "float32", "x")
    store = repeat(3, lambda i, s: s.write(i, x * 2.0), ab.TensorStore("float32", (None, None)))
    y = store.read(0) * store.read(2)
    session = ab.Session()
    for shape in ((2, 3), (0, 1), (4, 4)):
        np.testing.assert_array_equal(session.run(y, {x: np.ones(shape)}), np.full(shape, 4.0))


def test_strings_keep_a_store_in_the_hosts_memory():
    named = ab.TensorStore("float32", (2,), key_dtype="string")
    numbered = ab.TensorStore("float32", (2,))
    assert "strings" in str(why_not("gpu", symbol_of(named.flow).operation))
    assert why_not("gpu", symbol_of(numbered.flow).operation) is None
    assert is_host_value(symbol_of(numbered.size()))
    assert is_host_value(symbol_of(numbered.contains(3)))
    assert not is_host_value(symbol_of(numbered.read(3)))


# --- graphs ---------------------------------------------------------------------------------------------------------


def test_dump(graph: ab.Graph):
    store = repeat(2, lambda i, s: s.write(i, 1.0), ab.TensorStore("float32", (), name="nodes"))
    text = graph.dump(store)
    assert "nodes: store<int64[] -> float32[]> = store_new[element=float32[], key=int64[], open_shape=False]()" in text
    assert "store_write: store<int64[] -> float32[]> = store_write(value, i, 1.0)" in text


def test_saved_graphs_hold_stores(graph: ab.Graph, tmp_path: Path):
    x = ab.placeholder((None,), "float64", name="x")
    store = ab.TensorStore("float64", (), key_shape=2)
    store = repeat(ops.shape(x)[0], lambda i, s: s.write((i, i + 1), x[i] * x[i]), store)
    total = ops.sum(store.gather([(0, 1), (2, 3)]))
    (slope,) = ab.gradients(total, [x])
    graph.save(tmp_path / "graph.npz")
    loaded = ab.load_graph(tmp_path / "graph.npz")
    specs = {tensor.spec for operation in graph.operations for tensor in operation.outputs}
    assert {tensor.spec for operation in loaded.operations for tensor in operation.outputs} == specs
    feeds = np.array([1.0, 2.0, 3.0])
    expected = ab.Session(graph).run([total, slope], {x: feeds})
    found = ab.Session(loaded).run([symbol_of(total).name, slope.name], {"x:0": feeds})
    assert found[0] == expected[0] == 10.0
    np.testing.assert_array_equal(found[1], [2.0, 0.0, 6.0])
    assert ab.Session(loaded).run(store.flow.name, {"x:0": feeds}) == {(0, 1): 1.0, (1, 2): 4.0, (2, 3): 9.0}


def test_specs_of_stores():
    element, pair = TensorSpec((2,), np.dtype("float32")), TensorSpec((2,), np.dtype("int64"))
    store, array = StoreSpec(element), ArraySpec(element)
    wider = StoreSpec(TensorSpec((None,), np.dtype("float32")))
    assert wider.accepts(store)
    assert not store.accepts(wider)
    assert not store.accepts(array)
    assert not StoreSpec(element, key=pair).accepts(store)
    assert store.join(wider) == wider
    assert store.join(StoreSpec(TensorSpec(None, element.dtype), None, True)) == store
    assert len({kind_of(spec) for spec in (store, wider, array, element, StoreSpec(element, key=pair))}) == 4
    assert store.differentiable
    assert not StoreSpec(pair).differentiable


# --- values ---------------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(st.sampled_from(["write", "add_at", "clear", "sum"]), st.integers(0, 5), st.integers(0, 99)), max_size=40
)


@settings(max_examples=examples(37, 150), deadline=None)
@given(STEPS, st.booleans())
def test_values_are_persistent(steps: list[tuple[str, int, int]], linear: bool):
    """Whatever is done to them, and in whichever order, all values keep what a dict of the same steps has."""
    values: list[tuple[StoreValue, dict[int, float]]] = [(StoreValue.empty(), {})]
    for number, (method, key, source) in enumerate(steps):
        value, model = values[-1] if linear else values[source % len(values)]
        model = dict(model)
        if method == "write":
            if key in model:
                with pytest.raises(ValueError, match=f"key {key} is written a second time"):
                    value.write(np.int32(key), 1.0)
                continue
            value, model[key] = value.write(np.int32(key), np.float64(number)), float(number)
        elif method == "add_at":
            value, model[key] = value.add_at(key, np.float64(number)), model.get(key, 0.0) + number
        elif method == "clear":
            value = value.clear(np.int64(key))
            model.pop(key, None)
        else:
            other, held = values[source % len(values)]
            value = value.sum(other)
            model = {key: model.get(key, 0.0) + held.get(key, 0.0) for key in {*model, *held}}
        values.append((value, model))
    for value, model in values:
        assert dict(value.items()) == model
        assert value.size == len(model)
        assert value.nbytes == 8 * len(model)
        assert {key for key in range(6) if value.has(key)} == set(model)
        assert [value.read_or_none(key) for key in range(6)] == [model.get(key) for key in range(6)]


def test_values_are_written_in_place(monkeypatch: pytest.MonkeyPatch):
    """A chain of writes copies nothing; one from the middle of a chain copies what is visible there."""
    copies: list[int] = []
    items = StoreValue.items

    def counted(self: StoreValue) -> Any:
        copies.append(self.size)
        return items(self)

    monkeypatch.setattr(StoreValue, "items", counted)
    chain = [StoreValue.empty()]
    for key in range(100):
        chain.append(chain[-1].write(key, np.float64(key)))
    assert copies == []
    assert chain[10].write(50, np.float64(0)).size == 11
    assert copies == [10]


def test_memory_of_what_was_cleared_is_given_back():
    value, longest = StoreValue.empty(), 0
    for key in range(1000):
        value = value.add_at(key, np.ones(3)).add_at(key, np.ones(3)).clear(key)
        longest = max(longest, len(value._table.entries))
    assert value.size == 0
    assert longest < 20
