"""Frames, values and connections between tasks and clients, and the loop that waits for them."""
