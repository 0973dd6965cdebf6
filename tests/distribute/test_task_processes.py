"""The tasks of tests: one that does not start says why."""

from __future__ import annotations

import pytest
from shared.tasks import TaskProcess

pytestmark = pytest.mark.xdist_group("tasks")
CLUSTER = {"ps": ["localhost:0"]}


def test_a_task_that_ends_says_why():
    with pytest.raises(AssertionError, match=r"(?s)/job:ps/task:0 did not start: it ended by itself .*--plane"):
        TaskProcess(CLUSTER, "ps", 0, "--plane", "pigeons")


def test_a_task_that_says_nothing_is_ended():
    with pytest.raises(AssertionError, match=r"it had printed nothing after 0 s, and was ended \(exit status -?\d+\)"):
        TaskProcess(CLUSTER, "ps", 0, patience=0.0)


def test_what_a_task_prints_is_printed_at_its_end(capsys: pytest.CaptureFixture[str]):
    task = TaskProcess(CLUSTER, "ps", 0, environment={"PYTHONVERBOSE": "1"})
    assert task.end() == 0
    assert "import 'anabranch'" in task.errors
    assert task.errors in capsys.readouterr().err
