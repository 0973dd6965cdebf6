"""Every op of the engine alone, exported from its samples and computed by onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.onnx_runs import as_feed, assert_same, run_file
from shared.op_samples import NAMED

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import Graph, TensorSpec
from anabranch.engine.graph.graph import Placeholder
from anabranch.engine.graph.op import Sample
from anabranch.engine.ops.math.gamma_functions import GammaInc
from anabranch.engine.ops.text.string_ops import RegexReplace
from anabranch.framework.onnx.export.registry import RULES

# Samples for which ONNX has no counterpart, by op and label.
REFUSED = {
    ("bin_count", "rows"): "only vectors",
    ("bin_count", "weighted"): "only vectors",
    ("conv_input_grad", "groups"): "channels must be known",
    **dict.fromkeys([("conv_filter_grad", label) for label in ("dilated", "groups")], "channels must be known"),
    ("determinant", "complex"): "takes complex numbers",
    **dict.fromkeys([("broadcast_reduced", "0-d"), ("broadcast_to_shape", "scalar")], "rank of output"),
    ("unflatten_rows", "vector"): "rank of output",
    ("squeeze", "all"): "rank of output",
    **dict.fromkeys([("string_case", label) for label in ("upper", "lower", "empty", "0-d")], "locales"),
    **{("regex_replace", sample.label): "replaces nothing" for sample in RegexReplace.samples()},
}
# onnxruntime's extrema take numbers where there is a NaN; it merges a known size of 0 with 1.
DIFFERENT = {*[(name, "NaN") for name in ("arg_max", "arg_min", "max", "min", "segment_max", "segment_min")]}
DIFFERENT |= {("slice_update", "empty"), ("max_pool_places", "nan")}
DIFFERENT |= {("regex_full_match", "words")}  # its classes of letters are ASCII's
WITH_RULES = [(name, sample) for name, sample in NAMED if sample.op.type_name in RULES]
CASES = [pytest.param(sample, id=name) for name, sample in WITH_RULES]
FIRST = {sample.op.type_name: name for name, sample in reversed(WITH_RULES)}  # one of each op runs in `make test`
MARKED = [
    pytest.param(sample, id=name, marks=[] if FIRST[sample.op.type_name] == name else pytest.mark.slow)
    for name, sample in WITH_RULES
]


def arrays_of(sample: Sample) -> list[Any]:
    return [np.asarray(each) for each in sample.inputs]


def parts_of(array: Any) -> list[Any]:
    """Return what a file takes or gives for an array: of complex numbers the two parts."""
    return [array] if array.dtype.kind != "c" else [np.real(array), np.imag(array)]


def fed_tensors(graph: Graph, arrays: list[Any], opened: bool) -> tuple[list[Any], list[Any]]:
    """Return a tensor for each array, and the placeholders of their parts, in order."""
    tensors: list[Any] = []
    placeholders: list[Any] = []
    for array in arrays:
        shape = tuple(None if opened else size for size in array.shape)
        own = [graph.add(Placeholder(TensorSpec(shape, each.dtype)), ()).outputs[0] for each in parts_of(array)]
        placeholders += own
        tensors.append(own[0] if len(own) == 1 else ops.complex(*own))
    return tensors, placeholders


def exported(sample: Sample, folder: Path, opened: bool, opset: int) -> tuple[Path, int]:
    """A file with the op alone; with `opened` no size of its inputs is known."""
    graph = Graph()
    with graph.as_default():
        tensors, placeholders = fed_tensors(graph, arrays_of(sample), opened)
        outputs: list[Any] = []
        for output in graph.add(sample.op, tensors).outputs:
            outputs += [output] if output.dtype.kind != "c" else [ops.real(output), ops.imag(output)]
    path = folder / "op.onnx"
    if outputs:
        inputs = {f"x{number}": placeholder for number, placeholder in enumerate(placeholders)}
        named = {f"y{number}": output for number, output in enumerate(outputs)}
        ab.onnx.export_graph(path, inputs, named, opset_version=opset)
    return path, len(outputs)


def compare(sample: Sample, folder: Path, opened: bool, opset: int) -> None:
    if "bfloat16" in {array.dtype.name for array in arrays_of(sample)}:
        pytest.skip("onnxruntime takes no bfloat16 from Python")
    path, count = exported(sample, folder, opened, opset)
    if not count:
        return
    feeds = [each for array in arrays_of(sample) for each in parts_of(array)]
    found = run_file(path, {f"x{number}": as_feed(each) for number, each in enumerate(feeds)})
    given = [each if each.ndim or each.dtype.kind == "T" else each[()] for each in arrays_of(sample)]
    with np.errstate(all="ignore"):
        wanted = sample.op.run(np, *given)
    each_wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for a, b in zip(found, [part for each in each_wanted for part in parts_of(np.asarray(each))], strict=True):
        half = np.asarray(b).dtype == np.float16
        assert_same(a, b, 2e-3 if half else 1e-4, 1e-3 if half else 1e-5)


@pytest.mark.parametrize("sample", MARKED)
def test_op_gives_the_same_in_onnxruntime(sample: Sample, tmp_path: Path) -> None:
    key = (sample.op.type_name, sample.label)
    if key in DIFFERENT:
        pytest.skip("onnxruntime differs")
    if key in REFUSED and key != ("squeeze", "all"):
        with pytest.raises(ab.onnx.OnnxError, match=REFUSED[key]):
            compare(sample, tmp_path, False, 21)
        return
    compare(sample, tmp_path, False, 21)


# What needs sizes to be known is built with known sizes only.
NEEDS_SIZES = (
    "conv",
    "conv_input_grad",
    "conv_filter_grad",
    "flat_places",
    "gather_nd",
    "gather_last",
    "scatter_add",
    "scatter_update",
)


@pytest.mark.slow
@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("sample", CASES)
def test_op_over_unknown_sizes_in_other_opsets(sample: Sample, opset: int, tmp_path: Path) -> None:
    key = (sample.op.type_name, sample.label)
    if key in DIFFERENT or key in REFUSED or RULES[key[0]].lowest > opset:
        pytest.skip("tested with known sizes and opset 21")
    if opset < 20 and any(array.dtype.kind == "T" for array in arrays_of(sample)):
        pytest.skip("texts are joined and compared from opset 20 on")
    compare(sample, tmp_path, key[0] not in NEEDS_SIZES, opset)


# Gradients of determinants take inverses. onnxruntime takes a known size of 0 for 1 in Expand and Concat.
WITHOUT_GRADIENTS = {("determinant", label) for label in ("stack", "matrix", "empty")}
WITHOUT_GRADIENTS |= {("gamma_inc", sample.label) for sample in GammaInc.samples()}  # by its first argument
WITHOUT_GRADIENTS |= {("mean", "of nothing"), ("slice", "empty")}


@pytest.mark.slow
@pytest.mark.parametrize("sample", [pytest.param(sample, id=name) for name, sample in WITH_RULES])
def test_gradient_of_an_op_gives_the_same_in_onnxruntime(sample: Sample, tmp_path: Path) -> None:
    """By each input that has a gradient, for a cotangent of its own for each output."""
    key = (sample.op.type_name, sample.label)
    if key in {*DIFFERENT, *REFUSED, *WITHOUT_GRADIENTS}:
        pytest.skip("tested above, or not exported")
    arrays = arrays_of(sample)
    if any(array.dtype.name in ("bfloat16", "float16") for array in arrays):
        pytest.skip("rounded differently")
    graph = Graph()
    with graph.as_default():
        tensors, inputs = fed_tensors(graph, arrays, False)
        outputs: list[Any] = []
        for each in graph.add(sample.op, tensors).outputs:
            outputs += [] if each.dtype.kind not in "cf" else [each] if each.dtype.kind == "f" else [ops.real(each)]
        sources = [each for each in inputs if each.dtype.kind == "f"]
        if not outputs or not sources:
            pytest.skip("no gradient")
        seeds = [graph.add(Placeholder(each.spec), ()).outputs[0] for each in outputs]
        found = [each for each in ab.gradients(outputs, sources, seeds) if each is not None]
        wanted = [each.to_dense() if isinstance(each, ab.IndexedSlices) else each for each in found]
    if not wanted:
        pytest.skip("no gradient")
    fed = dict(zip(inputs, [part for array in arrays for part in parts_of(array)], strict=True))
    with np.errstate(all="ignore"):
        values = ab.Session(graph).run(outputs, fed)
        rng = np.random.default_rng(0)
        fed |= {seed: rng.normal(size=np.shape(y)).astype(seed.dtype) for seed, y in zip(seeds, values, strict=True)}
        results = ab.Session(graph).run(wanted, fed)
    named = {f"x{number}": tensor for number, tensor in enumerate(fed)}
    ab.onnx.export_graph(tmp_path / "g.onnx", named, {f"y{number}": each for number, each in enumerate(wanted)})
    given = {name: as_feed(fed[tensor]) for name, tensor in named.items()}
    for a, b in zip(run_file(tmp_path / "g.onnx", given), results, strict=True):
        assert_same(a, b)


def test_supported_ops_names_every_op_and_a_reason_for_what_has_no_rule() -> None:
    found = ab.onnx.supported_ops()
    assert len(found) > 240
    assert found["while"] == 18
    assert found["cond"] == 18
    for name, value in found.items():
        assert isinstance(value, int) or (len(value) > 10 and value != "no rule is written for it"), name
    assert sum(isinstance(value, int) for value in found.values()) >= 150
    assert "random" in str(found["random_uniform"])
    assert "recursion" in str(found["recursion"])
    assert "queues" in str(found["queue_enqueue"])
    assert "Switch" in str(found["switch"])
