"""CIFAR-10 with ResNet-20: photographs of ten kinds of things, and a network of 19 convolutions and one dense layer.

The network and its way of training are those of section 4.2 of the paper below: images are moved by up to four pixels
and mirrored, momentum is 0.9, weights decay. The paper trains for 164 epochs with three rates; here is one epoch by
default, and the rate rises to 0.1 and falls to 0 by a cosine. The files are fetched once into ``~/.keras/datasets``;
``--sample`` makes images of coloured shapes instead, and needs no network.

    python examples/cifar10.py --figure cifar10.svg

He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from beside import draw_losses, fit, make_parser, read_other

import anabranch as ab
from anabranch import layers, optim

GOAL = 0.45  # the accuracy after one epoch
BATCH = 128
RATE = 0.1
DECAY = 1e-3  # of weights, per rate; the paper adds 1e-4 to gradients, which momentum makes ten times of that
Images = tuple[np.ndarray, np.ndarray]  # uint8 [n, height, width, 3], and the numbers of their classes [n]


# --- data -----------------------------------------------------------------------------------------------------------


def load_images(sample: bool, path: str | None) -> tuple[Images, Images]:
    """Images and their classes, to train and to test with.

    Args:
        sample: make images of shapes.
        path: an .npz file with "x_train", "y_train", "x_test", "y_test" in the place of the public one.
    """
    if sample:
        return made_up_images(640, seed=0), made_up_images(200, seed=1)
    if path is None:
        (x_train, y_train), (x_test, y_test) = ab.datasets.cifar10.load_data()
        return (x_train, y_train[:, 0]), (x_test, y_test[:, 0])
    with np.load(path) as found:
        return (found["x_train"], found["y_train"]), (found["x_test"], found["y_test"])


def made_up_images(count: int, seed: int) -> Images:
    """Squares (odd classes) and crosses (even ones) in five colours, somewhere on a noisy image of 16 x 16 pixels.

    >>> images, classes = made_up_images(10, seed=0)
    >>> images.shape, sorted(set(classes.tolist())) == list(range(10))
    ((10, 16, 16, 3), True)
    """
    random = np.random.default_rng(seed)
    colours = np.array([[220, 40, 40], [40, 200, 40], [60, 60, 230], [220, 210, 40], [200, 60, 200]])
    images = random.integers(60, 130, (count, 16, 16, 3))
    classes = random.permutation(np.arange(count) % 10)
    for image, number in zip(images, classes, strict=True):
        top, left = random.integers(1, 7, 2)
        part = image[top : top + 8, left : left + 8]
        drawn = np.ones((8, 8), bool)
        if number % 2 == 0:
            drawn[[0, 1, 6, 7], :2] = drawn[[0, 1, 6, 7], -2:] = False
        part[drawn] = colours[number // 2]
    return images.astype("uint8"), classes.astype("uint8")


def normalised(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pixels from 0 to 1, less the mean image of those to train with."""
    train, test = (np.divide(images, 255, dtype="float32") for images in (train, test))
    mean = train.mean(axis=0)
    return train - mean, test - mean


# --- the model ------------------------------------------------------------------------------------------------------


def build_model(size: int, blocks: int = 3) -> ab.Model:
    """Images ``(size, size, 3)`` to logits of ten classes: ``6 * blocks + 2`` layers with weights."""
    image = ab.Input((size, size, 3))
    moved = layers.RandomTranslation(4 / size, 4 / size, fill_mode="constant", interpolation="nearest", seed=1)(image)
    hidden = layers.RandomFlip("horizontal", seed=2)(moved)
    hidden = layers.Conv2D(16, 3, padding="same", use_bias=False, kernel_initializer="he_normal")(hidden)
    hidden = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(hidden))
    for filters, strides in ((16, 1), (32, 2), (64, 2)):
        for number in range(blocks):
            hidden = layers.ResidualBlock(filters, strides=1 if number else strides, momentum=0.9)(hidden)
    return ab.Model(image, layers.Dense(10)(layers.GlobalAveragePooling2D()(hidden)), name=f"resnet{6 * blocks + 2}")


# --- the program ----------------------------------------------------------------------------------------------------


def train(parts: tuple[Images, Images], epochs: int, blocks: int) -> dict[str, Any]:
    """Train and test a model; the losses, the seconds of processor time, and the accuracy."""
    (x, y), (x_test, y_test) = parts
    model = build_model(x.shape[1], blocks)
    steps = epochs * -(-len(x) // BATCH)
    warm = steps // 5
    rate = optim.schedules.CosineDecay(0.0, steps - warm, warmup_target=RATE, warmup_steps=warm)
    model.compile(
        optim.SGD(rate, momentum=0.9, weight_decay=DECAY),
        ab.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    found = fit(model, x, y, steps=steps // epochs, batch_size=BATCH, epochs=epochs)
    _, accuracy = model.evaluate(x_test, y_test, batch_size=250, verbose=0)
    return {**found, "accuracy": float(accuracy)}


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and test; the accuracy on test images."""
    parser = make_parser(__doc__, "learn images of coloured shapes with a small model", 1, "the paper's model has 164")
    parser.add_argument("--images", help="an .npz file of images in the place of the public one")
    parser.add_argument("--least", type=float, help=f"fail below this accuracy; by default {GOAL}, with --sample never")
    options = parser.parse_args(arguments)
    goal = options.least if options.least is not None else 0.0 if options.sample else GOAL
    ab.utils.set_random_seed(1)

    (x, y), (x_test, y_test) = load_images(options.sample, options.images)
    x, y = x[: options.first], y[: options.first]
    x, x_test = normalised(x, x_test)
    if options.arrays:
        np.savez(options.arrays, x_train=x, y_train=y, x_test=x_test, y_test=y_test)
        return 0.0
    print(f"{len(x):,} images to learn from, {len(x_test):,} to test with.")
    found = train(((x, y), (x_test, y_test)), options.epochs, 1 if options.sample else 3)
    print(f"Accuracy: {found['accuracy']:.1%} of the test images.")
    other = read_other(options.beside)
    if other:
        print(f"{other['name']}: {other['accuracy']:.1%}, {other['seconds']:.0f} s.")
    draw_losses(options.figure, "Losses of ResNet-20 with CIFAR-10", found, other)
    if not found["accuracy"] >= goal:
        raise SystemExit(f"The goal, an accuracy of {goal:.1%}, was missed.")
    return found["accuracy"]


if __name__ == "__main__":
    main()
