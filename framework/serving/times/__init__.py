"""Times of computations that a model server measures, and what follows from them."""
