"""Machines as text and as DOT."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import anabranch as ab
from anabranch import ops, raw
from anabranch.engine.graph import Graph
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.lower.cluster import cluster
from anabranch.engine.lower.cut import cut
from anabranch.engine.lower.lowering import Lowering
from anabranch.engine.lower.nodes import Frame, Machine, Node, Value
from anabranch.engine.lower.raw import lower_raw
from anabranch.engine.lower.show import dump_machine, in_order, node_names, to_dot
from anabranch.engine.passes.framework.prune import needed_operations

GOLDEN = Path(__file__).parent / "dumps" / "lowered_loop.txt"


@pytest.fixture(autouse=True)
def graph() -> Iterator[Graph]:
    with Graph().as_default() as made:
        yield made


def over_two_devices(joined: bool = True) -> Machine:
    """A loop whose body has a matmul and a tanh on another device."""
    x = ab.placeholder((2, 3), "float32", "x")
    i = raw.merge([raw.enter(0, "loop", name="i/start")], name="i").output
    h = raw.merge([raw.enter(x, "loop", name="h/start")], name="h").output
    going = raw.loop_cond(i < 10)
    i_on = raw.switch(i, going, name="i/switch").output_true
    h_out, h_on = raw.switch(h, going, name="h/switch")
    raw.next_iteration(i_on + 1, into=i, name="i/next")
    weights = raw.enter(np.eye(3, dtype="float32"), "loop", is_constant=True, name="weights")
    raw.next_iteration(ops.tanh(ops.matmul(h_on, weights)), into=h, name="h/next")
    result = symbol_of(raw.exit(h_out, name="h/exit"))
    there = ("matmul", "tanh")
    machine = lower_raw(
        needed_operations(result.graph, [result]),
        [x],
        [result],
        lambda o: "cpu:1" if o.type in there else "cpu:0",
    )
    if joined:
        cluster(machine)
    cut(machine)
    return machine


def test_text():
    """Compared with a golden file. After a change that is meant: ``ANABRANCH_WRITE_GOLDEN=1``."""
    text = dump_machine(over_two_devices())
    if os.environ.get("ANABRANCH_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_the_structured_text(graph: Graph):
    """Loops that were not lowered are printed below the node that runs them, without devices of their own."""
    n = ab.placeholder((), "int32", "n")
    (total,) = ab.while_loop(lambda i: i < n, lambda i: (i * 2,), (1,), name="inner")
    no, yes = raw.switch(total, n > 3)
    chosen = symbol_of(raw.merge([no, yes], name="chosen").value_index)
    machine = lower_raw(needed_operations(graph, [chosen]), [n], [chosen], lambda _: "cpu:0")
    text = dump_machine(machine)
    assert "    inner/while: int32[] = while(1, n) @ cpu:0\n        inner/while:" in text
    assert "            body(" in text
    assert "    chosen: int32[], chosen:index: int32[] = merge(switch:false, switch:true) @ cpu:0\n" in text
    assert text.endswith("chosen/fetch: fetch(chosen:index) @ cpu:0\n")


def test_other_kinds():
    machine = Machine()
    root, spec = machine.root, ab.placeholder((2,), "float32").spec
    frame = Frame("loop", root, 7)
    inner = Frame("loop/inner", frame, 1)
    index = machine.add(Node("feed", "n", "gpu:0", root, (), [spec]))
    three = machine.add(Node("switch_n", "choose", "gpu:0", root, [index.output, index.output], [spec] * 3))
    chosen = machine.add(Node("merge", "chosen", "gpu:0", root, three.outputs, [spec]))
    enter = machine.add(Node("enter", "deep", "gpu:0", inner, [chosen.output], [spec]))
    record = machine.add(Node("record", "x", "gpu:0", frame, [enter.output], ()))
    record.history = 2
    send = machine.add(Node("send", "x", "gpu:0", root, [chosen.output], ()))
    receive = machine.add(Node("recv", "x", "cpu:0", root, (), [None]))
    send.peer, receive.peer, send.lossy = receive, send, True
    last = machine.add(Node("fetch", "x", "cpu:0", root, [receive.output], ()))
    last.controls = [chosen.done]
    assert dump_machine(machine) == (
        "step on cpu:0, gpu:0:\n"
        "    n: float32[2] = feed() @ gpu:0\n"
        "    choose:0: float32[2], choose:1: float32[2], choose:2: float32[2] = switch_n(n, n) @ gpu:0\n"
        "    chosen: float32[2] = merge(choose:0, choose:1, choose:2) @ gpu:0\n"
        "    x/send: send[lossy](chosen) @ gpu:0 to x/recv @ cpu:0\n"
        "    x/recv: signal = recv() @ cpu:0 from x/send @ gpu:0\n"
        "    x/fetch: fetch(x/recv) @ cpu:0 after chosen\n"
        "    frame loop[parallel_iterations=7]:\n"
        "        frame loop/inner[parallel_iterations=1]:\n"
        "            deep: float32[2] = enter(chosen) @ gpu:0\n"
        "        x: record[history=2](deep) @ gpu:0\n"
    )


def test_histories():
    machine = Machine()
    frame, spec = Frame("loop", machine.root, 3), ab.placeholder((2,), "float32").spec
    early = machine.add(Node("collect", "loop/history", "cpu:0", frame, (), [spec]))
    start = machine.add(Node("enter", "loop/x", "cpu:0", frame, (), [spec]))
    record = machine.add(Node("record", "loop/body/x", "cpu:0", frame, [start.output], ()))
    early.history = record.history = 1
    assert in_order(machine) == [start, record, early]
    assert re.findall("n2 -> n0 (.*);", to_dot(machine)) == ["[style=dotted]"]
    assert r'label="body/x\nrecord"' in to_dot(machine)
    assert "loop/history: float32[2] = collect[history=1]() @ cpu:0\n" in dump_machine(machine)


def lowered_gradient(joined: bool) -> Machine:
    """A loop with a branch inside, and its gradient, lowered whole, with every tanh on another device."""
    n, x = ab.placeholder((), "int32", "n"), ab.placeholder((3,), "float32", "x")

    def body(i: Any, h: Any) -> Any:
        return i + 1, ab.cond(ops.sum(h) > 0, lambda: ops.tanh(h) * x, lambda: h - 1.0)

    _, h = ab.while_loop(lambda i, _: i < n, body, (0, x), name="loop")
    fetches = [h, ab.gradients(h, [x])[0]]
    lowering = Lowering(lambda o: "cpu:1" if o.type == "tanh" else "cpu:0", lambda _: True, "cpu:0")
    machine = lowering.run(needed_operations(h.graph, fetches, [n, x]), [n, x], fetches)
    if joined:
        cluster(machine)
    cut(machine)
    return machine


@pytest.mark.parametrize("joined", [False, True])
def test_structured_loops(joined: bool):
    machine = lowered_gradient(joined)
    text = dump_machine(machine)
    for node, name in node_names(machine).items():
        numbers = node.kind == "const" and node.specs[0] is not None and node.specs[0].shape == ()
        assert numbers or re.search(rf"^ *{re.escape(name)}:", text, re.MULTILINE)
    assert len(re.findall("^ *frame ", text, re.MULTILINE)) == 2
    assert " = collect[history=" in text
    assert text.count(": record[history=") == text.count(" = collect[history=")
    checked(machine)


def test_nothing():
    assert dump_machine(Machine()) == "step on no device:\n"
    assert to_dot(Machine()).startswith("digraph step {")


# --- names and order ------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "a/op", "a/merge", "a/merge_1"]), st.sampled_from(["op", "merge", "send"]))
    )
)
def test_names_differ(made: list[tuple[str, str]]):
    machine = Machine()
    for name, kind in made:
        machine.add(Node(kind, name, "cpu:0", machine.root))
    names = node_names(machine)
    assert len(set(names.values())) == len(names) == len(made)
    for node, name in names.items():
        assert name.startswith(node.name)
        if Counter(made)[node.name, node.kind] == len([True for other, _ in made if other == node.name]) == 1:
            assert name == node.name


def test_the_order_of_what_was_added_late():
    machine = over_two_devices()
    ordered = in_order(machine)
    assert sorted(map(id, ordered)) == sorted(map(id, machine.nodes))
    position = {node: number for number, node in enumerate(ordered)}
    for node in ordered:
        late = [value.node for value in node.sources if position[value.node] > position[node]]
        assert all((node.kind, source.kind) == ("merge", "next_iteration") for source in late)
        assert node.kind != "recv" or position[node.peer or node] < position[node]


def test_a_cycle_that_no_loop_makes_is_shown_all_the_same():
    machine = Machine()
    first, second = (machine.add(Node("identity", name, "cpu:0", machine.root)) for name in "ab")
    first.inputs, second.inputs = [Value(second)], [Value(first)]
    assert in_order(machine) == [first, second]


# --- drawings -------------------------------------------------------------------------------------------------------

STRING = r'"(?:[^"\\\n]|\\[\\"n])*"'
ATTRIBUTES = rf"\[\w+=(?:{STRING}|[\w.]+)(?:, \w+=(?:{STRING}|[\w.]+))*\]"
LINES = [
    r"digraph step \{",
    rf"(?:graph|node|edge) {ATTRIBUTES};",
    r"subgraph cluster_\w+ \{",
    rf"\w+={STRING}; (?:\w+=(?:{STRING}|\w+); ?)+",
    rf"\w+ {ATTRIBUTES};",
    rf"\w+ -> \w+(?: {ATTRIBUTES})?;",
    r"\}",
]


def checked(machine: Machine) -> str:
    """The drawing of a machine: of lines of known forms, with nested boxes, and edges between nodes that there are."""
    text = to_dot(machine)
    depth, nodes = 0, set[str]()
    for line in text.splitlines():
        assert any(re.fullmatch(form, line.strip()) for form in LINES), line
        depth += line.endswith("{") - (line.strip() == "}")
        assert depth > 0 or line == "}"
        if re.match(r"\s*n\d+ \[", line):
            nodes.add(line.split()[0])
    ends = re.findall(r"^ *(n\d+) -> (n\d+)", text, re.MULTILINE)
    assert {end for pair in ends for end in pair} <= nodes
    assert len(nodes) == len(machine.nodes)
    crossing = sum(node.kind == "send" for node in machine.nodes)
    histories = sum(node.kind == "collect" for node in machine.nodes)  # each of which one node records
    assert len(ends) == sum(len(node.sources) for node in machine.nodes) + crossing + histories
    assert len(re.findall("style=bold", text)) == crossing
    return text


def test_a_drawing():
    machine = over_two_devices()
    text = checked(machine)
    assert text.count("subgraph") == 2  # the legend and the loop
    assert r'label="loop\nparallel_iterations=10"' in text
    colours = dict(re.findall(r'device\d \[label="([^"]+)", fillcolor="(#\w+)"', text))
    assert list(colours) == ["cpu:0", "cpu:1"]
    assert len(set(colours.values())) == 2
    for number, node in enumerate(machine.nodes):
        (line,) = re.findall(rf"^ *n{number} \[.*$", text, re.MULTILINE)
        assert (f'fillcolor="{colours[node.device]}"' in line) if node.device else ("fillcolor" not in line)
        assert line.startswith("    " * (2 if node.frame.name else 1) + "n")
    dashed = sum(
        value.port < 0 or value.node.specs[value.port] is None for node in machine.nodes for value in node.inputs
    )
    assert text.count("style=dashed") == dashed + sum(len(node.controls) for node in machine.nodes)
    assert text.count("constraint=false") == 3  # two loop variables, and the other device's control
    assert 'taillabel="T"' in text
    assert r'label="matmul\ntanh"' in text


def test_names_are_escaped():
    machine = Machine()
    frame = Frame('a "loop"\\n', machine.root, 3)
    spec = ab.placeholder((), "int32").spec
    first = machine.add(Node("identity", 'quoted "name"', "cpu:0", frame, (), [spec]))
    machine.add(Node("fetch", "back\\slash\nline", "cpu:1", frame, [first.output], ()))
    text = checked(machine)
    assert r'label="quoted \"name\"' in text
    assert r"back\\slash\nline" in text


def test_long_clusters_are_cut_short():
    x = ab.placeholder((3,), "float32")
    machine = Machine()
    chain = [x]
    for _ in range(12):
        chain.append(symbol_of(ops.tanh(chain[-1])))
    operations = [tensor.operation for tensor in chain[1:]]
    machine.add(Node("op", "chain", "cpu:0", machine.root, (), [x.spec], operations))
    assert r"tanh\n... 5 more" in checked(machine)


def test_more_devices_than_colours():
    machine = Machine()
    for number in range(25):
        machine.add(Node("no_op", f"n{number}", f"sim:{number}", machine.root))
    text = checked(machine)
    assert list(dict(re.findall(r'device\d+ \[label="([^"]+)", fillcolor="(#\w+)"', text))) == machine.devices
    assert machine.devices[2] == "sim:2"
