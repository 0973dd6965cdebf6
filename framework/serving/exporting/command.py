"""The command ``python -m anabranch export``: a ``.keras`` file, perhaps with other weights, as a servable or ONNX."""

from __future__ import annotations

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument("model", metavar="MODEL.keras", help="what model.save() wrote")
    parser.add_argument("out", metavar="OUT", help="the folder of all versions; of --format onnx a file")
    parser.add_argument("--format", choices=["anabranch", "onnx"], default="anabranch", help="what is written")
    parser.add_argument("--opset", type=int, metavar="N", help="of --format onnx: the version of its operators")
    parser.add_argument(
        "--weights", metavar="PATH", help="other weights: a weights file, or a checkpoint, whose name is step-N"
    )
    add_import_option(parser)
    parser.add_argument("--version", type=int, metavar="N", help="its number (default: one more than the highest)")


def add_import_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--import``, for the commands that read ``.keras`` files."""
    parser.add_argument(
        "--import",
        action="append",
        default=[],
        dest="modules",
        metavar="MODULE",
        help="import a module that registers the classes of .keras files; may be given several times",
    )


def run(options: argparse.Namespace) -> int:
    """Load the model and export it; return the exit status."""
    from .keras_files import import_modules, load_with_weights

    try:
        import_modules(options.modules)
        model = load_with_weights(options.model, options.weights)
        model.export(options.out, options.format, version=options.version, opset_version=options.opset)
    except (OSError, ValueError, TypeError, KeyError, ImportError) as error:
        print(f"anabranch export: {error}", file=sys.stderr)
        return 2
    return 0
