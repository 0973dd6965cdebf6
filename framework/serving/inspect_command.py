"""The command ``python -m anabranch inspect``: what a servable takes and gives, how large it is, how it is batched."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .signature import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypedDict

    from .decoding.decoder import Decoder
    from .servable import Servable

    class SignatureDescription(TypedDict):
        """A signature as values for JSON."""

        inputs: list[dict[str, object]]
        outputs: list[dict[str, object]]
        computed_alone_because: str | None
        stateful: bool
        pad: dict[str, object]

    class ModelDescription(TypedDict):
        """A version of a model as values for JSON."""

        path: str
        version: int
        versions: list[int]
        bytes_on_disk: int
        bytes_by_dtype: dict[str, int]
        signatures: dict[str, SignatureDescription]

    class DecoderFacts(TypedDict):
        """The plan of a decoder, and its inputs, as values for JSON."""

        inputs: list[dict[str, object]]
        slots: int
        max_length: int
        end_token: int
        vocabulary: int
        row_bytes: int
        takes_texts: bool
        gives_texts: bool
        takes_prompts_by_chunks: bool

    class DecoderDescription(TypedDict):
        """A version of a decoder as values for JSON."""

        path: str
        version: int
        versions: list[int]
        bytes_on_disk: int
        decoder: DecoderFacts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument("path", help="what model.export() wrote: a folder of versions")
    parser.add_argument("--version", type=int, metavar="N", help="which version (default: the highest)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print what is known of a servable; return the exit status."""
    from .decoding.decoder import Decoder, load_any
    from .storage import versions_in

    try:
        loaded, versions = load_any(options.path, options.version), versions_in(options.path)
        found = describe_decoder(loaded, versions) if isinstance(loaded, Decoder) else describe(loaded, versions)
    except (ValueError, OSError) as error:
        print(f"anabranch inspect: {error}", file=sys.stderr)
        return 2
    text = decoder_as_text if "decoder" in found else as_text
    print(json.dumps(found, indent=2) if options.json else text(found))
    return 0


def describe(servable: Servable, versions: list[int]) -> ModelDescription:
    """Return what is known of a servable, as values for JSON.

    Args:
        servable: a version of a model.
        versions: all versions that there are.
    """
    signatures: dict[str, SignatureDescription] = {}
    for name, signature in servable.signatures.items():
        signatures[name] = {
            "inputs": [_described(info) for info in signature.inputs],
            "outputs": [_described(info) for info in signature.outputs],
            "computed_alone_because": servable.why_alone(name),
            "stateful": bool(signature.states),
            "pad": {name: value for each in signature.paddings for name, value in each.inputs},
        }
    return {
        "path": str(servable.path),
        "version": servable.version,
        "versions": versions,
        "bytes_on_disk": _bytes_below(servable.path),
        "bytes_by_dtype": servable.bytes_by_dtype(),
        "signatures": signatures,
    }


def describe_decoder(decoder: Decoder, versions: list[int]) -> DecoderDescription:
    """Return what is known of a decoder, as values for JSON; as `describe`."""
    plan = decoder.plan
    return {
        "path": str(decoder.path),
        "version": decoder.version,
        "versions": versions,
        "bytes_on_disk": _bytes_below(decoder.path),
        "decoder": {
            "inputs": [_described(info) for info in decoder.signature.inputs],
            "slots": plan.slots,
            "max_length": plan.max_length,
            "end_token": plan.end_token,
            "vocabulary": plan.vocabulary,
            "row_bytes": plan.row_bytes,
            "takes_texts": "tokenize" in plan.entries,
            "gives_texts": decoder.gives_text,
            "takes_prompts_by_chunks": "prefill" in plan.entries,
        },
    }


def decoder_as_text(found: Mapping[str, Any]) -> str:
    """Return the description of a decoder in lines for people."""
    decoder = found["decoder"]
    states = decoder["slots"] * decoder["row_bytes"]
    lines = [
        f"{found['path']}: version {found['version']} of {', '.join(map(str, found['versions']))}, a decoder",
        f"{_size(found['bytes_on_disk'])} on disk; states: {_size(states)}, {_size(decoder['row_bytes'])} a slot",
        f"{decoder['slots']} slots, sequences of up to {decoder['max_length']} tokens out of {decoder['vocabulary']}, "
        f"ended by {decoder['end_token']}",
        *[_line("input", info) for info in decoder["inputs"]],
        f"texts as prompts: {_yes(decoder['takes_texts'])}; texts as answers: {_yes(decoder['gives_texts'])}",
        f"prompts are taken by {'chunks' if decoder['takes_prompts_by_chunks'] else 'step, token by token'}",
    ]
    return "\n".join(lines)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _bytes_below(path: Any) -> int:
    return sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())


def _line(kind: str, info: dict[str, Any]) -> str:
    sizes = ", ".join("any" if size is None else str(size) for size in info["shape"])
    also = ", or PNG or JPEG bytes" if "image" in info else ""
    return f"  {kind:<6} {info['name']}: {info['dtype']} ({sizes}){also}"


def _described(info: TensorInfo) -> dict[str, object]:
    described: dict[str, object] = {"name": info.name, "dtype": info.dtype, "shape": list(info.shape)}
    return described if info.image is None else {**described, "image": info.image.to_json()}


def as_text(found: Mapping[str, Any]) -> str:
    """Return the description in lines for people."""
    kept = ", ".join(f"{dtype} {_size(count)}" for dtype, count in found["bytes_by_dtype"].items())
    lines = [
        f"{found['path']}: version {found['version']} of {', '.join(map(str, found['versions']))}",
        f"{_size(found['bytes_on_disk'])} on disk; weights and constants: {kept or 'none'}",
    ]
    for name, signature in found["signatures"].items():
        lines.append(f"signature {name}")
        for kind in ("inputs", "outputs"):
            lines += [_line(kind[:-1], info) for info in signature[kind]]
        why = signature["computed_alone_because"]
        how = f"one at a time: {why}" if why else "together"
        lines.append(f"  requests that wait are computed {how}")
        if signature["stateful"]:
            lines.append("  layers are stateful: each request belongs to a sequence (sequence_id)")
        if signature["pad"]:
            padded = " and ".join(f"{name} with {value!r}" for name, value in signature["pad"].items())
            lines.append(f"  sequences of several lengths, too: axis 1 of {padded} is filled up")
    return "\n".join(lines)


def _size(count: int) -> str:
    for unit, bytes_ in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= bytes_:
            return f"{count / bytes_:.1f} {unit}"
    return f"{count} bytes"
