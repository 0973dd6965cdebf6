"""Files that layers keep in a ``.keras`` archive beside their weights, such as vocabularies: ``assets/<path>/<name>``.

A layer that has any defines ``save_assets(dir_path)`` and ``load_assets(dir_path)``, which write and read files in a
folder. Paths are those of the weights.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ...layers.core.layer import Layer
from .archive import SavedFileError, damaged

if TYPE_CHECKING:
    from ..models.model import Model


def _layers_with_assets(model: Model) -> dict[str, Layer]:
    from .state_tree import walk

    plain = Layer.save_assets
    return {path: item for path, item in walk(model) if isinstance(item, Layer) and type(item).save_assets is not plain}


def collect_assets(model: Model) -> dict[str, bytes]:
    """Collect what the layers of a model keep in files, by the place in the archive below ``assets``."""
    found: dict[str, bytes] = {}
    for path, layer in _layers_with_assets(model).items():
        with tempfile.TemporaryDirectory() as folder:
            layer.save_assets(folder)
            for file in sorted(item for item in Path(folder).rglob("*") if item.is_file()):
                place = PurePosixPath(path) / file.relative_to(folder).as_posix()
                found[str(place)] = file.read_bytes()
    return found


def give_assets(model: Model, assets: Mapping[str, bytes], archive: Path) -> None:
    """Let each layer read its files.

    Args:
        model: the model, with its weights.
        assets: what `collect_assets` gave.
        archive: the name of the archive, for messages.

    Raises:
        SavedFileError: a file's name leads out of its folder, or a layer can't read it.
    """
    for path, layer in _layers_with_assets(model).items():
        prefix = f"{path}/" if path else ""
        own = {name.removeprefix(prefix): data for name, data in assets.items() if name.startswith(prefix)}
        with tempfile.TemporaryDirectory() as folder:
            for name, data in own.items():
                _write(Path(folder), name, data, archive)
            _load(layer, folder, archive)


def _write(folder: Path, name: str, data: bytes, archive: Path) -> None:
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or PurePosixPath(name).is_absolute() or "\\" in name or ":" in name:
        raise damaged(archive, f"the name of its asset {name!r} leads out of its folder")
    target = folder.joinpath(*parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)


def _load(layer: Layer, folder: str, archive: Path) -> None:
    try:
        layer.load_assets(folder)
    except Exception as error:
        raise SavedFileError(f"{str(archive)!r}: layer {layer.name!r} can't read its assets: {error}") from error
