"""Layers that normalise."""
