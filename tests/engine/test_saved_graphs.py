"""Graphs saved and loaded: the same names and bits, differentiable further; what can't be kept is refused clearly.

The generated tests save every op, alone and inside branches and loops; here are whole programs, files and errors.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.autodiff.custom_gradient import CustomGradient
from anabranch.engine.common.identity import is_among
from anabranch.engine.graph import Op, Placeholder, TensorSpec
from anabranch.engine.graph.op import _registry
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.base import apply
from anabranch.engine.saving import SavedGraphError, describe_for_tasks, graph_from_dict, graph_to_dict, rebuild
from anabranch.engine.testing.comparing import assert_identical


@pytest.fixture
def graph():
    with ab.Graph().as_default() as graph:
        yield graph


def reloaded(graph: Any, tmp_path: Path) -> Any:
    """The graph by way of a file; JSON must give the very same."""
    path = tmp_path / "graph.npz"
    graph.save(path)
    by_json = graph_from_dict(json.loads(json.dumps(graph_to_dict(graph))))
    by_file = ab.load_graph(path)
    assert graph_to_dict(by_json) == graph_to_dict(by_file) == graph_to_dict(graph)
    return by_file


def run(graph: Any, names: list[str], feeds: dict[str, Any]) -> list[Any]:
    fed = {graph.get_tensor_by_name(name): value for name, value in feeds.items()}
    return ab.Session(graph).run([graph.get_tensor_by_name(name) for name in names], fed)


def assert_same(graph: Any, again: Any, tensors: list[Any], feeds: dict[Any, Any]) -> None:
    names, fed = [tensor.name for tensor in tensors], {tensor.name: value for tensor, value in feeds.items()}
    for value, wanted in zip(run(again, names, fed), run(graph, names, fed), strict=True):
        assert_identical(value, wanted)


def test_everything_that_is_known_of_an_operation_comes_back(graph: Any, tmp_path: Path):
    x = ab.placeholder((None, 2), "float32", name="x")
    with ab.name_scope("scope"), ab.device("cpu:0"), ab.control_dependencies([x]):
        y = ab.ops.reshape(x * 2, (-1,))
    again = reloaded(graph, tmp_path)

    for old, new in zip(graph.operations, again.operations, strict=True):
        assert (new.name, new.type, new.device, new.index) == (old.name, old.type, old.device, old.index)
        assert [tensor.spec for tensor in new.outputs] == [tensor.spec for tensor in old.outputs]
        assert [tensor.name for tensor in new.inputs] == [tensor.name for tensor in old.inputs]
        assert [control.name for control in new.control_inputs] == [control.name for control in old.control_inputs]
        assert new.location == old.location
    assert any(operation.control_inputs for operation in again.operations)
    assert str(symbol_of(y).operation.location).startswith(__file__)


def test_new_operations_get_names_of_their_own(graph: Any, tmp_path: Path):
    x = ab.placeholder((), "float32", name="x")
    ab.ops.exp(x)
    again = reloaded(graph, tmp_path)
    before = {operation.name for operation in again.operations}

    with again.as_default():
        z = ab.ops.exp(again.get_tensor_by_name("x:0"))

    assert symbol_of(z).operation.name not in before
    assert len({operation.name for operation in again.operations}) == len(again.operations)


@pytest.mark.parametrize(
    "value",
    [
        np.float32(np.nan),
        np.array([[1.5, -0.0, np.inf]], "float64"),
        np.zeros((0, 3), "int8"),
        np.array([2**64 - 1, 0], "uint64"),
        np.array([1 + 2j, -0.0j], "complex64"),
        np.array([True, False]),
        np.arange(6, dtype="float32").reshape(2, 3).T,
        np.array([1.0, -2.5], "float16"),
    ],
    ids=lambda value: f"{value.dtype}{list(value.shape)}",
)
def test_constants_come_back_to_the_bit(graph: Any, tmp_path: Path, value: Any):
    y = ab.constant(value)
    again = reloaded(graph, tmp_path)

    assert_same(graph, again, [y], {})


def test_bfloat16_and_strings_come_back(graph: Any, tmp_path: Path):
    half = ab.ops.cast(ab.constant([1.0, -2.5, float("inf")]), "bfloat16")
    constant = ab.constant(ab.Session(graph).run(half))
    text = ab.constant(["", "größe\x00\n", "🙂"])
    scalar = ab.constant("one")
    again = reloaded(graph, tmp_path)

    assert_same(graph, again, [half, constant, text], {})
    assert run(again, [symbol_of(scalar).name], {}) == ["one"]


def test_numbers_of_the_other_byte_order_become_native(graph: Any, tmp_path: Path):
    y = ab.constant(np.array([1, 2, 3], ">i4"))
    again = reloaded(graph, tmp_path)

    assert_identical(run(again, [symbol_of(y).name], {})[0], np.array([1, 2, 3], "int32"))


def test_variables_come_back_as_new_ones(graph: Any, tmp_path: Path):
    w = ab.Variable(np.arange(6, dtype="float32").reshape(2, 3), name="w")
    steps = ab.Variable(7, trainable=False, name="steps")
    open_shape = ab.Variable(np.ones((2,), "float64"), shape=(None,), name="open")
    unused = ab.Variable(1.0, name="unused")
    x = ab.placeholder((None, 2), "float32", name="x")
    y = ab.ops.sum(x @ w)
    step = steps.assign_add(1)
    total = ab.ops.sum(open_shape)
    again = reloaded(graph, tmp_path)

    found = {variable.name: variable for variable in again.variables}
    assert list(found) == ["w", "steps", "open"]
    assert not is_among(unused, graph.variables)
    assert [v.trainable for v in found.values()] == [True, False, True]
    assert [v.spec for v in found.values()] == [w.spec, steps.spec, open_shape.spec]
    feeds = {x.name: np.ones((3, 2), "float32")}
    assert run(again, [step.name, step.name], {}) == [8, 8]
    assert found["steps"].numpy() == 8
    assert steps.numpy() == 7
    found["w"].write_value(found["w"].numpy() * 2)
    assert run(again, [symbol_of(y).name, symbol_of(total).name], feeds) == [
        2 * ab.Session(graph).run(y, {x: np.ones((3, 2))}),
        2.0,
    ]


def test_two_variables_of_one_name_stay_two(graph: Any, tmp_path: Path):
    a, b = ab.Variable(1.0, name="v"), ab.Variable(2.0, name="v")
    y = a * 10 + b
    again = reloaded(graph, tmp_path)

    assert [variable.name for variable in again.variables] == ["v", "v"]
    assert run(again, [y.name], {}) == [12.0]


def test_random_numbers_go_on_where_they_were(graph: Any, tmp_path: Path):
    generator = ab.random.SeedGenerator(3)
    y = ab.random.normal((4,), seed=generator)
    ab.Session(graph).run(y)
    again = reloaded(graph, tmp_path)

    assert_same(graph, again, [y], {})
    assert_same(graph, again, [y], {})


def nested_loop(x: Any, w: Any) -> Any:
    """A loop in a branch in a loop, with captures, a variable that is written, and a TensorArray."""
    rows = ab.TensorArray("float64", 0, dynamic_size=True)

    def inner(k: Any, state: Any) -> Any:
        return k + 1, ab.ops.tanh(state * w + x[k])

    def body(i: Any, state: Any, rows: Any) -> Any:
        even = ab.ops.equal(i % 2, 0)
        state = ab.cond(even, lambda: ab.while_loop(lambda k, s: k < 2, inner, (0, state))[1], lambda: state * x[i])
        return i + 1, state, rows.write(i, state)

    _, state, rows = ab.while_loop(lambda i, *_: i < 4, body, (0, x * 0 + 0.5, rows))
    return ab.ops.sum(state) + ab.ops.sum(ab.ops.square(rows.stack()))


def test_loops_and_their_gradients_of_both_orders(graph: Any, tmp_path: Path):
    x = ab.placeholder((None,), "float64", name="x")
    w = ab.Variable(np.float64(0.7), name="w")
    y = nested_loop(x, w)
    first = ab.gradients(y, [x, w])
    feeds = {x: np.linspace(0.2, 0.9, 4)}
    again = reloaded(graph, tmp_path)

    assert_same(graph, again, [y, *first], feeds)
    names = [tensor.name for tensor in first]
    with again.as_default():
        slope = sum(ab.ops.sum(again.get_tensor_by_name(name)) for name in names)
        second = ab.gradients(slope, [again.get_tensor_by_name("x:0"), again.variables[0]])
        second_names = [tensor.name for tensor in second]
    with graph.as_default():
        wanted = ab.gradients(sum(ab.ops.sum(tensor) for tensor in first), [x, w])
    values = run(again, second_names, {"x:0": feeds[x]})
    for value, want in zip(values, ab.Session(graph).run(wanted, feeds), strict=True):
        assert_identical(value, want)
    twice = reloaded(again, tmp_path)  # now with histories of histories
    assert_same(
        again,
        twice,
        [again.get_tensor_by_name(name) for name in second_names],
        {again.operations[0].outputs[0]: feeds[x]},
    )


def test_gradients_taken_after_loading_equal_those_taken_before(graph: Any, tmp_path: Path):
    x = ab.placeholder((None,), "float64", name="x")
    y = nested_loop(x, ab.Variable(np.float64(0.7), name="w"))
    again = reloaded(graph, tmp_path)
    feeds = np.linspace(0.2, 0.9, 4)

    found = ab.gradients(again.get_tensor_by_name(y.name), [again.get_tensor_by_name("x:0"), *again.variables])
    wanted = ab.gradients(y, [x, *graph.variables])

    for value, want in zip(
        ab.Session(again).run(found, {again.get_tensor_by_name("x:0"): feeds}),
        ab.Session(graph).run(wanted, {x: feeds}),
        strict=True,
    ):
        assert_identical(value, want)


def test_effects_inside_loops_come_back(graph: Any, tmp_path: Path):
    v = ab.Variable(1.0, name="v")

    def body(i: Any) -> Any:
        v.assign(v * 2)
        return i + 1

    i = ab.while_loop(lambda i: i < 5, body, 0)
    again = reloaded(graph, tmp_path)

    assert run(again, [i.name], {}) == [5]
    assert again.variables[0].numpy() == 32
    assert v.numpy() == 1


def test_the_file_is_a_numpy_archive_without_pickles(graph: Any, tmp_path: Path):
    ab.constant([1.0, 2.0])
    graph.save(tmp_path / "graph.npz")

    with np.load(tmp_path / "graph.npz", allow_pickle=False) as archive:
        document = json.loads(archive["document"].tobytes())
        assert_identical(archive["array_0"], np.array([1, 2], "float32"))
    assert (document["format"], document["version"]) == ("anabranch graph", 1)


def test_nothing_is_evaluated_by_saving(graph: Any, tmp_path: Path):
    v = ab.Variable(1.0)
    v.assign_add(1.0)
    reloaded(graph, tmp_path)

    assert v.numpy() == 1


def test_a_failed_save_leaves_the_old_file(graph: Any, tmp_path: Path):
    path = tmp_path / "graph.npz"
    ab.constant(1.0)
    graph.save(path)
    before = path.read_bytes()
    graph.add(_Calls(len), (), "call")

    with pytest.raises(SavedGraphError):
        graph.save(path)

    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["graph.npz"]


# --- what can't be kept ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Calls(Op):
    function: Any

    def infer(self, *inputs: Any) -> Any:
        return TensorSpec((), np.dtype("float32"))


@dataclass(frozen=True)
class Scaled(Op):
    """An op of a user's own, with attributes of many kinds."""

    type_name = "scaled_for_saving"
    attributes: Any = None

    def infer(self, *inputs: Any) -> Any:
        return inputs[0]

    def run(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0] * 2


@pytest.fixture(autouse=True)
def own_ops():
    """The ops of this module are registered here only: others list all that are."""
    _registry.update({"scaled_for_saving": Scaled, "_calls": _Calls})
    yield
    _registry.pop("scaled_for_saving", None)
    _registry.pop("_calls", None)


@pytest.mark.parametrize(
    "attributes",
    [
        None,
        (1, (True, 2.5), "text", None),
        (float("inf"), -0.0, 1 + 2j, 2**80),
        (slice(1, None, -2), ..., np.dtype("float16"), np.dtype("int64")),
        [1, [2]],
        {"a": (1,), 2: None},
        TensorSpec((None, 3), np.dtype("bool")),
    ],
    ids=str,
)
def test_attributes_of_own_ops_come_back(graph: Any, tmp_path: Path, attributes: Any):
    y = apply(Scaled(attributes), ab.constant(2.0))
    again = reloaded(graph, tmp_path)

    found = again.get_operation_by_name(symbol_of(y).operation.name).op
    assert type(found) is Scaled
    assert found.attributes == attributes
    assert repr(found.attributes) == repr(attributes)


def test_nan_and_arrays_among_attributes_come_back(graph: Any, tmp_path: Path):
    y = apply(Scaled((float("nan"), np.float32(2), np.arange(3))), ab.constant(2.0))
    nan, scalar, array = reloaded(graph, tmp_path).get_operation_by_name(symbol_of(y).operation.name).op.attributes

    assert np.isnan(nan)
    assert_identical(scalar, np.float32(2))
    assert_identical(array, np.arange(3))


@pytest.mark.parametrize(
    ("attribute", "what"),
    [
        (len, r"its attribute 'attributes' holds a function"),
        ((1, (2, lambda: 0)), r"its attribute 'attributes\[1\]\[1\]' holds a function"),
        (object(), ".*holds a value of type object"),
        (b"bytes", ".*holds a value of type bytes"),
    ],
)
def test_what_a_file_cannot_keep_is_refused(graph: Any, tmp_path: Path, attribute: Any, what: str):
    graph.add(Scaled(attribute), [ab.constant(1.0)], "mine")

    with pytest.raises(
        SavedGraphError, match=rf"Operation 'mine' \(scaled_for_saving\), defined at .*\.py:\d+, can't be saved: {what}"
    ) as caught:
        graph.save(tmp_path / "graph.npz")
    assert caught.type is SavedGraphError, "users see no name of ours"


def test_functions_inside_loops_are_refused_by_their_own_names(graph: Any):
    def body(x: Any) -> Any:
        return apply(Scaled(len), x, name="inside")

    ab.while_loop(lambda x: x < 3.0, body, ab.constant(1.0))

    with pytest.raises(SavedGraphError, match=r"^Operation 'inside' \(scaled_for_saving\).* holds a function"):
        graph_to_dict(graph)


def test_gradients_written_by_the_user_are_refused(graph: Any):
    @ab.custom_gradient
    def doubled(x: Any) -> Any:
        return x * 2, lambda upstream: upstream * 2

    doubled(ab.constant(1.0))

    with pytest.raises(SavedGraphError, match=r"custom_gradient.*holds a function"):
        graph_to_dict(graph)


def test_tasks_get_no_gradient_function_and_differentiate_nothing(graph: Any):
    doubled = ab.custom_gradient(lambda x: (x * 2, lambda upstream: upstream * 2))
    doubled(ab.constant(1.0))
    document, arrays, _ = describe_for_tasks(graph)
    rebuilt = rebuild(document, arrays.__getitem__, "a task's graph")
    made = next(each for each in rebuilt.operations if isinstance(each.op, CustomGradient))
    with rebuilt.as_default(), pytest.raises(TypeError, match="Build gradients in the process that runs the session"):
        ab.gradients(made.outputs[0], [made.inputs[1]])


def test_classes_that_would_not_be_found_again_are_refused(graph: Any):
    class _Hidden(Op):
        def infer(self, *inputs: Any) -> Any:
            return TensorSpec((), np.dtype("float32"))

    graph.add(_Hidden(), ())

    with pytest.raises(SavedGraphError, match=r"_Hidden is not the one that is registered as '_?hidden'"):
        graph_to_dict(graph)


def test_unknown_ops_are_named_with_the_file(graph: Any, tmp_path: Path):
    graph.add(Scaled(), [ab.constant(1.0)], "mine")
    graph.save(tmp_path / "mine.npz")
    _registry.pop("scaled_for_saving")

    with pytest.raises(
        SavedGraphError, match=r"mine\.npz'.* 'mine' is of type 'scaled_for_saving', which is not known here.*import"
    ):
        ab.load_graph(tmp_path / "mine.npz")


EVERY_OP = """
import importlib, pkgutil
import anabranch
from anabranch.engine.graph.op import registered_ops
from anabranch.engine.saving.late import late_op

late_op("none")
known = set(registered_ops())
for package in ("engine", "layers"):
    root = importlib.import_module(f"anabranch.{package}")
    for module in pkgutil.walk_packages(root.__path__, root.__name__ + "."):
        importlib.import_module(module.name)
for name, cls in registered_ops().items():
    made_later = "made by a pass" in cls.no_samples or cls.__module__.endswith(("array_windows", "staged"))
    if name not in known and not made_later:
        print(name, cls.__module__)
"""


def test_a_fresh_process_knows_every_op_that_graphs_are_built_of():
    found = subprocess.run([sys.executable, "-c", EVERY_OP], capture_output=True, text=True, check=True)
    assert found.stdout.split("\n")[:-1] == []


def test_unknown_attributes_are_named_with_the_file(graph: Any):
    graph.add(Scaled(), [ab.constant(1.0)], "mine")
    document = graph_to_dict(graph)
    document["blocks"][0]["operations"][1]["fields"]["later"] = 1

    with pytest.raises(SavedGraphError, match=r"The document: operation 'mine'.* Scaled does not have later"):
        graph_from_dict(document)


def test_missing_attributes_are_reported(graph: Any):
    ab.ops.cast(ab.constant(1.0), "int32")
    document = graph_to_dict(graph)
    document["blocks"][0]["operations"][1]["fields"].clear()

    with pytest.raises(SavedGraphError, match=r"type 'cast', which can't be made again .*dtype"):
        graph_from_dict(document)


def change_version(document: Any) -> None:
    document["version"] = 99


def change_format(document: Any) -> None:
    document["format"] = "something else"


def drop_block(document: Any) -> None:
    document["blocks"].clear()


def point_nowhere(document: Any) -> None:
    document["blocks"][0]["operations"][-1]["inputs"] = [[0, 77, 0]]


def change_spec(document: Any) -> None:
    document["blocks"][0]["operations"][-1]["outputs"] = [["int8", [9]]]


def change_value(document: Any) -> None:
    document["blocks"][0]["operations"][-1]["fields"]["dtype"] = {"mystery": 1}


def ask_for_a_class(document: Any) -> None:
    document["blocks"][0]["operations"][-1]["fields"]["dtype"] = {"class": "Path", "fields": {}}


def shorten_an_array(document: Any) -> None:
    document["arrays"][0]["data"] = "AAA"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change_version, "format version 99; this version of anabranch reads up to 1"),
        (change_format, "The document holds no saved graph"),
        (drop_block, "The document is damaged: IndexError"),
        (point_nowhere, "The document is damaged: IndexError"),
        (change_spec, r"'cast' \(cast\) gave int8\[9\] when it was saved, and gives int32\[\] here"),
        (change_value, "values of the kind 'mystery' are not known"),
        (ask_for_a_class, "has no dataclass or enumeration 'Path'"),
        (shorten_an_array, "The document is damaged"),
    ],
)
def test_damage_is_explained(graph: Any, damage: Any, message: str):
    ab.ops.cast(ab.constant(1.0), "int32")
    document = graph_to_dict(graph)
    damage(document)

    with pytest.raises(SavedGraphError, match=message):
        graph_from_dict(document)


@pytest.mark.parametrize("keep", [0, 10, 300, -5])
def test_cut_files_are_refused(graph: Any, tmp_path: Path, keep: int):
    ab.constant(np.arange(100.0))
    path = tmp_path / "cut.npz"
    graph.save(path)
    path.write_bytes(path.read_bytes()[:keep])

    with pytest.raises(SavedGraphError, match=r"cut\.npz' is no saved graph, or is damaged"):
        ab.load_graph(path)


def test_changed_bytes_are_noticed(graph: Any, tmp_path: Path):
    ab.constant(np.arange(100.0))
    path = tmp_path / "changed.npz"
    graph.save(path)
    content = bytearray(path.read_bytes())
    content[content.index(np.float64(42).tobytes())] ^= 1
    path.write_bytes(content)

    with pytest.raises(SavedGraphError, match=r"damaged.*CRC"):
        ab.load_graph(path)


def test_files_of_other_kinds_are_refused(tmp_path: Path):
    np.savez(tmp_path / "weights.npz", weights=np.zeros(3))
    (tmp_path / "text.npz").write_text("hello")

    for name in ("weights.npz", "text.npz"):
        with pytest.raises(SavedGraphError, match="is no saved graph"):
            ab.load_graph(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="There is no file"):
        ab.load_graph(tmp_path / "missing.npz")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        ab.Graph().save(tmp_path / "nowhere" / "graph.npz")


def test_the_inside_of_a_loop_is_no_graph_of_its_own(graph: Any):
    loop = ab.while_loop(lambda x: x < 3.0, lambda x: x + 1, ab.constant(1.0)).operation

    with pytest.raises(SavedGraphError, match="This is the inside of a loop or branch"):
        graph_to_dict(loop.op.body)


def test_an_empty_graph_comes_back(tmp_path: Path):
    assert reloaded(ab.Graph(), tmp_path).operations == []


def test_placeholders_keep_what_was_unknown(graph: Any, tmp_path: Path):
    for shape in (None, (None, 2), ()):
        ab.placeholder(shape, "int32")
    again = reloaded(graph, tmp_path)

    assert [operation.outputs[0].shape for operation in again.operations] == [None, (None, 2), ()]
    assert all(isinstance(operation.op, Placeholder) for operation in again.operations)
