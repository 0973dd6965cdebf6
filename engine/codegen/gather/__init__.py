"""Kernels that read and write rows and elements by positions, and those that sort and select."""
