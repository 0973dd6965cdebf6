"""Graph, Operation, Tensor, specs, variables and provenance: what a program is before anything runs."""

from ..common.dtypes import DType, as_dtype, result_type
from ..common.nest import flatten, map_structure, pack_as
from .context import in_explicit_graph
from .device import Colocation, DeviceName, State, canonical_device
from .graph import Graph, Operation, Parameter, Placeholder, eagerly, get_default_graph, graph_for
from .name_scopes import name_scope
from .op import Effect, ErrorSample, Op, Sample, registered_ops
from .region import Mirror, Region
from .scopes import colocate_with, control_dependencies, device
from .slices import IndexedSlices
from .spec import ArraySpec, FrameSpec, Shape, Spec, StoreSpec, TensorSpec, as_shape, broadcast_shapes
from .state.container import Container, container
from .state.readable import Readable
from .state.sharded import ShardedVariable
from .state.stateless import StatelessScope, in_stateless_scope
from .state.variable import Variable, VariableRows
from .state.variable_ops import Assign, ReadVariable
from .tensor import Symbol, Tensor
from .value import FlowValue, Value

__all__ = [
    "ArraySpec",
    "Assign",
    "Colocation",
    "Container",
    "DType",
    "DeviceName",
    "Effect",
    "ErrorSample",
    "FlowValue",
    "FrameSpec",
    "Graph",
    "IndexedSlices",
    "Mirror",
    "Op",
    "Operation",
    "Parameter",
    "Placeholder",
    "ReadVariable",
    "Readable",
    "Region",
    "Sample",
    "Shape",
    "ShardedVariable",
    "Spec",
    "State",
    "StatelessScope",
    "StoreSpec",
    "Symbol",
    "Tensor",
    "TensorSpec",
    "Value",
    "Variable",
    "VariableRows",
    "as_dtype",
    "as_shape",
    "broadcast_shapes",
    "canonical_device",
    "colocate_with",
    "container",
    "control_dependencies",
    "device",
    "eagerly",
    "flatten",
    "get_default_graph",
    "graph_for",
    "in_explicit_graph",
    "in_stateless_scope",
    "map_structure",
    "name_scope",
    "pack_as",
    "registered_ops",
    "result_type",
]
