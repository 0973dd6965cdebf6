"""The example that translates Multi30k: its words and batches, and that it runs."""

import doctest
import json
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


def test_docstrings(example: ModuleType) -> None:
    assert doctest.testmod(example) == doctest.TestResults(failed=0, attempted=2)


def test_pairs_are_cut_to_the_least_width_that_holds_both_and_an_end(example: ModuleType) -> None:
    vocabularies = [[*example.MARKS, "a"], [*example.MARKS, "b"]]
    lengths = [(1, 1), (7, 1), (1, 8), (43, 2), (44, 1)]
    pairs = example.as_numbers(([["a"] * n for n, _ in lengths], [["b"] * n for _, n in lengths]), vocabularies)
    assert pairs.widths.tolist() == [8, 8, 12, 44]  # the last one does not fit
    assert pairs.x.shape == pairs.y.shape == (4, 44)
    assert pairs.y[2].tolist() == [3] * 8 + [0] * 36


def test_each_epoch_has_every_pair_once(example: ModuleType) -> None:
    random = np.random.default_rng(0)
    pairs = example.Pairs(random.integers(0, 9, (300, 44)), np.zeros((300, 44), "int32"), random.choice([8, 16], 300))
    pairs.y[:, 0] = np.arange(1, 301)
    batches = example.Batches(pairs, seed=0)
    orders = []
    for _ in range(2):
        seen = []
        for index in range(len(batches)):
            (x, shifted), y, weights = batches[index]
            assert x.shape == y.shape == shifted.shape == weights.shape
            assert set(pairs.widths[y[:, 0] - 1]) == {x.shape[1]}
            np.testing.assert_array_equal(shifted[:, 1:], y[:, :-1])
            assert set(shifted[:, 0]) == {example.START}
            assert weights.sum(axis=1).tolist() == [2] * len(x)  # a word and the first end
            seen += y[:, 0].tolist()
        assert sorted(seen) == list(range(1, 301))
        orders.append(seen)
        batches.on_epoch_end()
    assert orders[0] != orders[1]


def test_it_translates_beside_another_program(
    example: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figure, beside, arrays = (tmp_path / name for name in ("losses.svg", "other.json", "numbers.npz"))
    example.main(["--sample", f"--arrays={arrays}"])
    with np.load(arrays) as saved:
        right = [row[row != example.END].tolist() for row in saved["y_test"]]
        assert saved["settings"].tolist()[2:] == [32, 4]
    other = {"name": "Other 1.0", "translations": [[*right[:-1], [2]], right], "seconds": 7.2}
    beside.write_text(json.dumps({**other, "steps": [1, 30], "losses": [5.5, 4.5]}), "utf-8")

    with pytest.raises(SystemExit, match=r"The goal, a BLEU of 101\.0, was missed"):
        example.main(["--sample", "--epochs=2", "--least=101", f"--beside={beside}", f"--figure={figure}"])

    printed = capsys.readouterr().out
    assert re.search(r"BLEU of 50 test sentences: \d+\.\d, with one hypothesis \d+\.\d", printed)
    assert re.search(r"Other 1\.0: 100\.0, with one hypothesis 9\d\.\d; 7 s\.", printed)
    losses = [float(loss) for loss in re.findall(r"loss: (\d\.\d+)", printed)]
    assert losses[1] < losses[0] - 0.3
    assert figure.read_text().count("<polyline") == 2
