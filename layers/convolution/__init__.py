"""Convolutions, pooling, padding and what else has spatial axes."""
