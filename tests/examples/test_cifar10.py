"""The example that learns CIFAR-10: its parts, and that it learns images of shapes."""

import doctest
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


def test_docstrings(example: ModuleType) -> None:
    assert doctest.testmod(example) == doctest.TestResults(failed=0, attempted=2)


def test_pixels_are_normalised_by_the_images_to_train_with(example: ModuleType) -> None:
    train, test = np.array([[0, 255], [51, 255]], "uint8"), np.array([[0, 0]], "uint8")
    x, x_test = example.normalised(train, test)
    np.testing.assert_allclose(x, [[-0.1, 0], [0.1, 0]], atol=1e-6)
    np.testing.assert_allclose(x_test, [[-0.1, -1]], atol=1e-6)
    assert x.dtype == x_test.dtype == "float32"


def test_the_network_is_resnet_20(example: ModuleType) -> None:
    model = example.build_model(32)
    counted = 9 * (3 * 16 + 6 * 16**2 + 16 * 32 + 5 * 32**2 + 32 * 64 + 5 * 64**2)  # convolutions
    counted += 16 * 32 + 32 * 64  # the two that fit an input to its output
    counted += 4 * (7 * 16 + 7 * 32 + 7 * 64)  # normalisations, of those two, too
    assert model.name == "resnet20"
    assert model.count_params() == counted + 65 * 10
    assert model.output_shape == (None, 10)


def test_it_learns_shapes_and_reads_images_from_a_file(
    example: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (x, y), (x_test, y_test) = example.load_images(True, None)
    np.savez(tmp_path / "images.npz", x_train=x[:3], y_train=y[:3], x_test=x_test[:2], y_test=y_test[:2])
    for read, made in zip(example.load_images(False, tmp_path / "images.npz"), ((x, y), (x_test, y_test)), strict=True):
        np.testing.assert_array_equal(read[0], made[0][: len(read[0])])
        np.testing.assert_array_equal(read[1], made[1][: len(read[1])])

    with pytest.raises(SystemExit, match=r"The goal, an accuracy of 101\.0%, was missed"):
        example.main(["--sample", "--epochs=4", "--least=1.01", f"--figure={tmp_path / 'losses.svg'}"])

    found = re.search(r"Accuracy: (\S+)% of the test images", capsys.readouterr().out)
    assert found is not None
    assert float(found[1]) > 40  # guesses have 10
    assert "<polyline" in (tmp_path / "losses.svg").read_text()
