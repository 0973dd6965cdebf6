"""Sessions and functions: what runs graphs."""

from .explain import explain
from .function import Function, function
from .placeholder import placeholder
from .session import Session
from .targets import register_scheme

__all__ = ["Function", "Session", "explain", "function", "placeholder", "register_scheme"]
