"""The plan of what is measured: which rows make a line of the table, and what the line's goal is.

A *line* is one workload with one set of parameters. Its rows are ours, the peers (other frameworks: the best one is the
measure) and floors (hand-written NumPy or numba, shown for orientation, not counted as peers). Only the peers that were
fastest, or close to it, in a run of all of them are listed; `peers/run.py` runs the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from goals import FOR_COMPARISON, Goal, at_least_operations, at_most, at_most_plus, at_most_seconds, both, less_than
from line import Line
from plan_models import MODELS

ITERATIONS = 100_000


def _growing(sizes: Sequence[int], seconds: float | None) -> dict[str, Goal]:
    """The goals of rows of doubled sizes: each at most 2.6 times the one before, the last within a time."""
    goals = {f"anabranch_{sizes[0]}": FOR_COMPARISON}
    for before, size in pairwise(sizes):
        goals[f"anabranch_{size}"] = at_most(2.6, against=f"anabranch_{before}")
    if seconds is not None:
        last = f"anabranch_{sizes[-1]}"
        goals[last] = both(goals[last], at_most_seconds(seconds))
    return goals


STARTS = 2  # processes a round, after a first one that is reported apart
OPERATIONS = 20_000

LSTM_LOSSES = {
    32: (0.2884603, 0.2868838, 0.2853428),
    128: (0.2884651, 0.2878586, 0.2872607),
    512: (0.2884712, 0.2881114, 0.2877558),
}

ACTOR_CRITIC_LOSSES = (5.187443, 2.363786, -1.127637)

LINES = (
    *[
        Line(
            "W1",
            "train step of an LSTM of 512 units over 100 steps: gradients of weights and input, SGD; by `layers.LSTM` "
            "and by a cell written by hand in a loop",
            {"B": batch, "T": 100},
            "w01_lstm_train",
            "w01",
            {"anabranch": at_most(limit), "anabranch_loop": at_most(limit)},
            peers,
            ("numpy_raw",),
            losses=LSTM_LOSSES[batch],
            most_rounds=rounds,
        )
        for batch, limit, rounds, peers in (
            (32, 0.88, 3, ("torch_compile", "torch_eager", "jax_scan")),
            (128, 0.81, 3, ("torch_compile", "tf1_while", "torch_eager")),
            (512, 0.83, 2, ("tf1_dynamic_rnn", "torch_eager", "keras_tf")),
        )
    ],
    Line(
        "W2",
        "train step of a hand-written layer-normalised LSTM cell, 256 units, 100 steps, in a graph loop",
        {"B": 32, "T": 100},
        "w02_custom_cell",
        "w02",
        {"anabranch": at_most(0.7)},
        ("torch_compile_loop", "jax_scan", "torch_compile_cell", "tf1_while", "tf2_while"),
        slow=frozenset({"torch_compile_loop"}),
        losses=(0.2879559, 0.2872516, 0.2865579),
    ),
    Line(
        "W3",
        "train step of an LSTM of 256 units over 64 sequences of 10 to 200 steps, 60 on average; by `layers.LSTM` with "
        "a mask and by a loop written by hand",
        {},
        "w03_dynamic_rnn",
        "w03",
        {"anabranch": at_most(0.6), "anabranch_loop": at_most(0.6)},
        ("torch_padded", "torch_packed", "tf1_while", "tf2_while", "jax_scan_mask"),
        losses=(0.2885339, 0.2876462, 0.2875994),
    ),
    Line(
        "W4",
        "100,000 iterations of x = 0.999 x + 1 in one call",
        {"body": "scalar", "n": ITERATIONS},
        "w04_while_rate",
        "w04",
        {"anabranch": at_most(1.5)},
        ("jax_while", "pytensor_scan", "tf2_xla"),
        ("numpy_loop", "numba_loop"),
        losses=(999.9824,) * 3,
    ),
    Line(
        "W4",
        "100,000 products of 64x64 matrices in one call",
        {"body": "matmul", "n": ITERATIONS},
        "w04_while_rate",
        "w04",
        {"anabranch": at_most(1.0)},
        ("pytensor_scan", "jax_while", "tf2_xla"),
        ("numpy_loop", "numba_loop"),
        losses=(409.8136,) * 3,
    ),
    Line(
        "W5",
        "a chain of 10,000 additions of scalars, each executed",
        {"kind": "chain_add", "inter": 1},
        "w05_dispatch",
        "w05",
        {"anabranch": at_most(1.0)},
        ("tf1_session", "tf2_function"),
        ("numpy_out",),
        losses=(10000.0,) * 3,
    ),
    *[
        Line(
            "W6",
            "MLP 784-512-512-10, Adam, through `model.fit`, ms a step",
            {"B": batch},
            "w06_mlp_fit",
            "w06",
            {"anabranch": at_most(limit)},
            ("jax_raw", "keras_jax", "tf1_session"),
            ("numpy_raw",),
            losses=(loss,),
        )
        for batch, limit, loss in ((32, 0.9, 2.464759), (256, 0.92, 2.35455))
    ],
    Line(
        "W7",
        "convnet 28x28 (two 3x3 convolutions, pooling, two dense layers), batch 128, Adam, `model.fit`, ms a step",
        {},
        "w07_convnet_fit",
        "w07",
        {"anabranch": at_most(1.3)},
        ("keras_tf", "torch_raw"),
        losses=(5.614599,),
        most_rounds=2,
    ),
    *[
        Line(
            "W8",
            "train step of a table of 1,000,000 x 64, 20 rows a sample, batch 256, summed, and a dense layer",
            {"opt": optimizer},
            "w08_embedding",
            "w08",
            {"anabranch": at_most(limit)},
            ("torch_sparse", "tf1_indexed_slices", "jax_at_add"),
            ("numpy_raw",),
            losses=losses,
        )
        for optimizer, limit, losses in (
            ("sgd", 1.0, (2.322458, 2.307559, 2.339794)),
            ("adagrad", 0.8, (2.322458, 2.307492, 2.339041)),
        )
    ],
    Line(
        "W9",
        "peak memory of the process that trains W1's LSTM over 1,000 steps",
        {"B": 128, "T": 1000, "budget": 1, "reps": 2},
        "w09_memory",
        "w09",
        {"anabranch": at_most(0.5), "anabranch_loop": at_most(0.5)},
        ("tf1_dynamic_rnn", "keras_tf", "torch_eager"),
        losses=(0.2886581, 0.2883444, 0.2880342),
        most_rounds=1,
        measure="memory",
    ),
    Line(
        "W10",
        "train step of a mixture of experts, top 2 of 8, 4,096 tokens of 256 features, 1,024 hidden",
        {},
        "w10_moe",
        "w10",
        {"anabranch": at_most(0.93)},
        ("tf1_partition", "tf2_partition", "torch_gather_compile", "torch_gather"),
        losses=(0.8001498, 0.7642552, 0.7354586),
    ),
    Line(
        "W11",
        "cold process to the end of the first trained step of W6's model",
        {"runs": STARTS},
        "w11_startup",
        "w11",
        {"anabranch": at_most(0.35), "anabranch_cold_cache": both(at_most(0.6), at_most_seconds(0.8))},
        ("jax_raw", "torch_raw", "keras_jax"),
        ("numpy_import",),
    ),
    Line(
        "W12",
        "train step of adaptive computation time: a loop of 4.6 rounds on average inside a loop of 50 steps",
        {"parallel": 10},
        "w12_act",
        "w12",
        {"anabranch": at_most(0.5)},
        ("tf1_while", "jax_bounded_scan", "tf2_while"),
        losses=(0.6340973, 0.6337488, 0.6334012),
    ),
    *[
        Line(
            "W13",
            "beam search over an LSTM decoder of 256 units, batch 32, 4 beams, rows that end after 6 to 49 tokens; the "
            "floor takes rows that are done out of the batch, as ours does",
            {"V": vocabulary},
            "w13_beam_search",
            "w13",
            {"anabranch": at_most(1 / 3)},  # at least 3 times as fast
            ("torch_eager",),
            ("torch_eager_compact",),
            losses=(summary,) * 3,
        )
        for vocabulary, summary in ((1000, -33.08436), (8000, -55.75784))
    ],
    Line(
        "W14",
        "train step of a binary Tree-LSTM of 150 units on 25 random trees of 20 to 50 leaves; the floor computes all "
        "trees level by level, as ours does, with the levels prepared outside the step",
        {},
        "w14_tree_lstm",
        "w14",
        {"anabranch": at_most(0.5)},
        ("torch_eager",),
        ("torch_levels",),
        losses=(0.3080856, 0.3043728, 0.3008733),
    ),
    *[
        Line(
            "W15",
            "train step of four convnets on images of 224 x 224 (Overfeat: 231 x 231), SGD, by `train_on_batch`",
            {"model": model, "B": batch},
            "w15_convnets",
            "w15",
            {"anabranch": goal},
            ("torch_channels_last", "torch_eager", "keras_jax", "keras_tf", "keras_tf_nojit"),
            losses=losses,
            most_rounds=1,
        )
        for model, batch, goal, losses in (
            ("GoogleNet", 8, at_most(0.85), (7.079650, 6.753713, 6.432356)),
            ("AlexNet", 16, FOR_COMPARISON, (6.903341, 6.514638, 6.133180)),
            ("Overfeat", 8, FOR_COMPARISON, (6.972293, 6.492410, 6.017076)),
            ("OxfordNet", 4, at_most(0.75), (7.213612, 4.918798, 2.964942)),
        )
    ],
    *[
        Line(
            "W16",
            f"train step of a language model of 40,000 words, an LSTM of 512 units over 512 words: {what}",
            {"softmax": softmax},
            "w16_softmax",
            "w16",
            {"anabranch": FOR_COMPARISON},
            ("torch_eager", "keras_tf"),
            losses=losses,
            most_rounds=2,
        )
        for softmax, what, losses in (
            ("full", "a softmax over all words", (10.5987, 10.58702, 10.57995)),
            ("sampled", "one over 512 words that were drawn beforehand", (8.587524, 8.618537, 8.714785)),
        )
    ],
    *[
        Line(
            "segments",
            what,
            {"of": of},
            "none",
            "segments",
            {"anabranch": at_most(most, against="alone"), "alone": FOR_COMPARISON},
            (),
        )
        for of, most, what in (
            ("bidirectional", 0.9, "train step of a bidirectional net, 64 units, 200 steps, against a loop at a time"),
            ("ensemble", 0.8, "states of four recurrent nets, 64 units, 200 steps, against a net at a time"),
            ("W2", 1.05, "W2 with all threads, against one thread of ours"),
            ("W6", 1.05, "W6 of batch 32 with all threads, against one thread of ours"),
            ("W12", 1.05, "W12 with all threads, against one thread of ours"),
            ("W24", 1.05, "W24, a prediction for one row, with all threads, against one thread of ours"),
            ("u_net", 0.65, "a U-shaped convnet, NumPy imported first, with all threads, against one thread of ours"),
        )
    ],
    Line(
        "import",
        "the import alone, in a cold process",
        {"runs": STARTS},
        "w11_startup",
        "w11",
        {"anabranch_import": at_most_plus(2, 50, against="numpy_import")},
        (),
        ("numpy_import",),
    ),
    Line(
        "build",
        "operations of 20 kinds built by the public functions and operators, one after the other",
        {"of": "operations", "n": OPERATIONS},
        "common",
        "build",
        {"anabranch_operations": at_least_operations(50_000, OPERATIONS)},
        (),
    ),
    Line(
        "build",
        "Inception-v3 in replicas, its gradient and SGD updates (9,000 to 72,000 operations), from nothing to the "
        "compiled step",
        {"of": "training step", "runs": STARTS},
        "common",
        "build",
        {
            "anabranch_9k": at_most_seconds(2),
            "anabranch_18k": at_most_seconds(4),
            "anabranch_36k": at_most_seconds(8),
            "anabranch_36k_cold_cache": at_most_seconds(8),
            "anabranch_72k": at_most(5.0, against="anabranch_18k"),
        },
        (),
    ),
    *[
        Line(
            "W26",
            what,
            {"of": of, "measured": measured},
            "none",
            "w26",
            _growing(sizes, limit),
            (),
        )
        for of, measured, sizes, limit, what in (
            (
                "scalar loop",
                "step",
                (200, 400, 800, 1600, 3200),
                None,
                "a loop of 100 iterations whose body has 200 to 3,200 operations on scalars, with its gradient: a step",
            ),
            ("scalar loop", "preparing", (200, 400, 800, 1600, 3200), None, "the same, from the graph to the program"),
            (
                "nested conds",
                "preparing",
                (5, 6, 7, 8),
                0.5,
                "conditions in both branches of conditions, 5 to 8 deep, with the gradient, to the program",
            ),
            (
                "chains",
                "preparing",
                (500, 1000, 2000),
                2.0,
                "500 to 2,000 chains of five operations that end in one, from the graph to the program",
            ),
            (
                "loops in a row",
                "preparing",
                (75, 150, 300),
                1.0,
                "75 to 300 loops one after the other, with the gradient, from the graph to the program",
            ),
            (
                "scalar chain",
                "preparing",
                (1000, 2000, 4000),
                None,
                "1,000 to 4,000 operations on one scalar, with the gradient, from the graph to the program",
            ),
            (
                "layer stack",
                "preparing",
                (50, 100, 200),
                None,
                "50 to 200 dense layers with their gradient and SGD, from the graph to the program",
            ),
            (
                "variables",
                "preparing",
                (100, 200, 400),
                None,
                "100 to 400 variables under Adam, from the graph to the program",
            ),
            (
                "nested loops",
                "preparing",
                (2, 4, 8),
                None,
                "loops in loops, 2 to 8 deep, with the gradient, from the graph to the program",
            ),
        )
    ],
    *[
        Line(
            "W17",
            what,
            {"kind": kind},
            "w17_values",
            "w17",
            {"anabranch": goal},
            peers,
            losses=losses,
        )
        for kind, what, goal, peers, losses in (
            (
                "ops",
                "ten calls of ops on values of 1,000 float32, 200 times: products, tanh, sums, shapes, picks",
                at_most(2.1),
                ("torch_eager", "keras_torch", "keras_tf"),
                (),
            ),
            (
                "mlp",
                "a step of a small MLP by hand: values, a tape, updates of variables",
                at_most(2.9),
                ("torch_eager", "keras_tf"),
                (1.222721, 0.6927875, 0.6209342),
            ),
            (
                "actor_critic",
                "Keras's actor-critic script: an episode of 10 calls of the model under a tape, and its update",
                at_most(0.7),
                ("keras_tf",),
                ACTOR_CRITIC_LOSSES,
            ),
            (
                "dqn",
                "Keras's Deep Q-Network script: four actions, and an update by 32 rows",
                at_most(0.7),
                ("keras_tf",),
                (0.9495227, 0.9414764, 0.9334453),
            ),
        )
    ],
    *[
        Line(
            workload,
            what,
            {"net": net},
            "w18_small_convnets",
            "w18",
            {"anabranch": at_most(limit)},
            ("torch_eager", "torch_channels_last", "jax_raw"),
            slow=frozenset({"jax_raw"}),
            losses=losses,
            most_rounds=2,
        )
        for workload, net, limit, losses, what in (
            (
                "W18",
                "depthwise",
                0.6,
                (2.476355, 2.171524, 2.131173),
                "train step of a convnet of depthwise separable convolutions, 32 images of 64 x 64, SGD",
            ),
            (
                "W19",
                "residual",
                0.75,
                (5.405092, 3.595613, 3.00926),
                "train step of a residual convnet with batch normalisation, 64 images of 32 x 32, SGD",
            ),
        )
    ],
    Line(
        "W20",
        "a step of learning a Gaussian process of 400 points of 6 features: RBF kernel, likelihood by the Cholesky "
        "factor, gradient, SGD",
        {"n": 400},
        "w20_gaussian_process",
        "w20",
        {"anabranch": at_most(0.45)},
        ("jax_raw",),
        ("numpy_raw",),
        losses=(-5.72978, -9.169, -12.40465),
    ),
    *MODELS,
    *[
        Line(
            "placement",
            "simulated time of a step, as the operations are placed on simulated devices",
            {"graph": graph},
            "none",
            "placement",
            {
                "anabranch": less_than("single_device", "round_robin"),
                "single_device": FOR_COMPARISON,
                "round_robin": FOR_COMPARISON,
            },
            (),
        )
        for graph in ("lstm", "inception", "experts")
    ],
    Line(
        "training_loop",
        "train step of a tiny model through `fit`: 100 steps in a call (`steps_per_execution`), 10, or 1",
        {"units": 16},
        "none",
        "training_loop",
        {"anabranch": less_than("single"), "ten": FOR_COMPARISON, "single": FOR_COMPARISON},
        (),
    ),
    Line(
        "dqn",
        "an interaction of a Deep Q-Network, which learns at every 4th: one graph, against conditions in Python",
        {"every": 4},
        "none",
        "dqn",
        {"anabranch": at_most(0.826, against="from_python"), "from_python": FOR_COMPARISON},
        (),
    ),
    *[
        Line(
            "scheduling",
            "16 experts scheduled dynamically on 4 simulated devices in real time, against experts on devices in turn",
            {"load": load, "step": step},
            "none",
            "scheduling",
            {"anabranch": at_most(most, against="static"), "static": FOR_COMPARISON, "ideal": FOR_COMPARISON},
            (),
        )
        for load, most in (("zipf", 0.667), ("even", 1.05))
        for step in ("forward", "training")
    ],
    Line(
        "softmax",
        "train step of a language model of 40,000 words, an LSTM of 512 units over 512 words: a softmax over a sample "
        "of 512 against all",
        {"shards": 1},
        "none",
        "softmax",
        {"sampled": at_most(0.25, against="full"), "full": FOR_COMPARISON},
        (),
    ),
    *[
        Line(
            "softmax",
            "simulated time of the same, with words and softmax in shards on simulated devices",
            {"shards": shards, "devices": True},
            "none",
            "softmax",
            {"sampled": at_most(most, against="full"), "full": FOR_COMPARISON},
            (),
        )
        for shards, most in ((1, 0.25), (8, 1.0))
    ],
    Line(
        "scheduling",
        "Tree-LSTM over 16 trees on 4 simulated devices in real time, against one node after the other",
        {"trees": 16},
        "none",
        "scheduling",
        {"anabranch": at_most(0.33, against="in_order"), "in_order": FOR_COMPARISON},
        (),
    ),
)


def workloads() -> tuple[str, ...]:
    """Names that the command line takes, in order."""
    return tuple(dict.fromkeys(line.workload for line in LINES))
