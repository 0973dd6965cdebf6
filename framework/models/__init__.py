"""Models: functional, sequential and subclassed; copies, tables and drawings of them."""
