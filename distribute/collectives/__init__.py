"""Connections between processes that run collectives: sockets between all of them, and memory that a host shares."""
