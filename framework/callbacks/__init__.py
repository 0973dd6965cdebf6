"""Callbacks, and the progress bar."""
