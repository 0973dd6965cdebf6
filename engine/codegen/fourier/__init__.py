"""Machine code of Fourier transforms."""
