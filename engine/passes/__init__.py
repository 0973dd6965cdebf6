"""Analyses and rewrites of structured graphs, between building and running."""
