"""Printed code is shown in tracebacks while its program is there; and programs go while `linecache` is looked at."""

from __future__ import annotations

import linecache
import os
import traceback
from collections.abc import Generator
from typing import Any

import pytest
from shared.machines import graph_on

import anabranch as ab
from anabranch.engine.runtime import code as printed_code
from anabranch.engine.runtime.code import compiled

graph = graph_on(cpu=2)
SOURCE = "def quotient(x):\n    return 1 // x\n"


class Owner:
    """Stands for a program."""


@pytest.fixture(autouse=True)
def _names_of_this_test(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    monkeypatch.setattr(printed_code, "_retired", {})
    monkeypatch.setattr(printed_code, "_recent", {})
    monkeypatch.setattr(printed_code, "_FEWEST_RETIRED", 3)
    before = set(linecache.cache)
    yield
    for name in linecache.cache.keys() - before:
        del linecache.cache[name]


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sources that are compiled, in order."""
    found: list[str] = []

    def counted(text: str, *given: Any) -> Any:
        found.append(text)
        return compile(text, *given)

    monkeypatch.setattr(printed_code, "compile", counted, raising=False)
    return found


def test_a_traceback_shows_the_line():
    owner = Owner()
    code = compiled(SOURCE, "step", owner)
    namespace: dict[str, Any] = {}
    code.run_in(namespace)
    with pytest.raises(ZeroDivisionError) as caught:
        namespace["quotient"](0)
    text = "".join(traceback.format_exception(caught.value))
    assert f'File "{code.filename}", line 2, in quotient' in text
    assert "return 1 // x" in text


def test_the_same_source_has_the_names_of_each_program():
    owners = [Owner(), Owner()]
    source = f"{SOURCE}def outer():\n    return [quotient(x) for x in range(3)]\n"
    found = [compiled(source, "step", owner) for owner in owners]
    for code in found:
        namespace: dict[str, Any] = {}
        code.run_in(namespace)
        with pytest.raises(ZeroDivisionError) as caught:
            namespace["outer"]()
        places = {frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)[1:]}
        assert places == {code.filename}
    name, other_name = [code.filename for code in found]
    assert name != other_name
    del owners[0]
    assert linecache.getline(name, 2) == ""
    assert linecache.getline(other_name, 2) == "    return 1 // x\n"


RARE = "def often(x):\n    return rarely(x) if x < 2 else x\n\ndef rarely(x):\n    return 1 // x\n"


def test_a_rare_function_is_compiled_once_it_is_called(compilations: list[str]):
    owner = Owner()
    code = compiled(RARE, "machine", owner, {"rarely": (3, 5)})
    scopes: list[dict[str, Any]] = [{}, {}]
    for scope in scopes:
        code.run_in(scope)
        assert scope["often"](3) == 3
    assert compilations == ["def often(x):\n    return rarely(x) if x < 2 else x\n\n\n\n"]
    assert [scope["often"](1) for scope in [*scopes, *scopes]] == [1, 1, 1, 1]
    assert [text.strip() for text in compilations[1:]] == ["def rarely(x):\n    return 1 // x"]  # once for both


def test_a_traceback_shows_the_line_of_a_rare_function():
    owner = Owner()
    code, scope = compiled(RARE, "machine", owner, {"rarely": (3, 5)}), dict[str, Any]()
    code.run_in(scope)
    rarely = scope["rarely"]
    assert rarely.__name__ == "rarely"
    for function in (rarely, rarely, scope["often"]):
        with pytest.raises(ZeroDivisionError) as caught:
            function(0)
        text = "".join(traceback.format_exception(caught.value))
        assert f'File "{code.filename}", line 5, in rarely\n    return 1 // x' in text


def test_what_dead_values_do_is_compiled_once_there_are_some(graph: ab.Graph, compilations: list[str]):
    x = ab.placeholder((), "float32")
    with ab.device("cpu:1"):
        doubled = x * 2.0
    with ab.device("cpu:0"):
        added = doubled + 1.0
        no, yes = ab.raw.switch(added, added > 0.0)
        chosen = ab.raw.merge([-no, yes]).output
    session = ab.Session()
    assert session.run(added, {x: 3.0}) == 7.0
    assert len(compilations) == 1
    compilations.clear()
    assert session.run(chosen, {x: 3.0}) == 7.0
    machine, *rare = [text.strip() for text in compilations]
    assert "def " in machine
    assert "def dead_" not in machine
    assert "def kill_" not in machine
    assert [text.partition("_")[0] for text in rare] == ["def dead"]  # of the negative
    assert session.run(chosen, {x: 4.0}) == 9.0
    assert len(compilations) == 2


def test_code_is_kept_of_a_few_sources(compilations: list[str]):
    owner = Owner()
    sources = [f"x = {number}\n" for number in range(5)]
    for source in [*sources, *sources[1:], sources[0], sources[0]]:
        compiled(source, "step", owner)
    assert compilations == [*sources, sources[0]]


def test_names_tell_what_it_is_and_which_one():
    first, second = Owner(), Owner()
    names = [compiled(SOURCE, "step", first).filename, compiled(SOURCE, "machine", second).filename]
    assert names[0].startswith("<anabranch step ")
    assert names[1].startswith("<anabranch machine ")
    assert names[0] != names[1]


def test_lines_are_let_go_with_the_program():
    owner = Owner()
    filename = compiled(SOURCE, "step", owner).filename
    assert linecache.getline(filename, 2) == "    return 1 // x\n"
    del owner
    assert linecache.getline(filename, 2) == ""


def test_a_program_may_go_while_the_lines_of_all_files_are_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Any):
    """As when garbage is collected within `linecache.checkcache`, which looks up by name what it has listed before."""
    path = tmp_path / "module.py"
    path.write_text("x = 1\n")
    assert linecache.getline(str(path), 1) == "x = 1\n"  # a file whose time is looked at
    owners = [Owner() for _ in range(3)]
    for owner in owners:
        compiled(SOURCE, "step", owner)
    stat = os.stat

    def collecting(name: Any, **options: Any) -> os.stat_result:
        owners.clear()
        return stat(name, **options)

    owner = None
    monkeypatch.setattr(os, "stat", collecting)
    linecache.checkcache()
    assert not owners


def test_names_are_given_again_so_that_there_are_few():
    before = len(linecache.cache)
    names = [compiled(SOURCE, "step", Owner()).filename for _ in range(40)]
    assert len(set(names)) == len(linecache.cache) - before == 4
    assert names[:4] == names[4:8]  # the oldest first, and none as long as there are few


def test_a_name_that_is_given_again_has_the_lines_of_its_new_program():
    names = [compiled(SOURCE, "step", Owner()).filename for _ in range(4)]
    owner = Owner()
    filename = compiled("y = 2\n", "step", owner).filename
    assert filename == names[0]
    assert linecache.getlines(filename) == ["y = 2\n"]


def test_no_name_is_that_of_two_programs_that_are_there():
    owners = [Owner() for _ in range(20)]
    names = [compiled(SOURCE, "step", owner).filename for owner in owners]
    assert len(set(names)) == 20


def test_lines_that_were_forgotten_do_not_come_back():
    owner = Owner()
    filename = compiled(SOURCE, "step", owner).filename
    linecache.clearcache()
    del owner
    assert filename not in linecache.cache


def test_what_has_an_error_of_syntax_leaves_no_lines():
    owner = Owner()
    before = set(linecache.cache)
    with pytest.raises(SyntaxError):
        compiled("def", "step", owner)
    assert set(linecache.cache) == before
