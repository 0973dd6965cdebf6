"""A client of a language server over its standard streams: enough of the protocol to complete and to hover."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class LanguageClient:
    """A server that runs, and a folder that it looks at.

    Args:
        command: starts the server.
        folder: of the user's files.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder)
        self._count = 0
        completion = {"completionItem": {"documentationFormat": ["plaintext"]}}
        capabilities = {"textDocument": {"completion": completion, "hover": {"contentFormat": ["plaintext"]}}}
        options = {"processId": None, "rootUri": folder.as_uri(), "capabilities": capabilities}
        self.ask("initialize", {**options, "workspaceFolders": [{"uri": folder.as_uri(), "name": "user"}]})
        self._send({"method": "initialized", "params": {}})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.ask("shutdown", None)
        self._send({"method": "exit"})
        self._process.communicate(timeout=60)

    def open(self, name: str, text: str) -> str:
        """Open a file with a text; gives its address."""
        uri = (self._folder / name).as_uri()
        document = {"uri": uri, "languageId": "python", "version": 1, "text": text}
        self._send({"method": "textDocument/didOpen", "params": {"textDocument": document}})
        return uri

    def complete(self, uri: str, line: int, character: int) -> dict[str, dict[str, Any]]:
        """Return what can follow at a place, by its label."""
        found = self.ask("textDocument/completion", _place(uri, line, character))
        items = found["items"] if isinstance(found, dict) else found
        return {item["label"]: item for item in items}

    def resolve(self, item: Mapping[str, Any]) -> str:
        """Return the signature and the docstring of something that `complete` gave."""
        documentation = self.ask("completionItem/resolve", item).get("documentation", "")
        return documentation["value"] if isinstance(documentation, dict) else documentation

    def hover(self, uri: str, line: int, character: int) -> str:
        """Return what is shown at a place."""
        found = self.ask("textDocument/hover", _place(uri, line, character))
        return "" if found is None else found["contents"]["value"]

    def ask(self, method: str, params: Any) -> Any:
        """Send a request, answer those of the server meanwhile, and return the result."""
        self._count += 1
        number = self._count
        self._send({"id": number, "method": method, "params": params})
        while True:
            message = self._receive()
            if "method" in message and "id" in message:  # the server asks: for settings, to register, for progress
                wanted = message["params"].get("items", []) if message["method"] == "workspace/configuration" else None
                self._send({"id": message["id"], "result": None if wanted is None else [{} for _ in wanted]})
            elif message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        length = 0
        while line := self._process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        if not length:
            raise EOFError("The language server has ended.")
        return json.loads(self._process.stdout.read(length))


def _place(uri: str, line: int, character: int) -> dict[str, Any]:
    return {"textDocument": {"uri": uri}, "position": {"line": line, "character": character}}
