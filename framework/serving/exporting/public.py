"""Contents of ``anabranch.export``: Keras's names for exporting models."""

from __future__ import annotations

from .archive import ExportArchive

__all__ = ["ExportArchive"]
