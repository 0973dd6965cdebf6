"""The example that learns the Penn Treebank: its parts, and that it learns a made-up language."""

import doctest
import json
import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest

import anabranch as ab


def test_docstrings(example: ModuleType) -> None:
    assert doctest.testmod(example) == doctest.TestResults(failed=0, attempted=5)


@pytest.mark.parametrize(("words", "batch", "length"), [(100, 4, 6), (13, 1, 12), (26, 2, 12), (7, 2, 3)])
def test_windows_go_on_with_the_last_ones(example: ModuleType, words: int, batch: int, length: int) -> None:
    x, y = example.side_by_side(np.arange(words), batch, length)
    steps = (words // batch - 1) // length
    assert x.shape == y.shape == (steps * batch, length)
    for row in range(batch):
        begin = row * (words // batch)
        assert x[row::batch].ravel().tolist() == list(range(begin, begin + steps * length))
    np.testing.assert_array_equal(y, x + 1)


def test_states_go_on_within_a_text_and_begin_anew_with_each(example: ModuleType) -> None:
    ab.utils.set_random_seed(0)
    model = example.build_model(example.Settings(words=9, units=5, batch=2, length=4))
    text = np.random.default_rng(0).integers(0, 9, (2, 8)).astype("int32")
    whole = example.build_model(example.Settings(words=9, units=5, batch=2, length=8))
    whole.set_weights(model.get_weights())
    wanted = whole.predict(text, batch_size=2, verbose=0)

    for _ in range(2):
        example.reset_states(model)
        halves = [model.predict(text[:, part], batch_size=2, verbose=0) for part in (slice(4), slice(4, 8))]
        np.testing.assert_allclose(np.concatenate(halves, axis=1), wanted, rtol=1e-4, atol=1e-5)


def test_rates(example: ModuleType) -> None:
    assert [example.rate_of_epoch(epoch) for epoch in (0, 3, 4, 6)] == [20, 20, 10, 2.5]


def test_it_learns_a_made_up_language_beside_another_program(
    example: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figure, beside, arrays = (tmp_path / name for name in ("losses.svg", "other.json", "numbers.npz"))
    other = {"name": "Other 1.0", "valid": 3.5, "test": 3.6, "seconds": 7.2, "steps": [1, 100], "losses": [3.5, 2.5]}
    beside.write_text(json.dumps(other), "utf-8")
    example.main(["--sample", f"--arrays={arrays}"])

    with pytest.raises(SystemExit, match=r"The goal, a perplexity of 2\.0, was missed"):
        example.main(["--sample", "--epochs=3", "--most=2", f"--beside={beside}", f"--figure={figure}"])

    printed = capsys.readouterr().out
    found = re.search(r"Perplexity: .*, (\S+) of the test words", printed)
    assert found is not None
    assert 2.45 < float(found[1]) < 6  # by what the language is made of; guesses without a context have 40
    assert "Other 1.0: 3.5 and 3.6, 7 s." in printed
    lines = [part for part in ElementTree.fromstring(figure.read_text()) if part.tag.endswith("polyline")]
    assert [line.attrib["points"].count(",") for line in lines] == [3 * 119 // 5, 2]
    with np.load(arrays) as saved:
        assert saved["settings"].tolist() == [40, 32, 10, 10]
        np.testing.assert_array_equal(saved["x_train"][:, 1:], saved["y_train"][:, :-1])
