"""The job token: a secret that tasks and clients of one job share, and prove to each other without sending it."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

VARIABLE = "ANABRANCH_TOKEN"
_LEAST = 16  # characters


def job_token(token: str | None = None, is_loopback: bool = True) -> bytes:
    """Find the token of the job: the one given, that of the environment, or on loopback the one in the user's file.

    Args:
        token: the token itself.
        is_loopback: whether nobody but this machine can connect; then a file of the user's, which is made when it is
            first needed and which others can't read, holds one.

    Raises:
        ValueError: there is none, or it is too short to be a secret.
        TypeError: it is no string.
        PermissionError: others can read the file.
    """
    if token is not None and not isinstance(token, str):
        raise TypeError(f"token=: expected a str, got {type(token).__name__}.")
    given = token if token is not None else os.environ.get(VARIABLE)
    if given is None and is_loopback:
        given = _of_user()
    if given is None:
        raise ValueError(
            f"Tasks that other machines can reach need a token: set {VARIABLE} to the same text for all tasks and "
            "clients of the job, or give token=. `python -c 'import secrets; print(secrets.token_hex())'` makes one."
        )
    if len(given) < _LEAST:
        raise ValueError(
            f"The token ({VARIABLE if token is None else 'token='}) has {len(given)} characters; expected at least "
            f"{_LEAST}, drawn at random. `python -c 'import secrets; print(secrets.token_hex())'` makes one."
        )
    return given.encode()


def token_file() -> Path:
    """Return the file that holds the user's token for tasks on this machine alone."""
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "anabranch" / "token"


def _of_user() -> str:
    path = token_file()
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f".token.{secrets.token_hex(4)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(secrets.token_hex())
        try:
            os.link(temporary, path)  # fails where another process was quicker
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
    status = path.stat()
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO) or status.st_uid != os.getuid():
        raise PermissionError(
            f"The token in {str(path)!r} may be known to others: its mode is {stat.S_IMODE(status.st_mode):04o}, "
            "expected 0600 and yourself as the owner. Delete it; a new one is made."
        )
    return path.read_text().strip()


def proof(token: bytes, side: str, *parts: str) -> str:
    """Return a proof of having the token: a digest of it, of the side that proves, and of what both sides have said."""
    text = "\0".join([side, *parts]).encode()
    return hmac.new(token, text, hashlib.sha256).hexdigest()


def is_proof(given: object, expected: str) -> bool:
    """Compare proofs, in a time that does not depend on them."""
    return isinstance(given, str) and hmac.compare_digest(given.encode(), expected.encode())
