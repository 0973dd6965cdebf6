"""The HTTP side of a model server: connections, bodies, and the pages for people and tools."""
