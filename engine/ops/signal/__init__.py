"""Images, windows and Fourier transforms."""
