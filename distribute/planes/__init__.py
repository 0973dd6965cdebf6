"""How values travel between two tasks: by shared memory, by sockets, or in a stream of gRPC."""
