"""`get_file`: a file from an address, once, into a cache; checked and unpacked."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import urllib.error
import urllib.parse
import urllib.request
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from ...engine.common.atomic import atomic_write

if TYPE_CHECKING:
    from collections.abc import Sequence

_CHUNK = 1 << 20


def get_file(
    fname: str | os.PathLike[str] | None = None,
    origin: str | None = None,
    untar: bool = False,
    md5_hash: str | None = None,
    file_hash: str | None = None,
    cache_subdir: str = "datasets",
    hash_algorithm: str = "auto",
    extract: bool = False,
    archive_format: str | Sequence[str] | None = "auto",
    cache_dir: str | os.PathLike[str] | None = None,
    force_download: bool = False,
) -> str:
    """Fetch a file into the cache, unless it is there, and return its path.

    Args:
        fname: its name in the cache; by default that in `origin`.
        origin: where it comes from: ``https://...``, ``file:///...``.
        untar: old form of ``extract=True`` for tar files.
        md5_hash: old form of `file_hash`.
        file_hash: what the file's hash has to be, in hexadecimal digits. Give it for whatever comes from elsewhere.
        cache_subdir: the folder in the cache.
        hash_algorithm: "md5", "sha256", or "auto" to choose by the length of `file_hash`.
        extract: unpack an archive.
        archive_format: "tar", "zip", a list of these, "auto" for both, or None for neither.
        cache_dir: the cache; by default the folder that the environment variable KERAS_HOME names, or ``~/.keras``.
        force_download: fetch it again.

    Returns:
        The file's path; with `extract` that of the folder with its content.

    Raises:
        ValueError: there is no origin, or what came has another hash. OSError: it can't be fetched.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "words.txt").write_text("to be")
    ...     path = get_file(origin=Path(folder, "words.txt").as_uri(), cache_dir=Path(folder, "cache"))
    ...     Path(path).read_text()
    'to be'
    """
    if origin is None:
        raise ValueError("get_file needs origin, the address of the file, such as 'https://example.org/data.zip'.")
    if md5_hash is not None and file_hash is None:
        file_hash, hash_algorithm = md5_hash, "md5"
    folder = _cache(cache_dir) / cache_subdir
    folder.mkdir(parents=True, exist_ok=True)
    name = _name(fname, origin)
    unpack = extract or untar
    target, unpacked = _places(folder, name, fname is not None) if unpack else (folder / name, folder)
    if force_download or not _is_there(target, file_hash, hash_algorithm):
        _fetch(origin, target, file_hash, hash_algorithm)
    if not unpack:
        return str(target)
    if not extract_archive(target, unpacked, "tar" if untar else archive_format):
        warnings.warn(f"{str(target)!r} is no archive of format {archive_format!r} and was not unpacked.", stacklevel=2)
    return str(unpacked)


def _cache(cache_dir: str | os.PathLike[str] | None) -> Path:
    chosen = cache_dir or os.environ.get("KERAS_HOME") or Path.home() / ".keras"
    return Path(chosen).expanduser()


def _name(fname: str | os.PathLike[str] | None, origin: str) -> str:
    name = os.fspath(fname) if fname else Path(urllib.parse.unquote(urllib.parse.urlsplit(origin).path)).name
    if not name:
        raise ValueError(f"get_file: the address {origin!r} ends without a file's name. Give fname.")
    if Path(name).name != name or name == "..":
        raise ValueError(f"get_file: fname must be a name without folders, got {name!r}. Use cache_dir for the folder.")
    return name


def _places(folder: Path, name: str, is_given: bool) -> tuple[Path, Path]:
    """Return the paths of the archive and of its content, by Keras's rules."""
    if is_given and "." in name:
        return folder / name, folder / f"{name.partition('.')[0]}_extracted"
    return folder / f"{name}_archive", folder / name


def _is_there(target: Path, file_hash: str | None, algorithm: str) -> bool:
    if not target.is_file():
        return False
    if file_hash is None or file_digest(target, algorithm, file_hash) == file_hash.lower():
        return True
    warnings.warn(f"{str(target)!r} has another hash than file_hash; it is fetched again.", stacklevel=4)
    return False


def _fetch(origin: str, target: Path, file_hash: str | None, algorithm: str) -> None:
    """Fetch a file into its place, or leave nothing there."""
    try:
        with urllib.request.urlopen(origin) as source, atomic_write(target) as stream:
            shutil.copyfileobj(source, stream, _CHUNK)
    except OSError as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it holds the connection
        raise OSError(f"get_file: {origin!r} can't be fetched: {error}") from error
    if file_hash is None:
        return
    found = file_digest(target, algorithm, file_hash)
    if found != file_hash.lower():
        target.unlink()
        raise ValueError(
            f"get_file: what came from {origin!r} has the hash {found}, expected {file_hash}. It is damaged, or "
            "another file; nothing was kept."
        )


def file_digest(path: str | os.PathLike[str], algorithm: str = "auto", file_hash: str = "") -> str:
    """Return the hash of a file, in hexadecimal digits.

    Args:
        path: the file.
        algorithm: "md5", "sha256", or "auto": SHA-256 if `file_hash` has 64 digits, else MD5.
        file_hash: the hash that is expected.

    Raises:
        ValueError: the algorithm is unknown.
    """
    if algorithm not in ("auto", "md5", "sha256"):
        raise ValueError(f"hash_algorithm must be 'auto', 'md5' or 'sha256', got {algorithm!r}.")
    name = algorithm if algorithm != "auto" else "sha256" if len(file_hash) == 64 else "md5"
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, name).hexdigest()


def extract_archive(path: Path, folder: Path, archive_format: str | Sequence[str] | None = "auto") -> bool:
    """Unpack an archive, and return whether it was one.

    Raises:
        ValueError: a member would be written outside of `folder`, or the format is unknown.
    """
    formats = ["tar", "zip"] if archive_format == "auto" else archive_format or []
    for name in [formats] if isinstance(formats, str) else formats:
        if name not in ("tar", "zip"):
            raise ValueError(f"archive_format must be 'auto', 'tar', 'zip', a list of these or None, got {name!r}.")
        if name == "tar" and tarfile.is_tarfile(path):
            _untar(path, folder)
            return True
        if name == "zip" and zipfile.is_zipfile(path):
            _unzip(path, folder)
            return True
    return False


def _untar(path: Path, folder: Path) -> None:
    with tarfile.open(path) as archive:
        try:
            archive.extractall(folder, filter="data")
        except tarfile.FilterError as error:
            raise ValueError(f"{str(path)!r} is not safe to unpack: {error}") from error


def _unzip(path: Path, folder: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        root = folder.resolve()
        for name in archive.namelist():
            if not (root / name).resolve().is_relative_to(root):
                raise ValueError(f"{str(path)!r} is not safe to unpack: {name!r} leads out of its folder.")
        archive.extractall(folder)
