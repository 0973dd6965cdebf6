"""Parts that layers, optimizers and models share: the registry of objects, initializers, activations, names.

This is below `layers` and `optim`, which both need it and do not import each other.
"""
