"""Parts that layers, optimizers and models share: the registry of objects, initializers, activations, names.

This lies below `layers` and `optim`, which both need it and do not know each other.
"""
