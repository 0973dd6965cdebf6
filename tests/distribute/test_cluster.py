"""Cluster specifications and job tokens."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from anabranch.distribute import ClusterSpec
from anabranch.distribute.cluster import is_loopback, joined_address, split_address
from anabranch.distribute.token import is_proof, job_token, proof, token_file


def test_a_cluster_is_a_mapping_from_jobs_to_addresses():
    cluster = ClusterSpec({"ps": ["a:1", "b:1"], "worker": {1: "c:1"}})
    assert dict(cluster) == {"ps": ["a:1", "b:1"], "worker": {1: "c:1"}}
    assert cluster.tasks == ["/job:ps/task:0", "/job:ps/task:1", "/job:worker/task:1"]
    assert cluster.address("/job:worker/task:1") == "c:1"
    assert cluster.task_name("ps", 1) == "/job:ps/task:1"


def test_a_cluster_goes_through_json():
    cluster = ClusterSpec({"ps": ["a:1"], "worker": {3: "c:1"}})
    again = ClusterSpec.from_json(cluster.as_json())
    assert again.tasks == cluster.tasks
    assert again.address("/job:worker/task:3") == "c:1"


def test_tasks_keep_their_numbers():
    """TensorFlow: "a sparse job"; a copy of the cluster made task 2 task 1."""
    cluster = ClusterSpec({"ps": {2: "b:1", 0: "a:1"}, "worker": {0: "c:1", 1: "d:1"}})
    for each in (cluster, ClusterSpec(cluster), ClusterSpec(dict(cluster))):
        assert each.tasks == ["/job:ps/task:0", "/job:ps/task:2", "/job:worker/task:0", "/job:worker/task:1"]
        assert each["ps"] == {0: "a:1", 2: "b:1"}
        assert each["worker"] == ["c:1", "d:1"]
        assert repr(each) == "ClusterSpec({'ps': {0: 'a:1', 2: 'b:1'}, 'worker': ['c:1', 'd:1']})"
    assert cluster != ClusterSpec({"ps": ["a:1", "b:1"], "worker": ["c:1", "d:1"]})


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ({}, "there is no task"),
        ({"ps": []}, "there is no task"),
        ({"p/s": ["a:1"]}, "'p/s' is no name of a job"),
        ({"ps": ["a"]}, "'a' is no address. Write 'host:port'"),
        ({"ps": ["a:99999"]}, "'a:99999' is no address"),
        ({"ps": {"x": "a:1"}}, "job 'ps' has a task 'x'"),
        ({"ps": ["a:1"], "worker": ["a:1"]}, "/job:ps/task:0 and /job:worker/task:0 have one address, a:1"),
    ],
)
def test_what_is_no_cluster_is_named(jobs: Any, message: str):
    with pytest.raises(ValueError, match=message.replace("/", "/")):
        ClusterSpec(jobs)


def test_what_is_no_mapping_is_named():
    with pytest.raises(TypeError, match="expected a dict such as"):
        ClusterSpec(["a:1"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="job 'ps' is 'a:1'; expected a list"):
        ClusterSpec({"ps": "a:1"})
    with pytest.raises(ValueError, match="is not JSON"):
        ClusterSpec.from_json("{")


def test_a_task_that_is_not_there_is_named():
    cluster = ClusterSpec({"ps": ["a:1"]})
    with pytest.raises(ValueError, match="no task /job:ps/task:1; it has /job:ps/task:0"):
        cluster.task_name("ps", 1)
    with pytest.raises(ValueError, match="no task /job:x/task:0"):
        cluster.address("/job:x/task:0")


def test_ports_that_are_to_be_chosen_may_be_the_same():
    assert len(ClusterSpec({"ps": ["localhost:0", "localhost:0"]}).tasks) == 2


@pytest.mark.parametrize("address", ["localhost:1", "[::1]:22", "10.0.0.1:65535"])
def test_addresses_come_apart_and_together(address: str):
    assert joined_address(*split_address(address)) == address


def test_loopback_is_told_from_what_others_reach():
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("10.1.2.3")


# --- tokens ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("ANABRANCH_TOKEN")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def test_without_a_token_the_user_has_one_that_nobody_else_reads(config: Path):
    first = job_token()
    assert job_token() == first
    assert len(first) >= 64
    assert stat.S_IMODE(token_file().stat().st_mode) == 0o600
    assert [path.name for path in token_file().parent.iterdir()] == ["token"]


def test_a_file_that_others_read_is_refused(config: Path):
    job_token()
    token_file().chmod(0o644)
    with pytest.raises(PermissionError, match="mode is 0644, expected 0600"):
        job_token()


def test_a_given_token_goes_first(config: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANABRANCH_TOKEN", "of the environment")
    assert job_token() == b"of the environment"
    assert job_token("of the argument!") == b"of the argument!"
    assert not token_file().exists()


def test_tasks_that_others_reach_need_a_token(config: Path):
    with pytest.raises(ValueError, match="need a token: set ANABRANCH_TOKEN"):
        job_token(is_loopback=False)
    with pytest.raises(ValueError, match="has 5 characters; expected at least 16"):
        job_token("short")


def test_a_proof_depends_on_all_that_was_said():
    token = b"0123456789abcdef"
    made = proof(token, "accepts", "a", "b")
    assert is_proof(made, proof(token, "accepts", "a", "b"))
    for other in [
        proof(token, "connects", "a", "b"),
        proof(token, "accepts", "a", "c"),
        proof(token, "accepts", "ab", ""),
        proof(b"another token is", "accepts", "a", "b"),
        None,
    ]:
        assert not is_proof(other, made)
