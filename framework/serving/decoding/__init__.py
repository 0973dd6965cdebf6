"""Decoders: step functions that a server runs for many requests at once, a slot for each."""
