"""`fit`, `evaluate` and `predict`: steps, epochs, their limits and reports."""
