"""The dataflow engine: graph, ops, autodiff, control flow, passes, runtime and sessions."""
