"""Python functions that tasks find by name: their code is in the engine, for saved graphs have them, too."""

from ..engine.ops.registered import register_function

__all__ = ["register_function"]
