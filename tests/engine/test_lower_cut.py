"""Cutting a machine by device: what crosses, how often, and as what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp
from shared.machines import Log, as_asked, assert_crosses_once, assert_local, by_name, fed, graph_on, of_kind, run

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import Symbol, Tensor
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.lower.cut import cut
from anabranch.engine.lower.nodes import CONTROL, Frame, Machine, Node
from anabranch.engine.machine.program import MachineProgram

graph = graph_on(cpu=4)
x = fed("float32", "x")


def machine(fetches: Sequence[Any], feeds: Sequence[Symbol] = (), **options: Any) -> MachineProgram:
    options = {"assign": as_asked(), "clusters": False, **options}
    program = MachineProgram(ab.get_default_graph(), fetches, feeds, exact=True, **options)
    assert_crosses_once(program.machine)
    assert_local(program.machine)
    return program


def crossings(program: MachineProgram) -> list[tuple[str, str, str]]:
    """The name of what crosses, from where and to where."""
    return sorted(
        (send.inputs[0].node.name, str(send.device), str(send.peer.device))
        for send in of_kind(program.machine, "send")
        if send.peer is not None
    )


# --- what crosses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clusters", [False, True])
def test_a_value_crosses_once_to_each_device_that_takes_it(x: Symbol, clusters: bool):
    y = ops.exp(x)
    taken: list[Tensor] = []
    for device in ("cpu:1", "cpu:1", "cpu:2", "cpu:1", "cpu:0"):
        with ab.device(device):
            taken.append(y + float(len(taken)))
    program = machine(taken, [x], clusters=clusters)
    name = symbol_of(y).operation.name
    assert crossings(program) == [(name, "cpu:0", "cpu:1"), (name, "cpu:0", "cpu:2")]
    np.testing.assert_array_equal(run(program, [np.float32(0)]), [1, 2, 3, 4, 5])


def test_constants_do_not_cross(x: Symbol):
    k = ab.constant(2.0, "float32")
    with ab.device("cpu:1"):
        y = x * k
    with ab.device("cpu:2"):
        z = y * k
    program = machine([z], [x])
    assert sorted((a, b) for _, a, b in crossings(program)) == [("cpu:0", "cpu:1"), ("cpu:1", "cpu:2")]


def test_what_a_loop_captures_crosses_before_it(x: Symbol):
    y = ops.exp(x)

    def body(i: Tensor, a: Tensor) -> Any:
        with ab.device("cpu:1"):
            a = (a + y) * y
        return i + 1, a

    _, a = ab.while_loop(lambda i, _: i < 3, body, (0, x))
    program = machine([a], [x])
    of_y = [
        send for send in of_kind(program.machine, "send") if send.inputs[0].node.name == symbol_of(y).operation.name
    ]
    assert len(of_y) == 1
    assert of_y[0].frame is program.machine.root
    run(program, [np.float32(0.5)])


def test_a_predicate_crosses_once_an_iteration_to_each_device_that_takes_part(x: Symbol):
    def body(i: Tensor, *values: Tensor) -> Any:
        found: list[Tensor] = []
        for number, value in enumerate(values):
            with ab.device(f"cpu:{number}"):
                found.append(value * 2.0)
        return i + 1, *found

    names = {f"v{number}": f"cpu:{number}" for number in range(3)}
    fetches = ab.while_loop(lambda i, *_: i < 3, lambda i, v0, v1, v2: body(i, v0, v1, v2), (0, x, x, x), name="loop")
    program = machine(fetches, [x], assign=by_name(names))
    inside = [send for send in of_kind(program.machine, "send") if send.frame.depth == 1]
    assert sorted(str(send.peer.device) for send in inside if send.peer is not None) == ["cpu:1", "cpu:2"]
    assert {send.inputs[0].node.kind for send in inside} == {"loop_cond"}
    assert run(program, [np.float32(1)]) == (3, 8, 8, 8)


@pytest.mark.parametrize(("size", "crossing"), [(10, [0]), (100_000, [CONTROL, 0])])
def test_what_waits_for_an_operation_waits_for_its_value_if_that_comes_anyway(size: int, crossing: list[int]):
    """A signal was a message more; it is one where it comes earlier than the value."""
    log = Log()
    value = log.note("made", 0, ops.exp(ops.zeros((size,))), ordered=True)
    with ab.device("cpu:1"):
        total = ops.sum(value)
        later = log.note("later", 0, 1.0, ordered=True)
    program = machine([later, total], [])
    made = symbol_of(value).operation.name
    sends = [send for send in of_kind(program.machine, "send") if send.inputs[0].node.name == made]
    assert sorted(send.inputs[0].port for send in sends) == crossing
    assert run(program, [])[1] == size
    assert [name for name, *_ in log.entries] == ["made", "later"]


def test_order_crosses_as_a_control(x: Symbol):
    log = Log()
    first = log.note("first", 0, ops.exp(x), ordered=True)
    with ab.device("cpu:1"):
        second = log.note("second", 0, 1.0, ordered=True)
    assert crossings(machine([second], [x])) == []  # nothing asks for the first
    program = machine([second, first], [x])
    (send,) = of_kind(program.machine, "send")
    assert send.inputs[0].port == CONTROL
    assert run(program, [np.float32(0)]) == (1, 1)
    assert log.entries == [("first", 0), ("second", 0)]


def test_what_a_branch_takes_crosses_alive_or_dead(x: Symbol):
    p = ab.placeholder((), "bool", "p")
    with ab.device("cpu:1"):
        inner = ops.exp(x)

    def taken() -> Tensor:
        with ab.device("cpu:2"):
            return inner * 2.0

    program = machine([ab.cond(p, taken, lambda: x)], [p, x])
    for is_taken, expected in [(True, 2 * np.exp(np.float32(0.5))), (False, np.float32(0.5))]:
        assert run(program, [np.bool_(is_taken), np.float32(0.5)]) == (expected,)


def test_cutting_by_hand():
    built = Machine()
    loop = Frame("loop", built.root)
    source = built.add(Node("feed", "x", "cpu:0", built.root))
    constant = built.add(Node("const", "c", None, built.root))
    entering = built.add(Node("enter", "x", "cpu:1", loop, [source.output]))
    leaving = built.add(Node("exit", "x", "cpu:1", loop, [entering.output]))
    taking = built.add(Node("identity", "y", "cpu:0", built.root, [leaving.output, constant.output]))
    taking.controls = [leaving.output, source.output]
    cut(built)
    assert_crosses_once(built)
    assert_local(built)
    assert [(send.frame, send.device) for send in of_kind(built, "send")] == [
        (built.root, "cpu:0"),
        (built.root, "cpu:1"),
    ]
    assert taking.inputs[1] == constant.output
    assert taking.controls == [taking.inputs[0], source.output]


def test_a_device_with_memory_of_its_own_copies_what_decides_to_the_host():
    built = Machine()
    near = built.add(Node("op", "near", "sim:0", built.root))
    far = built.add(Node("op", "far", "cpu:0", built.root))
    by_near = [
        built.add(Node("switch", f"by near {k}", "sim:0", built.root, [near.output, near.output])) for k in (0, 1)
    ]
    by_far = built.add(Node("switch", "by far", "sim:0", built.root, [near.output, far.output]))
    cut(built, lambda device: device.startswith("sim"))
    (copied,) = of_kind(built, "to_host")
    assert [node.inputs for node in by_near] == [[near.output, copied.output]] * 2
    assert copied.inputs == [near.output]
    assert by_far.inputs[1].node.kind == "recv"
    assert_local(built)


# --- as what --------------------------------------------------------------------------------------------------------


def truncated(value: Any) -> np.ndarray:
    """The upper half of the bits of 32-bit floats."""
    bits = np.frombuffer(np.asarray(value, "<f4").tobytes(), "<u2").copy()
    bits[0::2] = 0
    return np.frombuffer(bits.tobytes(), "<f4").reshape(np.shape(value))


def there_and_back(shape: tuple[int, ...] | None, dtype: str, lossy: Sequence[tuple[str, str]]) -> MachineProgram:
    x = ab.placeholder(shape, dtype, "sent")
    with ab.device("cpu:1"):
        there = ops.expand_dims(x, 0)
    with ab.device("cpu:2"):
        back = ops.expand_dims(there, 0)
    return machine([there, back], [x], lossy=lossy)


@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)))
def test_floats_between_lossy_devices_are_cut_off(value: np.ndarray):
    value = np.where(np.isnan(value), np.float32(np.nan), value)
    with ab.Graph().as_default():
        program = there_and_back(None, "float32", [("cpu:0", "cpu:1")])
    there, back = run(program, [value[()]])
    assert there.dtype == back.dtype == np.float32
    assert there.tobytes() == back.tobytes() == truncated(value).tobytes()
    assert there.shape == (1, *value.shape)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.0, 1.0),
        (1.00390625, 1.0),  # 1 + 2**-8: cut off, not rounded
        (-1.99999988, -1.9921875),
        (-0.0, -0.0),
        (np.inf, np.inf),
        (3.4028235e38, 3.3895314e38),
        (1e-45, 0.0),
    ],
)
def test_known_floats(value: float, expected: float):
    there, _ = run(there_and_back((), "float32", [("cpu:0", "cpu:1")]), [np.float32(value)])
    assert there.tobytes() == np.float32(expected).tobytes()


def test_not_a_number_stays_one():
    there, _ = run(there_and_back((), "float32", [("cpu:0", "cpu:1")]), [np.float32(np.nan)])
    assert np.isnan(there).all()


def test_other_values_that_are_no_numbers_stay_so():
    value = np.array([0x7F800001], np.uint32).view(np.float32)
    there, _ = run(there_and_back((1,), "float32", [("cpu:0", "cpu:1")]), [value])
    assert np.isnan(there).all()


def test_only_the_pairs_that_are_named_are_lossy():
    value = np.float32(1 / 3)
    for lossy, expected in [
        ([], (value, value)),
        ([("cpu:1", "cpu:0"), ("cpu:2", "cpu:1")], (value, value)),
        ([("cpu:1", "cpu:2")], (value, truncated(value))),
        ([("cpu:0", "cpu:1")], (truncated(value), truncated(value))),
    ]:
        with ab.Graph().as_default():
            there, back = run(there_and_back((), "float32", lossy), [value])
        assert (there.item(), back.item()) == expected


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "int64", "bool", "complex64"])
def test_other_values_are_not_cut_off(dtype: str):
    value = np.array([1, 12345.678, -3]).astype(dtype)
    there, _ = run(there_and_back((3,), dtype, [("cpu:0", "cpu:1")]), [value])
    np.testing.assert_array_equal(there[0], value)


def test_floats_in_a_loop_are_cut_off_each_time(x: Symbol):
    def body(i: Tensor, y: Tensor) -> Any:
        with ab.device("cpu:1"):
            y = y * 1.1
        return i + 1, y

    _, y = ab.while_loop(lambda i, _: i < 5, body, (0, x))
    expected = np.float32(1.3)
    for _ in range(5):
        expected = truncated(truncated(expected)[()] * np.float32(1.1))[()]
    found = run(machine([y], [x], lossy=[("cpu:0", "cpu:1"), ("cpu:1", "cpu:0")]), [np.float32(1.3)])
    assert found == (expected,)
