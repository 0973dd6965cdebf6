"""Passes that decide what is kept for the gradient and what is computed again."""
