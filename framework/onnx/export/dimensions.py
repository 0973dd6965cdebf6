"""Names of open dimensions: those of outputs are the names of inputs' dimensions to which they are equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protos import load_onnx

if TYPE_CHECKING:
    from onnx import ModelProto


def name_dimensions(model: ModelProto) -> None:
    """Give open dimensions of outputs the names of those of inputs, where ONNX's shape inference finds them equal.

    Others keep a name of their own. The weights are left out of what is inferred from: their shapes say enough.

    Args:
        model: is changed in place.
    """
    onnx = load_onnx()
    helper = onnx.helper
    weights = [helper.make_tensor_value_info(each.name, each.data_type, each.dims) for each in model.graph.initializer]
    bare = helper.make_graph(
        list(model.graph.node),
        model.graph.name,
        [*model.graph.input, *weights],
        [
            helper.make_tensor_value_info(each.name, each.type.tensor_type.elem_type, None)
            for each in model.graph.output
        ],
    )
    try:
        found = onnx.shape_inference.infer_shapes(
            helper.make_model(bare, opset_imports=list(model.opset_import)), data_prop=True
        )
    except onnx.shape_inference.InferenceError:
        return
    known = {dim.dim_param for each in model.graph.input for dim in each.type.tensor_type.shape.dim if dim.dim_param}
    for output, inferred in zip(model.graph.output, found.graph.output, strict=True):
        for own, dim in zip(output.type.tensor_type.shape.dim, inferred.type.tensor_type.shape.dim, strict=False):
            if own.dim_param and dim.dim_param in known:
                own.dim_param = dim.dim_param
