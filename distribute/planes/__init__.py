"""Planes, the ways by which values travel between two tasks: shared memory, sockets, or a stream of gRPC."""
