"""The example that recognises digits: that it learns, moves its images in training only, and says what it needs."""

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest


def test_digits_learn_and_fail_below_their_goal(
    example: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is an optional dependency of the examples")
    figure = tmp_path / "digits.svg"
    with pytest.raises(SystemExit, match=r"The goal, an accuracy of 101.0%, was missed."):
        example.main(["--epochs=4", "--least=1.01", f"--figure={figure}"])
    assert float(re.findall(r"test images: (\S+)", capsys.readouterr().out)[0]) > 0.8
    captions = [part.text or "" for part in ElementTree.fromstring(figure.read_text()) if part.tag.endswith("text")]
    assert len(captions) == 1 + 16
    chances = [int(each.split()[1].rstrip("%")) for each in captions[1:]]
    assert chances == sorted(chances)  # the hardest come first


def test_digits_are_moved_in_training_only(example: ModuleType) -> None:
    augmentation = example.build_augmentation()
    images = np.random.default_rng(0).uniform(size=(6, 8, 8, 1)).astype("float32")
    np.testing.assert_array_equal(augmentation(images, training=False), images)
    moved = [augmentation(images, training=True) for _ in range(2)]
    assert not np.array_equal(moved[0], moved[1])
    assert np.abs(moved[0] - images).max(axis=(1, 2, 3)).min() > 0.01  # each of them
    assert 0 <= moved[0].min() <= moved[0].max() <= 1.0001


@pytest.mark.slow
def test_digits_are_recognised(example: ModuleType) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is an optional dependency of the examples")
    assert example.main([]) >= example.GOAL


def test_digits_without_scikit_learn_say_what_to_install(example: ModuleType) -> None:
    program = (
        "import runpy, sys; sys.modules['sklearn'] = None; "
        f"runpy.run_path({str(example.__file__)!r}, run_name='__main__')"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "pip install scikit-learn" in result.stderr
    assert "Traceback" not in result.stderr
