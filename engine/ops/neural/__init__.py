"""Activations, convolutions, pooling, attention, losses, quantised products."""
