"""The Tree-LSTM example: its graph against plain recursion, its batches, and that it learns."""

import doctest
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from shared.machines import idle_step

import anabranch as ab
from anabranch.engine.machine.program import MachineProgram
from anabranch.engine.passes.framework.prune import all_operations


def on_host(operations: Sequence[Any], feeds: Sequence[Any]) -> dict[Any, str]:
    return dict.fromkeys(all_operations([*[tensor.operation for tensor in feeds], *operations]), "cpu:0")


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def state_of(tree: Any, inputs: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The hidden state and memory of a tree's root, by recursion."""
    units = inputs.shape[1] // 5
    nothing = (np.zeros(units), np.zeros(units))
    below = [state_of(child, inputs, weights) for child in tree.children] or [nothing, nothing]
    gates = inputs[tree.symbol] + np.concatenate([below[0][0], below[1][0]]) @ weights
    entering, left, right, leaving, candidate = np.split(gates, 5)
    memory = sigmoid(entering) * np.tanh(candidate) + sigmoid(left) * below[0][1] + sigmoid(right) * below[1][1]
    return sigmoid(leaving) * np.tanh(memory), memory


def test_loss_and_gradients_are_those_of_plain_recursion(example: ModuleType) -> None:
    trees = example.draw_trees(np.random.default_rng(3), 5, (1, 6))
    with ab.Graph().as_default():
        model = example.TreeLSTM(units=3, learning_rate=0.1)
        weights = [model.from_symbol, model.from_children, model.readout]
        slopes = [ab.ops.convert_to_tensor(slope) for slope in ab.gradients(model.loss, weights)]
        session = ab.Session()
        loss, accuracy, *slopes = session.run([model.loss, model.accuracy, *slopes], model.feeds(trees))
        values = [np.asarray(value, "float64") for value in session.run(weights)]

    def plain(from_symbol: np.ndarray, from_children: np.ndarray, readout: np.ndarray) -> tuple[float, float]:
        nodes = [node for tree in trees for node in example.nodes_of(tree)]
        logits = np.array([(state_of(node, from_symbol, from_children)[0] @ readout)[0] for node in nodes])
        signs = np.array([1.0 if node.value else -1.0 for node in nodes])
        roots = np.array([any(node is tree for tree in trees) for node in nodes])
        return float(np.mean(np.logaddexp(0, -signs * logits))), float(np.mean((logits * signs > 0)[roots]))

    wanted = plain(*values)
    np.testing.assert_allclose([loss, accuracy], wanted, rtol=1e-5)
    random = np.random.default_rng(0)
    for position, slope in enumerate(slopes):
        along = random.normal(size=slope.shape)
        losses: list[float] = []
        for step in (1e-5, -1e-5):
            moved = [*values]
            moved[position] = values[position] + step * along
            losses.append(plain(*moved)[0])
        difference = (losses[0] - losses[1]) / 2e-5
        np.testing.assert_allclose(np.sum(slope * along), difference, rtol=1e-4, atol=1e-6)


def test_trees_are_worth_what_python_says(example: ModuleType) -> None:
    trees = example.draw_trees(np.random.default_rng(1), 50, (1, 12))
    for tree in trees:
        text = str(tree).replace("xor", "!=").replace("T", "True").replace("F", "False")
        assert tree.value == eval(text)
    assert len({tree.height for tree in trees}) > 4
    batch = example.Batch.of(trees)
    seen: set[tuple[int, int]] = set()
    for (number, node), below in zip(batch.keys.tolist(), batch.children.tolist(), strict=True):
        assert {(number, child) for child in below if child >= 0} <= seen  # children come before their parents
        seen.add((number, node))
    assert len(seen) == len(batch.keys)


def test_it_learns(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    losses, accuracy = example.main(["--quick", "--least=0.8"])
    assert np.mean(losses[:5]) > 0.5
    assert np.mean(losses[-5:]) < 0.2
    assert accuracy > 0.8
    printed = capsys.readouterr().out
    assert "step   40: loss" in printed
    assert f"{accuracy:.3f}" in printed


def test_too_low_an_accuracy_is_a_failure_with_a_figure(example: ModuleType, tmp_path: Path) -> None:
    figure = tmp_path / "accuracy.svg"
    with pytest.raises(SystemExit, match=r"The goal, an accuracy of 101.0%, was missed."):
        example.main(["--steps=6", "--batch=4", "--units=4", "--least=1.01", f"--figure={figure}"])
    lines = [part for part in ElementTree.fromstring(figure.read_text()) if part.tag.endswith("polyline")]
    assert [line.attrib["points"].count(",") for line in lines] == [6, 2, 2]  # larger trees after steps 1 and 5


@pytest.mark.slow
def test_it_reaches_its_goal(example: ModuleType) -> None:
    assert example.main([])[1] >= example.GOAL


def test_docstrings(example: ModuleType) -> None:
    assert doctest.testmod(example) == doctest.TestResults(failed=0, attempted=3)


def test_cells_scheduled_on_several_devices_give_the_same_in_less_time(example: ModuleType) -> None:
    trees = example.draw_trees(np.random.default_rng(3), 8, (1, 6))

    def run(scheduled: bool, window: int = 32) -> tuple[list[np.ndarray], float]:
        with ab.Graph().as_default() as graph:
            model = example.TreeLSTM(units=3, learning_rate=0.1, scheduled=scheduled)
            slopes = ab.gradients(model.loss, [model.from_symbol, model.from_children, model.readout])
            fetches = [model.loss, *map(ab.ops.convert_to_tensor, slopes)]
            feeds = model.feeds(trees)
            if not scheduled:
                return ab.Session().run(fetches, feeds), 0.0
            values = [np.asarray(value, tensor.dtype) for tensor, value in feeds.items()]
            program = MachineProgram(
                graph, fetches[: 1 + 3 * (window == 1)], list(feeds), assign=on_host, parallel_iterations=window
            )
            found = list(program(*values))
            return found, idle_step(program).engines["sim:0"].now()

    expected, _ = run(False)
    ab.config.set_devices(sim={"count": 4, "kernel_latency": 1e-3})
    try:
        (loss,), together = run(True)
        everything, in_turn = run(True, window=1)
    finally:
        ab.config.set_devices()
    np.testing.assert_allclose(loss, expected[0], rtol=1e-5)
    for value, right in zip(everything, expected, strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-4, atol=1e-6)
    nodes = sum(1 for tree in trees for _ in example.nodes_of(tree))
    assert in_turn > 2 * nodes * 1e-3  # a node after the other, forward and backward
    assert together < 0.35 * nodes * 1e-3
