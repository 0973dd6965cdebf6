"""Kernels of matrix products: tiles, packing, batches, epilogues, int8 and int4."""
