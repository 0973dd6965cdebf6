"""Machine code of operations that draw random numbers."""
