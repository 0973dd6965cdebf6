"""The command line: ``python -m anabranch COMMAND``, also installed as ``anabranch``."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import re
import sys
import textwrap
from collections.abc import Sequence
from types import ModuleType

from . import version
from .engine.runtime.collector import leave_out_modules, without_collector

# By name: the module, imported when the command is given, and a line of help. A module has `add_arguments(parser)` and
# `run(options)`, which gives the exit status; its docstring describes the command.
_COMMANDS: dict[str, tuple[str, str]] = {
    "export": (".framework.serving.exporting.command", "export a .keras file for serving"),
    "inspect": (".framework.serving.inspect_command", "show what an exported model takes and gives"),
    "launch": (
        ".distribute.commands.launch",
        "run a script in several processes of this machine, as workers of a cluster",
    ),
    "predict": (".framework.serving.predict_command", "compute an exported model's outputs for the rows of a file"),
    "profile-machine": (".engine.session.profile_machine", "measure this machine, for what the compiler decides by"),
    "serve": (".framework.serving.command", "serve exported models over HTTP and gRPC"),
    "status": (".distribute.commands.status", "show what the tasks of a cluster do"),
    "worker": (".distribute.commands.worker", "run one task of a cluster in this process"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; gives the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser("anabranch", description="Commands of anabranch.")
    parser.add_argument("--version", action="version", version=f"anabranch {version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (target, summary) in _COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        if name in given[:1]:  # others need not be imported
            module = _imported(target, is_own_process=arguments is None)
            command.description = _description(summary, module.__doc__ or "")
            command.formatter_class = argparse.RawDescriptionHelpFormatter
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    options, unknown = parser.parse_known_args(given)
    if unknown:
        command = commands.choices[options.command]
        command.error(f"unrecognized arguments: {' '.join(unknown)}{_meant(command, unknown)}")
    options.command_line = given[1:]  # as it was typed, for commands that start themselves again
    try:
        status = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # who read the output has enough of it, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is written when Python ends
        return 141  # as of other commands that SIGPIPE ends
    return status


def _imported(target: str, is_own_process: bool) -> ModuleType:
    """Import the module of a command, and all that it needs, without the garbage collector, for the modules stay.

    In a process of the command's own they are left out of all collections, also of the last one.
    """
    module = without_collector(importlib.import_module)(target, __package__)
    if is_own_process:
        leave_out_modules()
    return module


def _meant(command: argparse.ArgumentParser, unknown: Sequence[str]) -> str:
    """Return a question that names the options of `command` that are like the `unknown` ones."""
    known = re.findall(r"--[\w-]+", command.format_usage())
    words = [word.split("=")[0] for word in unknown if word.startswith("--")]
    alike = [name for word in words for name in known if name.endswith(word[1:])]  # --port: --rest-port, --grpc-port
    alike = alike or [name for word in words for name in difflib.get_close_matches(word, known)]
    return f". Did you mean {' or '.join(dict.fromkeys(alike))}?" if alike else ""


def _description(summary: str, docstring: str) -> str:
    """Return what a terminal shows of a command: its line of help, and further paragraphs of its module's docstring."""
    further = re.split(r"\n\s*\n", docstring.replace("`", "").strip())[1:]
    paragraphs = [f"{summary[0].upper()}{summary[1:]}.", *further]
    return "\n\n".join(textwrap.fill(" ".join(each.split()), 80) for each in paragraphs)


if __name__ == "__main__":
    sys.exit(main())
