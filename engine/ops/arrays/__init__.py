"""Ops on the shape, order and selection of elements."""
