"""Sessions and functions: what runs graphs."""

from .explain import explain
from .function import Function, function
from .placeholder import placeholder
from .session import Session

__all__ = ["Function", "Session", "explain", "function", "placeholder"]
