"""What ``anabranch.export`` is: Keras's names for exporting models."""

from __future__ import annotations

from .archive import ExportArchive

__all__ = ["ExportArchive"]
