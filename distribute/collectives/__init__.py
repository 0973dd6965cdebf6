"""How processes that run collectives reach each other: sockets between all of them, and memory that a host shares."""
