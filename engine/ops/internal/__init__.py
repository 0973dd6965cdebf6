"""Ops that passes make; no user builds them."""
