"""Rules of functions that ONNX has no operator for, and of Fourier transforms."""
