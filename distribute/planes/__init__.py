"""The ways of values between two tasks: by shared memory, by sockets, or in a stream of gRPC."""
