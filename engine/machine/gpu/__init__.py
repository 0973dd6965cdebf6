"""Steps on GPUs: what runs printed kernels on arrays of cupy, and steps that stay on one GPU."""
