"""Serving: models as folders that need no code, a server for them, and the protocols that it speaks.

See docs/serving.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...engine.objects.on_demand import modules_by_name, on_demand

if TYPE_CHECKING:
    from .batching import Batching
    from .decoding.decoder import Decoder, load_decoder
    from .exporting.archive import ExportArchive, export_graph
    from .servable import Servable, load
    from .server import Server
    from .storage import ServableError
    from .web.connections import Tls
else:  # type checkers would take any name for a public one
    _NAMES = modules_by_name(
        __name__,
        {
            "batching": "Batching",
            "decoding.decoder": "Decoder load_decoder",
            "exporting.archive": "ExportArchive export_graph",
            "servable": "Servable load",
            "server": "Server",
            "storage": "ServableError",
            "web.connections": "Tls",
        },
    )
    __getattr__, __dir__ = on_demand(globals(), _NAMES)

__all__ = [
    "Batching",
    "Decoder",
    "ExportArchive",
    "Servable",
    "ServableError",
    "Server",
    "Tls",
    "export_graph",
    "load",
    "load_decoder",
]
