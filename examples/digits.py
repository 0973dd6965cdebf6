"""Handwritten digits with the functional interface: two ways of looking at an image, brought together.

One branch is a small residual network with batch normalisation; the other reads the image row by row, top down, with an
LSTM. In training each image is moved, turned and scaled a little, in the graph, so that it is another one each time.
The data come with scikit-learn, which is needed for this example only: pip install scikit-learn

    python examples/digits.py --figure digits.svg

He et al., "Deep Residual Learning for Image Recognition", 2016.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import layers, optim

TRAINING = 1437  # of 1,797 images
GOAL = 0.98


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """1,797 images [8, 8] with pixels from 0 to 1, and their digits."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise SystemExit("This example takes its images from scikit-learn: pip install scikit-learn") from error
    data: Any = datasets.load_digits()
    return (data.images / 16).astype("float32"), data.target.astype("int32")


def build_augmentation() -> ab.Sequential:
    """Moves images [batch, 8, 8, 1] by up to a pixel, turns them by up to 18 degrees and scales them, in training."""
    return ab.Sequential(
        [
            layers.RandomTranslation(0.1, 0.1, fill_mode="constant", seed=1),
            layers.RandomRotation(0.05, fill_mode="constant", seed=2),
            layers.RandomZoom(0.1, 0.1, fill_mode="constant", seed=3),
        ],
        name="augmentation",
    )


def build_model() -> ab.Model:
    """Images [batch, 8, 8] to the probabilities of ten digits."""
    image = ab.Input((8, 8), name="image")
    seen = build_augmentation()(layers.Reshape((8, 8, 1))(image))
    pixels = layers.ResidualBlock(16, name="fine")(seen)
    pixels = layers.ResidualBlock(32, strides=2, name="coarse")(pixels)
    rows = layers.LSTM(32, name="rows")(layers.Reshape((8, 8))(seen))
    both = layers.Dropout(0.3)(layers.Concatenate()([layers.Flatten()(pixels), rows]))
    return ab.Model(image, layers.Dense(10, activation="softmax", name="digit")(both), name="digits")


def draw_hardest(path: str, images: np.ndarray, digits: np.ndarray, chances: np.ndarray, count: int = 16) -> None:
    """The images of whose digits the model, which gives `chances` [images, 10], is the least sure."""
    from drawing import pictures

    right = chances[np.arange(len(digits)), digits]
    hardest = np.argsort(right)[:count]
    captions = [f"{digits[n]}: {right[n]:.0%}" for n in hardest]
    title = f"Probabilities of the right digits, for the {count} hardest of {len(digits)} test images"
    Path(path).write_text(pictures(title, captions, images[hardest].tolist()), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, test, and return the accuracy on images that were held back."""
    parser = argparse.ArgumentParser(description="Recognise handwritten digits.")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--least", type=float, default=GOAL, help="fail if the accuracy is lower")
    parser.add_argument("--figure", help="where to draw the hardest test images, as SVG")
    options = parser.parse_args(arguments)

    began = time.perf_counter()
    ab.utils.set_random_seed(0)
    images, digits = load_digits()
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[:TRAINING], order[TRAINING:]

    model = build_model()
    model.summary()
    rate = optim.schedules.CosineDecay(5e-3, options.epochs * -(-TRAINING // 32), alpha=0.02)
    model.compile(optimizer=optim.Adam(rate), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(images[train], digits[train], batch_size=32, epochs=options.epochs, verbose=2)
    _, accuracy = model.evaluate(images[test], digits[test], verbose=0)
    chances = model.predict(images[test], verbose=0)
    print(f"Ten test images, digits {digits[test[:10]]}, are recognised as {chances[:10].argmax(axis=-1)}.")
    print(f"Accuracy on {len(test)} test images: {accuracy:.3f}")
    print(f"All of it took {time.perf_counter() - began:.0f} s.")
    if options.figure:
        draw_hardest(options.figure, images[test], digits[test], chances)
    if accuracy < options.least:
        raise SystemExit(f"The goal, an accuracy of {options.least:.1%}, was missed.")
    return float(accuracy)


if __name__ == "__main__":
    main()
