"""Models that go elsewhere: to Keras with weights of int8, from folders of public architectures, to onnxruntime.

A classifier of digits is quantised and saved as Keras opens it. A small GPT-2 is saved as other libraries load it, and
generates. A model with a cell of its own becomes an ONNX file: onnxruntime has no code of the cell, its loop is in the
file. Its answers are compared with `predict`, at several numbers of sentences and lengths, a length of zero among them.

    python examples/interchange.py [--epochs N] [--output FOLDER]

It needs ``pip install 'anabranch[examples,onnx]' onnxruntime``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import layers, optim

TOLERANCE = 1e-5
MOST_LOST = 0.005


class LeakyCell(layers.Layer):
    """Keeps nine tenths of its state at each step and adds one tenth of news."""

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = self.state_size = units

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(shape=(input_shape[-1], self.units), name="kernel")
        self.recurrent_kernel = self.add_weight(shape=(self.units, self.units), name="recurrent_kernel")

    def call(self, x: Any, states: Any) -> Any:
        (h,) = states
        h = 0.9 * h + 0.1 * ab.ops.tanh(x @ self.kernel + h @ self.recurrent_kernel)
        return h, [h]


def trained_model(epochs: int) -> ab.Model:
    """A model that says which of 8 letters comes next, for letters as one-hot vectors."""
    ab.utils.set_random_seed(1)
    letters = np.tile(np.arange(8), (40, 3))
    x, y = np.eye(8, dtype="float32")[letters[:, :-1]], letters[:, 1:]
    model = ab.Sequential([layers.RNN(LeakyCell(32), return_sequences=True), layers.Dense(8, "softmax")])
    model.compile(optimizer=optim.Adam(1e-2), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(x, y, epochs=epochs, verbose=0)
    print(f"Trained: loss {history.history['loss'][0]:.2f} -> {history.history['loss'][-1]:.2f}.")
    return model


def run_in_onnxruntime(path: Path, x: Any) -> Any:
    """Return what onnxruntime computes from a file."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def onnx_difference(model: ab.Model, folder: Path) -> float:
    """Export a model; the largest difference between onnxruntime's answers and `predict`."""
    path = folder / "letters.onnx"
    model.export(path, format="onnx", input_signature=[ab.InputSpec(shape=(None, None, 8), dtype="float32", name="x")])
    generator = np.random.default_rng(0)
    worst = 0.0
    for sentences, length in ((5, 12), (1, 40), (3, 0)):
        x = generator.normal(size=(sentences, length, 8)).astype("float32")
        found, wanted = run_in_onnxruntime(path, x), np.asarray(model.predict(x, verbose=0))
        if found.shape != wanted.shape:
            raise SystemExit(f"onnxruntime gives shape {found.shape}, predict {wanted.shape}.")
        worst = max(worst, float(np.abs(found - wanted).max(initial=0)))
        print(f"{sentences} sentences of {length} letters: shape {found.shape}, difference {worst:.1e}")
    return worst


def digits() -> tuple[Any, Any]:
    """Images of digits as rows of 64 numbers, and what they are."""
    from sklearn.datasets import load_digits

    data: Any = load_digits()
    return (data.data / 16).astype("float32"), data.target


def quantised_inference(folder: Path) -> dict[str, float]:
    """Train a classifier, quantise it, and save it as Keras opens it.

    Args:
        folder: where to.

    Returns:
        By mode the part of the test images that are recognised.
    """
    x, y = digits()
    model = ab.Sequential(
        [
            ab.Input((64,)),
            layers.Dense(128, activation="relu", name="first"),
            layers.Dense(128, activation="relu", name="second"),
            layers.Dense(10, name="logits"),
        ]
    )
    loss = ab.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    model.fit(x[:1300], y[:1300], batch_size=50, epochs=15, verbose=0)
    model.save(folder / "float.keras")
    accuracy: dict[str, float] = {}
    for mode in ("float", "int8", "int4"):
        copy: Any = ab.load_model(folder / "float.keras")
        if mode != "float":
            copy.quantize(mode)
            copy.save(folder / f"digits_{mode}.keras")
        found = copy.predict(x[1300:], verbose=0).argmax(-1)
        accuracy[mode] = float((found == y[1300:]).mean())
    for mode, value in accuracy.items():
        size = (folder / ("float.keras" if mode == "float" else f"digits_{mode}.keras")).stat().st_size
        print(f"{mode:5} {value:6.1%} right, {size / 1000:6.0f} kB")
    return accuracy


def public_architecture(folder: Path) -> list[list[int]]:
    """Make a small GPT-2, save it as other libraries load it, load it again, and generate from it.

    Args:
        folder: where to.

    Returns:
        What was generated for each prompt.
    """
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": 64,
        "n_positions": 32,
        "n_embd": 48,
        "n_layer": 2,
        "n_head": 4,
    }
    ab.pretrained.save(ab.pretrained.build(config), folder / "gpt2")
    gpt2 = ab.pretrained.load(folder / "gpt2", quantize="int8")
    logits = gpt2.predict(np.array([[1, 2, 3]], "int32"), verbose=0)
    decoder = ab.pretrained.decoder(gpt2, end_token=0, max_length=16, slots=4)
    found = [tokens.tolist() for tokens in decoder.generate([[1, 2, 3], [4]], max_tokens=6)]
    print(f"GPT-2 from {folder / 'gpt2'}: logits {logits.shape}, generated {found}")
    return found


def main(arguments: Sequence[str] | None = None) -> float:
    """Run the example; the largest difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--output", help="where the file is kept; by default nowhere")
    options = parser.parse_args(arguments)
    model = trained_model(options.epochs)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(options.output or folder)
        accuracy = quantised_inference(target)
        public_architecture(target)
        difference = onnx_difference(model, target)
    if accuracy["float"] - accuracy["int8"] > MOST_LOST:
        raise SystemExit(f"The goal, at most {MOST_LOST:.1%} lost by int8, was missed: {accuracy}.")
    if difference > TOLERANCE:
        raise SystemExit(f"The goal, predict's numbers within {TOLERANCE}, was missed: {difference:.1e}.")
    print(f"onnxruntime gives predict's numbers within {difference:.1e}.")
    return difference


if __name__ == "__main__":
    main()
