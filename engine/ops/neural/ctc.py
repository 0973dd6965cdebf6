"""From the outputs of a CTC model to labels: `ctc_decode`. (The loss is in `control_flow.ctc`: it needs a loop.)"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ...common import dtypes
from ...common.nest import is_integer
from ...common.quick_dataclass import dataclass
from ...graph.graph import Operation
from ...graph.op import ErrorSample, Op, Sample
from ...graph.spec import TensorSpec, shape_text
from ..arrays.axes import roll
from ..arrays.creation import arange
from ..arrays.gathering import take_along_axis
from ..arrays.shaping import dim, expand_dims
from ..arrays.sorting import argsort
from ..base import Tensor, TensorLike, apply_multi, cast, convert_to_tensor, promote
from ..math.comparison import equal, greater, greater_equal, logical_and, where
from ..math.reduction import argmax, max, sum
from .nn import log_softmax

# --- beam search ----------------------------------------------------------------------------------------------------


class _Paths:
    """The label sequences that a search has found, as a tree: a path is the path of its parent and one more label."""

    def __init__(self) -> None:
        self.parents = [-1]
        self.labels = [-1]  # path 0 is empty
        self._children: dict[tuple[int, int], int] = {}

    def grown(self, path: int, label: int) -> int:
        """Return the path with a label behind it."""
        number = self._children.setdefault((path, label), len(self.parents))
        if number == len(self.parents):
            self.parents.append(path)
            self.labels.append(label)
        return number

    def read(self, path: int) -> list[int]:
        """Return the labels of a path."""
        labels: list[int] = []
        while path:
            labels.append(self.labels[path])
            path = self.parents[path]
        return labels[::-1]


class _Beam:
    """The most probable label sequences after some frames of one sample.

    For each there are two log probabilities: that the last frame was a blank, and that it was the last label. So a
    frame with that label again is distinguished from a repetition of the label.
    """

    def __init__(self, width: int, blank: int) -> None:
        self.width, self.blank = width, blank
        self.paths = _Paths()
        self.found: list[int] = [0]
        self.ends_blank = np.zeros(1)
        self.ends_label = np.full(1, -np.inf)

    def scores(self) -> Any:
        """Return the log probabilities of the sequences that were found, the largest first."""
        return np.logaddexp(self.ends_blank, self.ends_label)

    def advance(self, frame: Any) -> None:
        """Go on by one frame of log probabilities, [classes]."""
        count, classes = len(self.found), len(frame)
        total = self.scores()
        last = np.array([self.paths.labels[path] for path in self.found])
        same = np.where(last < 0, -np.inf, frame[last])  # nothing can be repeated in the empty path
        blank, label = total + frame[self.blank], self.ends_label + same
        grown = total[:, None] + frame
        some = np.flatnonzero(last >= 0)
        grown[some, last[some]] = (self.ends_blank + same)[some]  # a label again is another one only after a blank
        grown[:, self.blank] = -np.inf
        self._merge(grown, label, last)
        candidates = np.concatenate([np.logaddexp(blank, label), grown.reshape(-1)])
        best = np.argsort(-candidates, kind="stable")[: self.width]
        best = best[candidates[best] > -np.inf]
        chosen: list[int] = best.tolist()
        self.found = [
            self.found[i] if i < count else self.paths.grown(self.found[(i - count) // classes], (i - count) % classes)
            for i in chosen
        ]
        nothing = np.full(count * classes, -np.inf)
        self.ends_blank = np.concatenate([blank, nothing])[best]
        self.ends_label = np.concatenate([label, grown.reshape(-1)])[best]

    def _merge(self, grown: Any, label: Any, last: Any) -> None:
        """Add what grows into a path that is in the beam already to that path, and take it out of what grows."""
        places = {path: place for place, path in enumerate(self.found)}
        parents = np.array([places.get(self.paths.parents[path], -1) for path in self.found])
        into = np.flatnonzero(parents >= 0)
        sources = parents[into], last[into]
        label[into] = np.logaddexp(label[into], grown[sources])
        grown[sources] = -np.inf


@dataclass(frozen=True)
class CtcBeamSearch(Op):
    """The most probable label sequences of each sample. Inputs: log probabilities, [batch, time, classes], and lengths.

    Outputs: int32 paths, [paths, batch, time], filled up with -1, and their log probabilities, [batch, paths].

    Source: A. Hannun et al., "First-pass large vocabulary continuous speech recognition using bi-directional recurrent
    DNNs" (2014), algorithm 1, without a language model.
    """

    beam_width: int
    top_paths: int
    blank: int

    def infer(self, *inputs: Any) -> tuple[TensorSpec, TensorSpec]:
        logs, lengths = inputs
        if not dtypes.is_floating(logs.dtype) or not dtypes.is_integer(lengths.dtype):
            raise TypeError(f"ctc_decode needs floats and integer lengths; got {logs} and {lengths}.")
        if logs.shape is not None and len(logs.shape) != 3:
            raise ValueError(f"ctc_decode: inputs must be [batch, time, classes]; got {logs}.")
        if lengths.shape is not None and len(lengths.shape) != 1:
            raise ValueError(f"ctc_decode: sequence_lengths must be [batch]; got {lengths}.")
        batch, time = (None, None) if logs.shape is None else logs.shape[:2]
        if batch is None and lengths.shape is not None:
            batch = lengths.shape[0]
        paths = TensorSpec((self.top_paths, batch, time), dtypes.int32)
        return paths, TensorSpec((batch, self.top_paths), logs.dtype)

    def run(self, xp: Any, *inputs: Any) -> Any:
        logs, lengths = (value if xp is np else xp.asnumpy(value) for value in inputs)
        batch, time, _ = logs.shape
        if lengths.shape != (batch,):
            raise ValueError(f"ctc_decode: a batch of {batch} needs as many lengths; got shape {lengths.shape}.")
        paths = np.full((self.top_paths, batch, time), -1, "int32")
        scores = np.full((batch, self.top_paths), -np.inf, logs.dtype)
        for sample in range(batch):
            beam = _Beam(self.beam_width, self.blank)
            for frame in logs[sample, : int(lengths[sample])].astype("float64"):
                beam.advance(frame)
            for place, (path, score) in enumerate(zip(beam.found[: self.top_paths], beam.scores(), strict=False)):
                labels = beam.paths.read(path)
                paths[place, sample, : len(labels)] = labels
                scores[sample, place] = score
        return xp.asarray(paths), xp.asarray(scores)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return None, None

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        probabilities = np.array([[[0.5, 0.375, 0.125], [0.5, 0.375, 0.125]]], "float32")
        logs, two = np.log(probabilities), np.array([2], "int32")
        # Class 0 alone comes of 01, 10 and 11 with the blank 1: 0.1875 + 0.1875 + 0.25.
        best = np.array([[[0, -1]], [[-1, -1]]], "int32")
        scores = np.log(np.array([[0.625, 0.140625]], "float32"))
        yield Sample(cls(10, 2, 1), [logs, two], (best, scores), differentiable=(), label="two frames")
        yield Sample(cls(10, 1, 1), [logs, two - 2], (best[1:], scores[:, :1] * 0), differentiable=(), label="no frame")
        none = np.zeros((1, 0, 2), "int32"), scores[:0, :1]
        yield Sample(cls(3, 1, 0), [logs[:0], two[:0]], none, differentiable=(), label="empty")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        logs, length = TensorSpec((2, 3), dtypes.float32), TensorSpec((2,), dtypes.int32)
        yield ErrorSample(lambda: cls(3, 1, 0).infer(logs, length), ValueError, r"\[batch, time, classes\]", "rank")
        wrong = TensorSpec((2, 3, 4), dtypes.int32)
        yield ErrorSample(lambda: cls(3, 1, 0).infer(wrong, length), TypeError, "needs floats", "integers")


# --- functions ------------------------------------------------------------------------------------------------------


def ctc_decode(
    inputs: TensorLike,
    sequence_lengths: TensorLike,
    strategy: str = "greedy",
    beam_width: int = 100,
    top_paths: int = 1,
    merge_repeated: bool = True,
    mask_index: int | None = 0,
) -> tuple[Tensor, Tensor]:
    """Find the label sequences that the outputs of a CTC model stand for.

    Args:
        inputs: logits, [batch, time, classes].
        sequence_lengths: how many frames of each sample count, [batch].
        strategy: ``"greedy"`` takes the best class of each frame; ``"beam_search"`` finds the most probable sequences.
        beam_width: how many sequences the search follows.
        top_paths: how many the search returns.
        merge_repeated: take equal labels without a blank between them for one. (The search always does.)
        mask_index: the class of the blank; None for the last one.

    Returns:
        (int32 labels, [paths, batch, time], filled up with -1; scores, [batch, paths]). The score of the greedy path is
        the negative sum of its logits, those of the search are log probabilities, the largest first. Sequences that
        were not found are empty and have the score -inf.

    Raises:
        ValueError: an argument is not one of those above.

    >>> import anabranch as ab
    >>> logits = [[[0.0, 5.0, 0.0], [0.0, 5.0, 0.0], [5.0, 0.0, 0.0], [0.0, 0.0, 5.0]]]
    >>> labels, scores = ab.ops.ctc_decode(logits, [4])
    >>> labels
    Tensor([[[ 1,  2, -1, -1]]], dtype=int32)
    """
    if strategy not in ("greedy", "beam_search"):
        raise ValueError(f"ctc_decode: strategy={strategy!r} must be 'greedy' or 'beam_search'.")
    (tensor,) = promote(inputs, floating=True)
    if tensor.dtype.name in ("float16", "bfloat16"):
        tensor = cast(tensor, dtypes.float32)
    if tensor.shape is None or len(tensor.shape) != 3:
        raise ValueError(f"ctc_decode: inputs must be [batch, time, classes]; got shape {shape_text(tensor.shape)}.")
    lengths = cast(convert_to_tensor(sequence_lengths), dtypes.int32)
    blank = _blank(mask_index, tensor)
    if strategy == "greedy":
        return _greedy(tensor, lengths, merge_repeated, blank)
    for name, count in (("beam_width", beam_width), ("top_paths", top_paths)):
        if not is_integer(count) or count < 1:
            raise ValueError(f"ctc_decode: {name} must be a positive integer; got {count!r}.")
    if top_paths > beam_width:
        raise ValueError(f"ctc_decode: top_paths={top_paths} must not exceed beam_width={beam_width}.")
    labels, scores = apply_multi(CtcBeamSearch(int(beam_width), int(top_paths), blank), log_softmax(tensor), lengths)
    return labels, scores


def _blank(mask_index: int | None, tensor: Tensor) -> int:
    classes = dim(tensor, 2)
    if not isinstance(classes, int):
        raise ValueError(f"ctc_decode needs a known number of classes; got inputs of shape {shape_text(tensor.shape)}.")
    index = classes - 1 if mask_index is None else mask_index
    if not -classes <= index < classes:
        raise ValueError(f"ctc_decode: mask_index={mask_index} is none of the {classes} classes.")
    return index % classes


def _greedy(tensor: Tensor, lengths: Tensor, merge_repeated: bool, blank: int) -> tuple[Tensor, Tensor]:
    frames = arange(dim(tensor, 1))
    behind = greater_equal(frames, expand_dims(lengths, 1))
    labels = where(behind, blank, cast(argmax(tensor, axis=-1), dtypes.int32))
    scores = where(behind, 0.0, max(tensor, axis=-1))
    if merge_repeated:
        repeated = logical_and(equal(labels, roll(labels, 1, axis=1)), greater(frames, 0))
        labels = where(repeated, blank, labels)
    nothing = equal(labels, blank)
    order = argsort(where(nothing, dim(tensor, 1), frames), axis=-1)
    labels = take_along_axis(where(nothing, -1, labels), order, axis=-1)
    return expand_dims(labels, 0), expand_dims(-sum(scores, axis=1), 1)


__all__ = ["ctc_decode"]
