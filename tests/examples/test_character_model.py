"""The demo, tiny: each part does what the example says, and so does the whole, with a fresh process at its end."""

import math
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import anabranch as ab

TINY = {
    "characters": 20_000,
    "validation-characters": 4_000,
    "units": 24,
    "batch": 4,
    "window": 32,
    "epochs": 2,
    "longest-gram": 3,
    "length": 40,
    "margin": -10,
}


def test_text_survives_encoding(example: ModuleType) -> None:
    source = "def f(x):\n    return {'a': x}  # ~"
    assert example.decode(example.encode(source)) == source
    assert example.encode("é\t").tolist() == [example.UNKNOWN, example.UNKNOWN]
    assert example.decode([example.END, *example.encode("x")]) == "x"


def test_training_and_validation_text_are_of_different_files(example: ModuleType) -> None:
    training, validation, _ = example.read_library(30_000, 10_000)
    again, _, _ = example.read_library(30_000, 10_000)
    assert len(training) == 30_001
    assert len(validation) == 10_001
    np.testing.assert_array_equal(training, again)
    known = bytes(training.astype("uint8"))
    pieces = [bytes(validation[at : at + 100].astype("uint8")) for at in range(0, 9_900, 100)]
    assert not any(piece in known for piece in pieces)


def test_rows_of_windows_go_on_from_batch_to_batch(example: ModuleType) -> None:
    x, y = example.windows(np.arange(25), batch=2, length=3)
    assert x.shape == y.shape == (8, 3)
    assert x[0::2].ravel().tolist() == list(range(12))
    assert x[1::2].ravel().tolist() == list(range(12, 24))
    np.testing.assert_array_equal(y, x + 1)


def test_too_little_text_is_an_error(example: ModuleType) -> None:
    with pytest.raises(ValueError, match="5 characters are too few for one batch of 2 windows of 3"):
        example.windows(np.arange(6), batch=2, length=3)


@pytest.mark.parametrize("order", [1, 2, 4, 9])
def test_ngram_probabilities_of_all_characters_sum_to_one(example: ModuleType, order: int) -> None:
    training, validation, _ = example.read_library(5_000, 500)
    grams = example.NGrams(training, order)
    for position in (0, 3, 100, 400):
        context = validation[: position + 1]
        every = [
            grams.probabilities(np.append(context, character), [0.6, 0.9])[:, -1]
            for character in range(example.CHARACTERS)
        ]
        np.testing.assert_allclose(np.sum(every, axis=0), 1.0)


def test_unigrams_are_discounted_counts(example: ModuleType) -> None:
    text = np.array([example.END, 2, 2, 2, 3])
    found = example.NGrams(text, 1).probabilities(np.array([example.END, 2, 3, 4]), [0.5])[0]
    spare = 0.5 * 2 / 4 / example.CHARACTERS  # both kinds of characters give half a count to all
    np.testing.assert_allclose(found, [2.5 / 4 + spare, 0.5 / 4 + spare, spare])


def test_longer_grams_predict_better_until_they_are_too_rare(example: ModuleType) -> None:
    training, validation, _ = example.read_library(50_000, 5_000)
    losses = example.measure_baseline(training, validation, [1, 2, 3])
    assert losses[3] < losses[2] < losses[1] < math.log(example.CHARACTERS)


@pytest.fixture(scope="module")
def model(example: ModuleType) -> ab.Model:
    ab.utils.set_random_seed(1)
    return example.build_model(units=8, batch=2)


def test_cell_is_the_layer_normalised_lstm(example: ModuleType) -> None:
    cell = example.LayerNormLSTMCell(3)
    rng = np.random.default_rng(0)
    x, h, c = (rng.normal(size=(2, size)).astype("float32") for size in (5, 3, 3))
    output, (same, memory) = cell(x, [h, c])
    kernel, recurrent, gain, shift = (weight.numpy() for weight in cell.weights)
    gates = (x @ kernel + h @ recurrent).reshape(2, 4, 3)
    gates = (gates - gates.mean(-1, keepdims=True)) / np.sqrt(gates.var(-1, keepdims=True) + 1e-5) * gain + shift
    i, f, g, o = gates.swapaxes(0, 1)

    def sigmoid(z: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-z))

    expected = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(g)
    np.testing.assert_allclose(memory, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(output, sigmoid(o) * np.tanh(expected), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(output, same)


def test_writer_keeps_the_prompt_and_the_limit(example: ModuleType, model: ab.Model) -> None:
    write = example.make_writer(model, stop=-1, temperature=1.0, seed=3)  # no character has this number
    prompt = example.encode("import ")
    text = write(prompt, 30)
    assert len(text) == 30
    assert text[:7].tolist() == prompt.tolist()
    assert len(write(prompt, 12)) == 12


def test_writer_ends_with_its_stop_character(example: ModuleType, model: ab.Model) -> None:
    write = example.make_writer(model, stop=5, temperature=1.0, seed=3)
    prompt = np.array([5, 6], "int32")  # a stop character in the prompt does not count
    text = write(prompt, 100_000)
    assert text[:2].tolist() == [5, 6]
    assert text[-1] == 5
    assert 5 not in text[2:-1]


def test_writer_repeats_itself_with_the_same_seed_only(example: ModuleType, model: ab.Model) -> None:
    def written(seed: int) -> list[int]:
        return example.make_writer(model, -1, 1.0, seed)(example.encode("x"), 50).tolist()

    assert written(1) == written(1)
    assert written(1) != written(2)


def test_demo_learns_saves_and_writes_in_a_fresh_process(
    example: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    losses = example.main([f"--{name}={value}" for name, value in {**TINY, "output": tmp_path}.items()])
    assert losses["last"] < losses["first"] < math.log(example.CHARACTERS)
    assert (tmp_path / "character_model.keras").is_file()
    printed = capfd.readouterr().out
    assert re.search(r"3-grams \d\.\d{3}\n", printed)
    _, heading, written = printed.partition('characters after "class ", in one call ---\n')
    assert heading
    assert written.startswith("class ")
    assert written.count("\n    def ") >= 5


@pytest.mark.slow
def test_a_loss_above_that_of_ngrams_is_a_failure(example: ModuleType, tmp_path: Path) -> None:
    options = {**TINY, "characters": 4_000, "epochs": 1, "units": 4, "margin": 9, "output": tmp_path}
    with pytest.raises(SystemExit, match="The goal, a loss 9 or more below the 3-grams', was missed"):
        example.main([f"--{name}={value}" for name, value in options.items()])


@pytest.mark.slow
def test_generate_works_alone(example: ModuleType, model: ab.Model, tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    model.save(path)
    command = [sys.executable, str(example.__file__), "--generate", str(path), "--length", "20", "--seed", "4"]
    first, second = (subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(2))
    assert first == second
    assert 'lines after "    def "' in first


@pytest.mark.slow
def test_full_demo_beats_the_ngrams_clearly(example: ModuleType, tmp_path: Path) -> None:
    losses = example.main(["--output", str(tmp_path)])
    assert losses["last"] < losses["baseline"] - 0.03
