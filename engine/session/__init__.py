"""Sessions and functions: what runs graphs."""

from .function import Function, function
from .placeholder import placeholder
from .session import Session, explain

__all__ = ["Function", "Session", "explain", "function", "placeholder"]
