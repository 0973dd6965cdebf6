"""The JobSet that ``launch --k8s`` prints: its pods find the cluster as processes that a launcher starts do."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from anabranch.__main__ import main
from anabranch.distribute.commands.kubernetes import job_set
from anabranch.distribute.environment import cluster_from_environment


def expanded(text: str, environment: dict[str, str]) -> str:
    """Put in variables as Kubernetes does: those that come before, and nothing else."""
    return re.sub(r"\$\((\w+)\)", lambda found: environment.get(found[1], found[0]), text)


def pods(jobs: dict[str, Any]) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return the command and the environment of each pod, by the host name that a JobSet gives it."""
    found: dict[str, tuple[list[str], dict[str, str]]] = {}
    name, spec = jobs["metadata"]["name"], jobs["spec"]
    for job in spec["replicatedJobs"]:
        inner = job["template"]["spec"]
        assert inner["completionMode"] == "Indexed"
        assert inner["completions"] == inner["parallelism"]
        (container,) = inner["template"]["spec"]["containers"]
        for index in range(inner["completions"]):
            environment: dict[str, str] = {}
            for each in container["env"]:
                source = each.get("valueFrom", {})
                if "fieldRef" in source:
                    assert "job-completion-index" in source["fieldRef"]["fieldPath"]
                    environment[each["name"]] = str(index)
                elif "secretKeyRef" in source:
                    environment[each["name"]] = f"{source['secretKeyRef']['name']}/{source['secretKeyRef']['key']}"
                else:
                    environment[each["name"]] = expanded(each["value"], environment)
            command = [expanded(part, environment) for part in container["command"]]
            found[f"{name}-{job['name']}-0-{index}.{spec['network']['subdomain']}"] = command, environment
    return found


def test_pods_find_the_cluster_and_their_place(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["launch", "-n", "3", "--ps", "2", "--max-restarts", "4", "--k8s", "--image", "me/train:1"]
    assert main([*arguments, "--name", "train", "script.py", "--rate", "0.1"]) == 0
    text = capsys.readouterr().out
    jobs = json.loads("".join(line for line in text.splitlines(keepends=True) if not line.startswith("#")))
    assert "secret generic train-token --from-literal=token=" in text
    assert (jobs["apiVersion"], jobs["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert jobs["spec"]["failurePolicy"] == {"maxRestarts": 4}
    assert jobs["spec"]["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["worker"]}
    found = pods(jobs)
    assert len(found) == 5
    for host, (command, environment) in found.items():
        assert environment["ANABRANCH_TOKEN"] == "train-token/token"
        if "-ps-" in host:
            assert command[:4] == ["python", "-m", "anabranch", "worker"]
            given = dict(zip(command[4::2], command[5::2], strict=True))
            cluster, task = json.loads(given["--cluster"]), (given["--job-name"], int(given["--task-index"]))
            assert cluster[task[0]][task[1]] == f"{host}:2201"
            assert given["--bind"] == host, "where other pods reach it"
        else:
            assert command == ["python", "script.py", "--rate", "0.1"]
            place = cluster_from_environment(environment)
            assert place is not None
            name = place.cluster.task_name(place.job_name, place.task_index)
            assert place.cluster.address(name) == f"{host}:2203"
            assert len(place.cluster.tasks) == 5


def test_without_ps_tasks_there_are_no_pods_for_them() -> None:
    found = pods(job_set("train", "me/train:1", 2, 0, ["script.py"]))
    assert [*found] == ["train-worker-0-0.train", "train-worker-0-1.train"]
    place = cluster_from_environment(found["train-worker-0-1.train"][1])
    assert place is not None
    assert (place.task_index, len(place.cluster.tasks)) == (1, 2)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--name", "train"], "--k8s needs --image"),
        (["--image", "me/train:1", "--name", "Train"], "lower-case letters"),
        (["--image", "me/train:1", "--name", "train-"], "ends with no hyphen"),
        (["--image", "me/train:1", "--name", "x" * 60], "is at most 44 long"),
    ],
)
def test_what_kubernetes_would_refuse_is_refused(
    arguments: list[str], match: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", "-n", "2", "--k8s", *arguments, "script.py"]) == 2
    assert match in capsys.readouterr().err
