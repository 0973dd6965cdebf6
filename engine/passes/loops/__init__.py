"""Rewrites of loops: each takes one loop as a `LoopView`. `passes.fission` has the table of them, and their order."""
