"""Callbacks that write the logs of epochs: to a file of lines, and to a server."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..models.fit_callbacks import Callback
from ..training.base_callback import Logs

_TIMEOUT = 10.0  # seconds


class CSVLogger(Callback):
    """Writes the logs of each epoch as a line of a CSV file.

    The columns are those of the first epoch's logs. If that was not validated, each gets one for its ``val_`` value, as
    in Keras, since later epochs may be (``validation_freq=2``). A value that an epoch does not have is NA.

    Args:
        filename: the file.
        separator: what stands between the values.
        append: go on with a file that exists, and with its columns, instead of replacing it.
    """

    uses_optimizer = False

    def __init__(self, filename: str | os.PathLike[str], separator: str = ",", append: bool = False) -> None:
        super().__init__()
        self.filename = os.fspath(filename)
        self.separator = separator
        self.append = append
        self.keys: list[str] | None = None

    def get_state(self) -> dict[str, object]:
        size = os.path.getsize(self.filename) if os.path.exists(self.filename) else 0
        goes_on = self.append or self.keys is not None
        return {"keys": self.keys, "bytes": size if goes_on else 0}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on with the file, without what the interrupted run wrote after the backup."""
        self.keys = state["keys"]
        if os.path.exists(self.filename):
            os.truncate(self.filename, min(state["bytes"], os.path.getsize(self.filename)))

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self.keys = None

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        logs = logs or {}
        mode = "w" if self.keys is None and not self.append else "a"
        if self.keys is None:
            self.keys = (self._keys_of_file() if self.append else None) or _columns(logs)
        try:
            self._write(mode, self.keys, {"epoch": epoch, **{key: _plain(value) for key, value in logs.items()}})
        except OSError as error:
            error.add_note(
                f"CSVLogger can't write to filename={str(self.filename)!r}: make room there, or name another file."
            )
            raise

    def _write(self, mode: str, keys: list[str], row: Mapping[str, object]) -> None:
        with open(self.filename, mode, newline="", encoding="utf-8") as file:
            import csv  # only this callback needs it

            writer = csv.DictWriter(
                file, ["epoch", *keys], delimiter=self.separator, restval="NA", extrasaction="ignore"
            )
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(row)

    def _keys_of_file(self) -> list[str] | None:
        """Return the columns of the file that exists, behind the epoch."""
        if not os.path.exists(self.filename):
            return None
        with open(self.filename, newline="", encoding="utf-8") as file:
            import csv

            header = next(csv.reader(file, delimiter=self.separator), [])
        return header[1:] if header[:1] == ["epoch"] else None


def _columns(logs: Mapping[str, object]) -> list[str]:
    names = sorted(logs)
    return names if any(name.startswith("val_") for name in names) else [*names, *(f"val_{name}" for name in names)]


class RemoteMonitor(Callback):
    """Sends the logs of each epoch to a server, as a POST request.

    Args:
        root: the server.
        path: the path on it.
        field: the name of the field of the form that holds the JSON text.
        headers: further HTTP headers.
        send_as_json: send the JSON text as it is, with content type ``application/json``.

    A server that does not answer is no reason to stop: the first failure is a warning, later ones are silent.

    Raises:
        ValueError: the address is not an HTTP address.

    >>> RemoteMonitor("http://localhost:9000", send_as_json=True).address
    'http://localhost:9000/publish/epoch/end/'
    """

    uses_optimizer = False

    def __init__(
        self,
        root: str = "http://localhost:9000",
        path: str = "/publish/epoch/end/",
        field: str = "data",
        headers: Mapping[str, str] | None = None,
        send_as_json: bool = False,
    ) -> None:
        super().__init__()
        if not root.startswith(("http://", "https://")):
            raise ValueError(f"RemoteMonitor: root must begin with http:// or https://, got {root!r}.")
        self.root = root
        self.path = path
        self.field = field
        self.headers = headers
        self.send_as_json = send_as_json
        self._has_warned = False

    @property
    def address(self) -> str:
        """The address to which logs are sent."""
        return self.root + self.path

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        import http.client
        import urllib.error
        import urllib.parse
        import urllib.request  # these are slow to import

        written = {"epoch": epoch, **{name: _plain(value) for name, value in (logs or {}).items()}}
        text = json.dumps(written)
        kind = "application/json" if self.send_as_json else "application/x-www-form-urlencoded"
        body = text if self.send_as_json else urllib.parse.urlencode({self.field: text})
        headers = {"Content-Type": kind, **(self.headers or {})}
        request = urllib.request.Request(self.address, body.encode(), headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
                answer.read()
        except (OSError, http.client.HTTPException) as error:  # urllib's errors are OSErrors
            if isinstance(error, urllib.error.HTTPError):
                error.close()  # it holds the connection
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        warnings.warn(
            f"RemoteMonitor could not reach {self.address!r} ({error}); training goes on. Check root and path, and "
            "that the server runs. Further failures are not reported.",
            stacklevel=3,
        )


def _plain(value: object) -> object:
    """Return an array among the logs as a list, a number as it is."""
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
