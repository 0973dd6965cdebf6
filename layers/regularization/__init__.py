"""Layers that act at random in training, or that only add a loss."""
