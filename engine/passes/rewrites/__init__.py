"""Rewrites of operations by algebra, shapes and slices."""
