"""Lines W21 to W25 and W27 to W30: a neural ODE, a transformer in training and generation, prediction for one row, a
click model, a U-shaped convnet, a minimal gated unit, Cholesky factors with their gradient, loops of other fields."""

from __future__ import annotations

from goals import at_most, at_most_milliseconds
from line import Line

MODELS = (
    Line(
        "W21",
        "train step of a neural ODE: 40 steps of RK4 through a field of two layers, 64 states of 16 numbers, SGD",
        {},
        "w21_neural_ode",
        "w21",
        {"anabranch": at_most(0.55)},
        ("jax_scan", "torch_compile", "torch_eager"),
        slow=frozenset({"torch_compile"}),
        losses=(1.747705, 1.613512, 1.502027),
    ),
    Line(
        "W22",
        "train step of a transformer of 4 layers of 256 features on 8 sequences of 128 tokens, SGD",
        {"task": "train"},
        "w22_transformer",
        "w22",
        {"anabranch": at_most(0.7)},
        ("torch_eager", "jax_raw"),
        losses=(7.244796, 6.916044, 6.698967),
        most_rounds=2,
    ),
    Line(
        "W23",
        "64 tokens for each of 8 sequences by that transformer, with keys and values kept",
        {"task": "generate"},
        "w22_transformer",
        "w22",
        {"anabranch": at_most(0.55)},
        ("torch_eager", "jax_raw"),
        losses=(2.990581,) * 3,
        most_rounds=2,
    ),
    Line(
        "W24",
        "a prediction for one row of 20 steps by two LSTMs of 128 units, by `predict_on_batch`",
        {},
        "w24_predict",
        "w24",
        {"anabranch": at_most(0.75)},
        ("jax_scan", "torch_eager"),
        losses=(-0.2268169,) * 3,
    ),
    Line(
        "W25",
        "train step of a click model of 26 tables of 10,000 rows, products of pairs and five layers, 512 rows, SGD",
        {},
        "w25_click_model",
        "w25",
        {"anabranch": at_most(0.55)},
        ("jax_at_add", "torch_sparse"),
        losses=(0.7317479, 0.7150209, 0.7188835),
    ),
    Line(
        "W27",
        "train step of a U-shaped convnet on 16 images of 64 x 64, SGD",
        {},
        "w27_u_net",
        "w27",
        {"anabranch": at_most(0.7)},
        ("torch_channels_last", "torch_eager", "jax_raw"),
        losses=(1.305867, 1.256344, 1.220484),
    ),
    Line(
        "W28",
        "train step of a minimal gated unit written by hand in a graph loop, 192 units, 48 rows, 50 steps, SGD",
        {},
        "w28_minimal_gated_unit",
        "w28",
        {"anabranch": at_most(0.7)},
        ("jax_scan",),
        losses=(0.4201201, 0.4121382, 0.4044581),
    ),
    *[
        Line(
            "W29",
            "the Cholesky factor of a matrix of N x N; with the gradient of a weighted sum of its elements",
            {"of": of, "N": n},
            "w29_cholesky",
            "w29",
            {"anabranch": at_most_milliseconds(milliseconds)},
            ("jax_raw",),
            ("numpy_raw",),
            losses=(result,) * 3,
        )
        for of, n, milliseconds, result in (
            ("factor", 400, 0.4, 1.264853),
            ("gradient", 400, 0.4 + 0.6, -0.2750364),
            ("factor", 2000, 24, 1.251574),
            ("gradient", 2000, 24 + 60, 0.2109187),
        )
    ],
    *[
        Line(
            "W30",
            "soft dynamic time warping of 60 by 60 rows, with its gradient; 100 steps of the heat equation by slices",
            {"of": of},
            "w30_loops",
            "w30",
            {"anabranch": at_most(1.0)},
            ("jax_scan",),
            losses=(result,) * 3,
        )
        for of, result in (("soft_dtw", 416.3987), ("heat", -274.0772))
    ],
)
