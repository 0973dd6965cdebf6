"""Work in another thread: it is waited for, its errors are raised in the caller, and a lost thread is no loss."""

from __future__ import annotations

import threading

import pytest

from anabranch.engine.runtime.beside import Beside


def test_it_is_made_in_another_thread_and_waited_for():
    may_go_on = threading.Event()

    def make() -> str:
        may_go_on.wait()
        return threading.current_thread().name

    beside = Beside(make, "maker")
    may_go_on.set()
    assert beside.result() == "maker"
    assert beside.result() == "maker"


def test_an_error_is_raised_where_the_result_is_wanted():
    called: list[str] = []

    def make() -> None:
        called.append(threading.current_thread().name)
        raise ValueError("not today")

    beside = Beside(make, "maker")
    with pytest.raises(ValueError, match="not today"):
        beside.result()
    assert called == ["maker", threading.current_thread().name]


def test_what_a_lost_thread_did_not_make_is_made_anew(monkeypatch: pytest.MonkeyPatch):
    """As in a process that was forked, where threads have ended without a word."""
    monkeypatch.setattr(threading.Thread, "run", lambda self: None)
    assert Beside(lambda: 3, "maker").result() == 3


def test_without_threads_the_caller_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert Beside(lambda: 3, "none").result() == 3
