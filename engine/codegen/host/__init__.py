"""Threads and memory of the host, as compiled code uses them."""
