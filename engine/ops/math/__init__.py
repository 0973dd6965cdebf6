"""Elementwise functions, reductions, comparisons, statistics."""
