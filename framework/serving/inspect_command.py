"""The command ``python -m anabranch inspect``: what a servable takes and gives, how large it is, how it is batched."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .signature import TensorInfo

if TYPE_CHECKING:
    from .servable import Servable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument("path", help="what model.export() wrote: a folder of versions")
    parser.add_argument("--version", type=int, metavar="N", help="which version (default: the highest)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print what is known of a servable; gives the exit status."""
    from .servable import load
    from .storage import ServableError, versions_in

    try:
        servable = load(options.path, options.version)
        found = describe(servable, versions_in(options.path))
    except (ServableError, OSError) as error:
        print(f"anabranch inspect: {error}", file=sys.stderr)
        return 2
    print(json.dumps(found, indent=2) if options.json else as_text(found))
    return 0


def describe(servable: Servable, versions: list[int]) -> dict[str, Any]:
    """Give what is known of a servable, as values for JSON.

    Args:
        servable: a version of a model.
        versions: all versions that there are.
    """
    signatures: dict[str, Any] = {}
    for name, signature in servable.signatures.items():
        signatures[name] = {
            "inputs": [_described(info) for info in signature.inputs],
            "outputs": [_described(info) for info in signature.outputs],
            "computed_alone_because": servable.why_alone(name),
        }
    return {
        "path": str(servable.path),
        "version": servable.version,
        "versions": versions,
        "bytes_on_disk": sum(file.stat().st_size for file in Path(servable.path).rglob("*") if file.is_file()),
        "bytes_by_dtype": servable.bytes_by_dtype(),
        "signatures": signatures,
    }


def _described(info: TensorInfo) -> dict[str, Any]:
    return {"name": info.name, "dtype": info.dtype, "shape": list(info.shape)}


def as_text(found: dict[str, Any]) -> str:
    """The description in lines for people."""
    kept = ", ".join(f"{dtype} {_size(count)}" for dtype, count in found["bytes_by_dtype"].items())
    lines = [
        f"{found['path']}: version {found['version']} of {', '.join(map(str, found['versions']))}",
        f"{_size(found['bytes_on_disk'])} on disk; weights and constants: {kept or 'none'}",
    ]
    for name, signature in found["signatures"].items():
        lines.append(f"signature {name}")
        for kind in ("inputs", "outputs"):
            for info in signature[kind]:
                sizes = ", ".join("any" if size is None else str(size) for size in info["shape"])
                lines.append(f"  {kind[:-1]:<6} {info['name']}: {info['dtype']} ({sizes})")
        why = signature["computed_alone_because"]
        how = f"one at a time: {why}" if why else "together"
        lines.append(f"  requests that wait are computed {how}")
    return "\n".join(lines)


def _size(count: int) -> str:
    for unit, bytes_ in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= bytes_:
            return f"{count / bytes_:.1f} {unit}"
    return f"{count} bytes"
