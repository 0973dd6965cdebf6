"""Checkpoints: folders of tensors by name, written and read by ops of a graph; see docs/checkpoints.md."""
