"""Public architectures: models from folders in Hugging Face's format, and back.

See docs/pretrained.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...engine.objects.on_demand import modules_by_name, on_demand

if TYPE_CHECKING:
    from .decoding import decoder
    from .folders import architectures, build, load, save
else:  # type checkers would take any name for a public one
    _NAMES = modules_by_name(__name__, {"decoding": "decoder", "folders": "architectures build load save"})
    __getattr__, __dir__ = on_demand(globals(), _NAMES)

__all__ = ["architectures", "build", "decoder", "load", "save"]
