"""From a placed step to the machine's form: primitives of dynamic dataflow, cut by device."""
