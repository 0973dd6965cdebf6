"""Random keys, draws and distributions."""
