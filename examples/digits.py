"""Handwritten digits with the functional interface: two ways of looking at an image, brought together.

One branch sees all 64 pixels at once; the other reads the image row by row, top down, with an LSTM. The data come with
scikit-learn, which is needed for this example only: pip install scikit-learn

    python examples/digits.py
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import layers, optim


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """1,797 images [8, 8] with pixels from 0 to 1, and their digits."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise SystemExit("This example takes its images from scikit-learn: pip install scikit-learn") from error
    data: Any = datasets.load_digits()
    return (data.images / 16).astype("float32"), data.target.astype("int32")


def build_model() -> ab.Model:
    """Images [batch, 8, 8] to the probabilities of ten digits."""
    image = ab.Input((8, 8), name="image")
    pixels = layers.Dense(64, activation="relu", name="pixels")(layers.Flatten()(image))
    rows = layers.LSTM(32, name="rows")(image)
    both = layers.Dropout(0.3)(layers.Concatenate()([pixels, rows]))
    return ab.Model(image, layers.Dense(10, activation="softmax", name="digit")(both), name="digits")


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, test, and return the accuracy on images that were held back."""
    parser = argparse.ArgumentParser(description="Recognise handwritten digits.")
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args(arguments)

    ab.utils.set_random_seed(0)
    images, digits = load_digits()
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[:1437], order[1437:]

    model = build_model()
    model.summary()
    model.compile(optimizer=optim.Adam(3e-3), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(images[train], digits[train], batch_size=32, epochs=options.epochs, validation_split=0.1)

    _, accuracy = model.evaluate(images[test], digits[test], verbose=0)
    guesses = model.predict(images[test[:10]], verbose=0).argmax(axis=-1)
    print(f"Ten test images, digits {digits[test[:10]]}, are recognised as {guesses}.")
    print(f"Accuracy on {len(test)} test images: {accuracy:.3f}")
    return float(accuracy)


if __name__ == "__main__":
    main()
