"""Object code on the disk: which folders and files are trusted, what is kept, what goes."""

from __future__ import annotations

import os
import random
import resource
import stat
import subprocess
import sys
import time
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from anabranch.engine.codegen.llvm import object_files
from anabranch.engine.codegen.llvm.object_files import ObjectFiles, cache_folder, sources_digest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="owners and modes of files are POSIX's")

NAME = "ab" * 32
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser gives files to others")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def keeps_nothing(files: ObjectFiles) -> bool:
    files.write(NAME, b"code")
    return not files.has(NAME) and files.read(NAME) is None


@contextmanager
def umask(mask: int) -> Generator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def as_user(user: int) -> Generator[None]:
    """Files are opened with the rights of another user."""
    before = os.geteuid()
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(before)


def test_folders_and_files_are_made_for_this_user_alone(tmp_path: Path) -> None:
    with umask(0):
        ObjectFiles(tmp_path / "new" / "kernels").write(NAME, b"code")
    assert mode(tmp_path / "new") == 0o700
    assert mode(tmp_path / "new" / "kernels") == 0o700
    assert mode(tmp_path / "new" / "kernels" / f"{NAME}.o") == 0o600
    assert ObjectFiles(tmp_path / "new" / "kernels").read(NAME) == b"code"


@pytest.mark.parametrize("others", [0o770, 0o702, 0o777, 0o1777])
def test_a_folder_that_others_may_write_is_refused_with_one_warning(tmp_path: Path, others: int) -> None:
    folder = tmp_path / "kernels"
    ObjectFiles(folder).write(NAME, b"code")
    folder.chmod(others)
    files = ObjectFiles(folder)
    with pytest.warns(RuntimeWarning, match=rf"others may write to it \(mode {others:04o}\).*chmod 700 '{folder}'"):
        assert not files.has(NAME)
    assert files.read(NAME) is None
    files.write("cd" * 32, b"more")
    assert [path.name for path in folder.iterdir()] == [f"{NAME}.o"]
    folder.chmod(0o755)  # to be read by others does no harm
    assert ObjectFiles(folder).read(NAME) == b"code"


@needs_root
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    ObjectFiles(folder).write(NAME, b"code")
    os.chown(folder, NOBODY, NOBODY)
    with pytest.warns(RuntimeWarning, match=f"belongs to user {NOBODY}, and this process runs as user 0"):
        assert ObjectFiles(folder).read(NAME) is None


@pytest.mark.parametrize("others", [0o660, 0o602])
def test_a_file_that_others_may_write_is_not_read_but_replaced(tmp_path: Path, others: int) -> None:
    files, path = ObjectFiles(tmp_path / "kernels"), tmp_path / "kernels" / f"{NAME}.o"
    files.write(NAME, b"code")
    path.chmod(others)
    assert files.read(NAME) is None
    files.write(NAME, b"code")
    assert files.read(NAME) == b"code"
    assert mode(path) == 0o600


@needs_root
def test_a_file_of_another_user_is_not_read(tmp_path: Path) -> None:
    files = ObjectFiles(tmp_path / "kernels")
    files.write(NAME, b"code")
    os.chown(tmp_path / "kernels" / f"{NAME}.o", NOBODY, NOBODY)
    assert files.read(NAME) is None


def test_a_file_does_not_take_the_place_of_another_one(tmp_path: Path) -> None:
    files, other = ObjectFiles(tmp_path), "cd" * 32
    files.write(NAME, b"code")
    (tmp_path / f"{NAME}.o").rename(tmp_path / f"{other}.o")
    assert files.read(other) is None
    (tmp_path / f"{other}.o").rename(tmp_path / "elsewhere")
    (tmp_path / f"{NAME}.o").symlink_to(tmp_path / "elsewhere")
    assert files.read(NAME) is None


def test_names_follow_the_sources_of_the_code_generator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = ObjectFiles.name("host", "key")
    assert ObjectFiles.name("host", "key") == before
    assert len({before, ObjectFiles.name("other", "key"), ObjectFiles.name("host", "other")}) == 3
    for folder in (".", "llvm", "regions"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "print.py").write_text("1")
    monkeypatch.setattr(object_files, "__file__", str(tmp_path / "llvm" / "object_files.py"))
    digests = []
    for folder, text in (("llvm", "1"), ("llvm", "2"), ("regions", "2"), (".", "2")):
        (tmp_path / folder / "print.py").write_text(text)
        sources_digest.cache_clear()
        digests.append(sources_digest())
    (tmp_path / "regions" / "print.py").unlink()
    sources_digest.cache_clear()
    assert sources_digest() is None
    with pytest.warns(RuntimeWarning, match="sources of the modules that print code are missing"):
        assert not ObjectFiles(tmp_path).has(NAME)
    monkeypatch.undo()
    sources_digest.cache_clear()
    assert len({*digests}) == 4
    assert ObjectFiles.name("host", "key") == before


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    files, names = ObjectFiles(tmp_path, most_bytes=10_000), [f"{k:064x}" for k in range(20)]
    now = time.time()
    for k, name in enumerate(names):
        files.write(name, bytes(1000 - 32))
        os.utime(tmp_path / f"{name}.o", (now - 10_000_000 + k, now - 10_000_000 + k))
        if k > 3:
            assert files.read(names[3]) is not None  # it is used again and again
    kept = {path.stem for path in tmp_path.iterdir()}
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 10_000
    assert names[3] in kept
    assert kept - {names[3]} == {*names[-len(kept) + 1 :]}
    assert len(kept) >= 8


def test_files_of_former_processes_count(tmp_path: Path) -> None:
    for k in range(5):
        ObjectFiles(tmp_path, most_bytes=10_000_000).write(f"{k:064x}", bytes(3000))
        os.utime(tmp_path / f"{k:064x}.o", (k, k))
    ObjectFiles(tmp_path, most_bytes=10_000).write("f" * 64, bytes(3000))
    assert {path.stem[-1] for path in tmp_path.iterdir()} == {"3", "4", "f"}


def test_processes_that_write_little_look_through_the_folder_as_often_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that one of 16 processes looks, each of which writes a sixteenth of what is written between two looks."""
    looks: list[Path] = []
    monkeypatch.setattr(ObjectFiles, "_make_room", lambda self, folder: looks.append(folder))
    shares = iter(range(16))
    monkeypatch.setattr(object_files, "_own_share", lambda: (next(shares) + 0.5) / 16)
    for k in range(16):
        ObjectFiles(tmp_path, most_bytes=16 * 16_000).write(f"{k:064x}", bytes(1000 - 32))
    assert len(looks) == 1


def test_each_process_begins_to_count_at_a_number_of_its_own() -> None:
    state = random.getstate()
    shares = [object_files._own_share() for _ in range(50)]
    assert 0 <= min(shares) < 0.5 < max(shares) < 1
    assert random.getstate() == state, "the user's own draws"


def test_by_default_256_megabytes_are_kept() -> None:
    assert object_files.MOST_BYTES == 256 * 2**20


def test_a_full_disk_leaves_no_temporary_file(tmp_path: Path) -> None:
    files = ObjectFiles(tmp_path)
    files.write(NAME, b"code")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        files.write("cd" * 32, bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == [f"{NAME}.o"]


def test_what_a_killed_process_left_goes_after_an_hour(tmp_path: Path) -> None:
    for name, age in (("tmpold.tmp", 4000), ("tmpnew.tmp", 10)):
        (tmp_path / name).write_bytes(b"half")
        last_write = time.time() - age
        os.utime(tmp_path / name, (last_write, last_write))
    ObjectFiles(tmp_path, most_bytes=100).write(NAME, b"code")
    assert {path.name for path in tmp_path.iterdir()} == {f"{NAME}.o", "tmpnew.tmp"}


@pytest.mark.parametrize("home", ["", "relative/home", "/nonexistent/home"])
def test_without_a_home_nothing_is_kept_and_one_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANABRANCH_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", home or "~")
    files = ObjectFiles()
    with pytest.warns(RuntimeWarning, match="ANABRANCH_CACHE_DIR") as seen:
        assert keeps_nothing(files)
    assert len(seen) == 1
    assert [*tmp_path.iterdir()] == []
    assert not os.path.exists("/nonexistent")


def test_a_home_that_cannot_be_searched_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o600)
    monkeypatch.delenv("ANABRANCH_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(home))
    assert sources_digest() is not None  # which is read with the rights of this user
    files = ObjectFiles()
    with as_user(os.geteuid() or NOBODY), pytest.warns(RuntimeWarning, match="Permission denied") as seen:
        assert keeps_nothing(files)
    assert len(seen) == 1


def test_a_folder_that_may_be_read_only_is_read(tmp_path: Path) -> None:
    ObjectFiles(tmp_path / "kernels").write(NAME, b"code")
    files = ObjectFiles(tmp_path / "kernels")
    (tmp_path / "kernels").chmod(0o500)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert files.read(NAME) == b"code"


def test_an_own_folder_may_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ANABRANCH_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # invalid, and ignored
    assert cache_folder() == tmp_path / ".cache" / "anabranch" / "kernels"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "anabranch" / "kernels"
    monkeypatch.setenv("ANABRANCH_CACHE_DIR", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own" / "kernels"


PROGRAM = """
import numpy as np
import anabranch as ab
with ab.Graph().as_default():
    x = ab.placeholder((64, 64), "float32")
    y = ab.ops.tanh(x) * 2.0 + ab.ops.exp(x)
    print(float(ab.Session().run(y, {x: np.zeros((64, 64), "float32")})[0, 0]))
"""


def test_a_program_runs_without_a_cache_and_says_so_once(tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    folder.mkdir()
    folder.chmod(0o777)
    environment = {**os.environ, "ANABRANCH_CACHE_DIR": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert float(result.stdout) == 1.0
    assert result.stderr.count("RuntimeWarning") == 1
    assert [*folder.iterdir()] == []


# What is compiled when it is called first: rows that are gathered, added up and written, columns, random numbers,
# matrices and stacks of them. One key stands for one text.
CALLED = """
import numpy as np
import anabranch as ab
from anabranch.engine.codegen.llvm import builder

if {is_cached}:
    def refuse(*_):
        raise AssertionError("code is printed that is cached")
    builder.FunctionBuilder.text = refuse
else:
    from anabranch.engine.codegen.llvm.library import Library
    later, texts = Library.later, {{}}

    def noted(self, key, text, *others):
        assert texts.setdefault(key, text()) == text(), key
        return later(self, key, text, *others)
    Library.later = noted
ops, rng = ab.ops, np.random.default_rng(0)
table, columns = rng.random((3000, 64), "float32"), rng.random((512, 600), "float32")
matrix = rng.random((128, 128), "float32") + 128 * np.eye(128, dtype="float32")
stack = np.stack([matrix[:4, :4]] * 4096)
with ab.Graph().as_default():
    t, c, m, s = (ab.placeholder(x.shape, "float32") for x in (table, columns, matrix, stack))
    ids = ab.placeholder((None,), "int32")
    taken = ops.take(t, ids, axis=0)
    product = ops.matmul(m, ops.transpose(m))
    made = [
        *ab.gradients(ops.sum(taken * taken), [t]),
        ops.segment_sum(taken, ops.sort(ids) // 2, 1500),
        ops.take(c, ids[:300] // 8, axis=1),
        ab.random.normal((64, 1024), seed=1),
        ops.cholesky(product),
        ops.solve(s, s),
        *ab.gradients(ops.sum(ops.cholesky(product)), [m]),
        ops.inv(m),
        ops.slogdet(s)[1],
        ops.inv(s),
        *ab.gradients(ops.sum(ops.cholesky(ops.matmul(s, ops.swapaxes(s, 1, 2)))), [s]),
        *[ops.solve_triangular(a, a, lower=lower) for a in (m, s, ops.cast(m, "float64")) for lower in (True, False)],
    ]
    rows = ab.Variable(table)
    looked_up = ops.take(rows, ids[:900] // 4, axis=0)
    written = ab.optimizers.Adagrad(0.1).apply(ab.gradients(ops.sum(looked_up * looked_up), [rows]), [rows])
    made.append(ops.sum(looked_up))
    feeds = {{t: table, c: columns, m: matrix, s: stack, ids: np.arange(3000) % 2500}}
    found = ab.Session().run([*made, written], feeds)
    print(sum(float(np.sum(x)) for x in found[:-1]), float(np.sum(rows.numpy())))
"""


def test_nothing_is_printed_for_what_is_cached(tmp_path: Path) -> None:
    environment = {**os.environ, "ANABRANCH_CACHE_DIR": str(tmp_path)}
    results = [
        subprocess.run(
            [sys.executable, "-c", CALLED.format(is_cached=is_cached)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        for is_cached in (False, True)
    ]
    assert [result.stderr for result in results] == ["", ""]
    assert results[0].stdout == results[1].stdout
