"""The CTC loss and decoding against sums over all ways to spread labels over frames."""

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.engine import ops
from anabranch.engine.autodiff import gradients
from anabranch.engine.control_flow.ctc import ctc_loss
from anabranch.engine.graph import Graph, Placeholder, TensorSpec, as_dtype
from anabranch.engine.session import Session
from anabranch.engine.testing import check_gradients


def evaluate(function: Any, *arrays: Any, known: bool = True) -> Any:
    """`function` of tensors with the values of `arrays`, whose shapes are known, or only ranks and classes."""
    with Graph().as_default() as graph:
        shapes = [a.shape if known else (None,) * min(a.ndim, 2) + a.shape[2:] for a in arrays]
        inputs = [
            graph.add(Placeholder(TensorSpec(shape, a.dtype)), (), "x").outputs[0]
            for shape, a in zip(shapes, arrays, strict=True)
        ]
        return Session().run(function(*inputs), dict(zip(inputs, arrays, strict=True)))


def log_probabilities(logits: Any) -> Any:
    wide = np.asarray(logits, "float64")
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def sequence(way: Any, blank: int) -> tuple[int, ...]:
    """The labels that a way stands for: repetitions are one, and blanks nothing."""
    return tuple(label for label, _ in itertools.groupby(way) if label != blank)


def all_sequences(logits: Any, blank: int) -> dict[tuple[int, ...], float]:
    """The probability of each label sequence, summed over all ways, [time, classes]."""
    logs = log_probabilities(logits)
    totals: dict[tuple[int, ...], float] = {}
    for way in itertools.product(range(logits.shape[1]), repeat=len(logits)):
        labels = sequence(way, blank)
        probability = float(np.exp(sum(logs[t, label] for t, label in enumerate(way))))
        totals[labels] = totals.get(labels, 0.0) + probability
    return totals


# --- the loss -------------------------------------------------------------------------------------------------------


@st.composite
def batches(draw: Any) -> Any:
    """Targets, logits and lengths of both, and the class of the blank."""
    batch, time, classes = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(2, 3))
    blank = draw(st.integers(0, classes - 1))
    labels = draw(st.integers(0, 3))
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    target = random.choice([c for c in range(classes) if c != blank], size=(batch, labels)).astype("int32")
    target_length = random.integers(0, labels + 1, batch).astype("int32")
    output_length = random.integers(0, time + 1, batch).astype("int32")
    return target, random.normal(size=(batch, time, classes)), target_length, output_length, blank


@given(batches(), st.booleans())
def test_loss_is_the_sum_over_all_ways(case: Any, known: bool):
    target, logits, target_length, output_length, blank = case
    loss = evaluate(
        lambda *inputs: ctc_loss(*inputs, mask_index=blank), target, logits, target_length, output_length, known=known
    )
    assert loss.dtype == np.float64
    for sample in range(len(target)):
        totals = all_sequences(logits[sample, : output_length[sample]], blank)
        probability = totals.get(tuple(target[sample, : target_length[sample]].tolist()), 0.0)
        if probability:
            np.testing.assert_allclose(loss[sample], -np.log(probability), rtol=1e-8, atol=1e-9)
        else:
            assert loss[sample] > 0.9e5


def test_known_losses():
    # One label in two frames of two equally likely classes: 01, 10 and 11 of 4. No label: 00.
    logits = np.zeros((2, 2, 2), "float32")
    loss = evaluate(lambda x: ops.ctc_loss([[1], [1]], x, [1, 0], [2, 2]), logits)
    assert loss.dtype == np.float32
    np.testing.assert_allclose(loss, -np.log([0.75, 0.25]), rtol=1e-6)
    # A label twice needs a blank in between, so three frames have one way.
    loss = evaluate(lambda x: ops.ctc_loss([[1, 1]], x, [2], [3]), np.zeros((1, 3, 2), "float32"))
    np.testing.assert_allclose(loss, 3 * np.log(2), rtol=1e-6)


def test_what_lies_behind_the_lengths_does_not_matter():
    random = np.random.default_rng(0)
    target, logits = np.array([[1, 2, 1]], "int32"), random.normal(size=(1, 6, 3))
    changed, other = logits.copy(), target.copy()
    changed[:, 4:] = np.nan
    other[:, 2:] = -77

    def loss_and_slope(labels: Any, outputs: Any) -> Any:
        loss = ctc_loss(labels, outputs, [2], [4])
        return [loss, *gradients(ops.sum(loss), [outputs])]

    first, second = evaluate(loss_and_slope, target, logits), evaluate(loss_and_slope, other, changed)
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_allclose(first[1], second[1], atol=1e-12)
    assert not first[1][:, 4:].any()


def test_the_loss_is_least_for_the_best_sequence():
    logits = np.array([[[0, 6, 0], [0, 6, 0], [6, 0, 0], [0, 0, 6], [0, 0, 6]]], "float32")
    losses = {
        labels: evaluate(lambda x, y=labels: ctc_loss([y], x, [2], [5]), logits)[0] for labels in [(1, 2), (2, 1)]
    }
    assert losses[(1, 2)] < 0.1
    assert losses[(2, 1)] > 10


@pytest.mark.parametrize("blank", [0, 2])
def test_gradients_of_the_loss(blank: int):
    random = np.random.default_rng(blank)
    target = np.array([[1, 1], [1, 0 if blank else 2]], "int32")
    logits = random.normal(size=(2, 4, 3))
    assert check_gradients(lambda x: ctc_loss(target, x, [2, 1], [4, 3], blank), [logits])


def test_gradients_are_finite_where_no_way_exists():
    logits = np.zeros((1, 2, 3), "float32")
    slope = evaluate(lambda x: gradients(ops.sum(ctc_loss([[1, 2, 1]], x, [3], [2])), [x])[0], logits)
    assert np.isfinite(slope).all()


def test_long_sequences_in_single_precision():
    random = np.random.default_rng(0)
    logits = random.normal(size=(2, 300, 5)).astype("float32")
    target = random.integers(1, 5, (2, 40)).astype("int32")
    arguments = target, logits, np.array([40, 25]), np.array([300, 200])
    single = evaluate(ctc_loss, *arguments)
    double = evaluate(ctc_loss, target, logits.astype("float64"), *arguments[2:])
    np.testing.assert_allclose(single, double, rtol=1e-5)
    assert (double > 100).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32"])
def test_narrow_logits_are_widened(dtype: str):
    loss = evaluate(lambda x: ctc_loss([[1]], x, [1], [2]), np.zeros((1, 2, 2), as_dtype(dtype)))
    assert loss.dtype == np.float32
    np.testing.assert_allclose(loss, -np.log(0.75), rtol=1e-6)


def test_the_loss_refuses():
    labels, logits, one = np.ones((2, 3), "int32"), np.zeros((2, 4, 5), "float32"), np.ones(2, "int32")
    with Graph().as_default():
        with pytest.raises(ValueError, match=r"output must be \[batch, time, classes\]; got shape \[4,5\]"):
            ctc_loss(labels, logits[0], one, one)
        with pytest.raises(ValueError, match=r"target must be \[batch, labels\]; got shape \[3\]"):
            ctc_loss(labels[0], logits, one, one)
        with pytest.raises(ValueError, match=r"target_length must be \[batch\]; got shape \[2,3\]"):
            ctc_loss(labels, logits, labels, one)
        with pytest.raises(TypeError, match=r"output_length must hold integers; got .*ops\.cast"):
            ctc_loss(labels, logits, one, one.astype("float32"))
        with pytest.raises(ValueError, match="one batch; got sizes target: 2, output: 2, target_length: 1"):
            ctc_loss(labels, logits, one[:1], one)


# --- decoding -------------------------------------------------------------------------------------------------------


@given(batches(), st.booleans(), st.booleans())
def test_greedy_decoding(case: Any, merge: bool, known: bool):
    _, logits, _, lengths, blank = case
    labels, scores = evaluate(
        lambda x, n: list(ops.ctc_decode(x, n, merge_repeated=merge, mask_index=blank)), logits, lengths, known=known
    )
    batch, time = logits.shape[:2]
    assert labels.shape == (1, batch, time)
    assert labels.dtype == np.int32
    for sample in range(batch):
        frames = logits[sample, : lengths[sample]]
        best = frames.argmax(-1).tolist()
        wanted = list(sequence(best, blank)) if merge else [label for label in best if label != blank]
        assert labels[0, sample].tolist() == wanted + [-1] * (time - len(wanted))
        np.testing.assert_allclose(scores[sample], [-frames.max(-1).sum()], rtol=1e-9, atol=1e-12)


@given(batches(), st.booleans())
def test_beam_search_that_is_wide_enough_finds_the_best_of_all(case: Any, known: bool):
    _, logits, _, lengths, blank = case
    labels, scores = evaluate(
        lambda x, n: list(ops.ctc_decode(x, n, "beam_search", 200, 3, mask_index=blank)), logits, lengths, known=known
    )
    batch, time = logits.shape[:2]
    assert labels.shape == (3, batch, time)
    assert scores.shape == (batch, 3)
    for sample in range(batch):
        totals = all_sequences(logits[sample, : lengths[sample]], blank)
        best = sorted(totals.items(), key=lambda item: -item[1])[:3]
        for place, (path, probability) in enumerate(best):
            assert labels[place, sample].tolist() == [*path, *[-1] * (time - len(path))]
            np.testing.assert_allclose(scores[sample, place], np.log(probability), rtol=1e-8, atol=1e-9)
        assert (labels[len(best) :, sample] == -1).all()
        assert (scores[sample, len(best) :] == -np.inf).all()


def test_beam_search_of_width_one_follows_one_path():
    logits = np.log(np.array([[[0.6, 0.4, 1e-9], [0.6, 0.4, 1e-9]]]))
    narrow = evaluate(lambda x: list(ops.ctc_decode(x, [2], "beam_search", 1)), logits)
    wide = evaluate(lambda x: list(ops.ctc_decode(x, [2], "beam_search", 10)), logits)
    assert narrow[0].ravel().tolist() == [-1, -1]
    np.testing.assert_allclose(np.exp(narrow[1]), 0.36, rtol=1e-6)
    assert wide[0].ravel().tolist() == [1, -1]
    np.testing.assert_allclose(np.exp(wide[1]), 0.64, rtol=1e-6)


def test_a_path_that_comes_back_into_the_beam_is_one_path():
    random = np.random.default_rng(5)
    logits = random.normal(size=(20, 12, 3)) * 3
    labels, scores = evaluate(lambda x: list(ops.ctc_decode(x, [12] * 20, "beam_search", 4, 4)), logits)
    for sample in range(20):
        found = [tuple(path) for path in labels[:, sample].tolist()]
        assert len(set(found)) == len(found)
        assert (np.diff(scores[sample]) <= 0).all()


def test_the_last_class_is_the_blank_where_none_is_named():
    logits = np.array([[[0, 1, 9], [0, 9, 1], [9, 0, 1]]], "float32")
    for strategy in ("greedy", "beam_search"):
        labels, _ = evaluate(lambda x, s=strategy: list(ops.ctc_decode(x, [3], s, mask_index=None)), logits)
        assert labels[0, 0].tolist() == [1, 0, -1]


def test_scores_are_single_precision_at_least():
    logits = np.zeros((1, 2, 2), ml_dtypes.bfloat16)
    for strategy in ("greedy", "beam_search"):
        _, scores = evaluate(lambda x, s=strategy: list(ops.ctc_decode(x, [2], s)), logits)
        assert scores.dtype == np.float32


def test_decoding_refuses():
    logits = np.zeros((2, 4, 3), "float32")
    with Graph().as_default() as graph:
        with pytest.raises(ValueError, match="strategy='best' must be 'greedy' or 'beam_search'"):
            ops.ctc_decode(logits, [4, 4], "best")
        with pytest.raises(ValueError, match="top_paths=5 must not exceed beam_width=3"):
            ops.ctc_decode(logits, [4, 4], "beam_search", 3, 5)
        with pytest.raises(ValueError, match="beam_width must be a positive integer; got 0"):
            ops.ctc_decode(logits, [4, 4], "beam_search", 0)
        with pytest.raises(ValueError, match="mask_index=3 is none of the 3 classes"):
            ops.ctc_decode(logits, [4, 4], mask_index=3)
        with pytest.raises(ValueError, match=r"inputs must be \[batch, time, classes\]; got shape \[4,3\]"):
            ops.ctc_decode(logits[0], [4])
        unknown = graph.add(Placeholder(TensorSpec((2, 4, None), as_dtype("float32"))), (), "x").outputs[0]
        with pytest.raises(ValueError, match="needs a known number of classes"):
            ops.ctc_decode(unknown, [4, 4])
        with pytest.raises(ValueError, match=r"a batch of 2 needs as many lengths; got shape \(1,\)"):
            Session().run(ops.ctc_decode(logits, [4], "beam_search")[0])
