"""A JobSet of Kubernetes that runs a script in workers and ps tasks, each a pod: what ``launch --k8s`` prints.

It is JSON, which is YAML as well. Pods find each other by the names that a JobSet gives them.

Source: https://jobset.sigs.k8s.io, API jobset.x-k8s.io/v1alpha2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

WORKER_PORT, PS_PORT = 2203, 2201
_INDEX = "TASK_INDEX"
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LONGEST = 63  # characters of a label of DNS
_SUFFIX = len("-0-xxxxx")  # of the names of pods: the number of the Job, and what Kubernetes draws
_TOKEN_KEY = "token"


def job_set(
    name: str, image: str, workers: int, ps: int, script: Sequence[str], max_restarts: int = 0
) -> dict[str, Any]:
    """Describe a JobSet.

    Args:
        name: of the JobSet, and the beginning of the names of its pods.
        image: the container's, with Python, anabranch and the script.
        workers, ps: how many pods there are of each.
        script: the script and its arguments, as they are called in the container.
        max_restarts: how often all pods are started again when one fails.

    Raises:
        ValueError: the name can't be, or there is no image.
    """
    if not image:
        raise ValueError("--k8s needs --image, with Python, anabranch and the script.")
    longest = f"{name}-worker-0-{max(workers, ps) - 1}"
    if not _LABEL.fullmatch(name) or len(longest) + _SUFFIX > _LONGEST:
        raise ValueError(
            f"--name {name!r}: names of pods are made of it, so it has lower-case letters, digits and hyphens, begins "
            f"with a letter, ends with no hyphen, and is at most {_LONGEST - _SUFFIX - len(longest) + len(name)} long."
        )
    cluster = {
        job: [f"{name}-{job}-0-{number}.{name}:{port}" for number in range(count)]
        for job, count, port in (("ps", ps, PS_PORT), ("worker", workers, WORKER_PORT))
        if count
    }
    jobs = [_job(name, image, "worker", workers, ["python", *script], cluster, WORKER_PORT)]
    if ps:
        served = ["python", "-m", "anabranch", "worker", "--cluster", json.dumps(cluster)]
        served += ["--job-name", "ps", "--task-index", f"$({_INDEX})", "--bind", f"{name}-ps-0-$({_INDEX}).{name}"]
        jobs.append(_job(name, image, "ps", ps, served, cluster, PS_PORT))
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": name},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": ["worker"]},  # ps tasks serve until then
            "failurePolicy": {"maxRestarts": max_restarts},
            "replicatedJobs": jobs,
        },
    }


def _job(
    name: str, image: str, job: str, count: int, command: list[str], cluster: dict[str, list[str]], port: int
) -> dict[str, Any]:
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    environment: list[dict[str, Any]] = [
        {"name": _INDEX, "valueFrom": index},
        {"name": "ANABRANCH_TOKEN", "valueFrom": {"secretKeyRef": {"name": f"{name}-token", "key": _TOKEN_KEY}}},
        {"name": "PYTHONUNBUFFERED", "value": "1"},
    ]
    if job == "worker":
        # Written by hand, for the number is no text in it: Kubernetes puts it in when the pod starts.
        config = f'{{"cluster": {json.dumps(cluster)}, "task": {{"type": "worker", "index": $({_INDEX})}}}}'
        environment.append({"name": "TF_CONFIG", "value": config})
    container = {
        "name": job,
        "image": image,
        "command": command,
        "env": environment,
        "ports": [{"containerPort": port}],
    }
    return {
        "name": job,
        "replicas": 1,
        "template": {
            "spec": {
                "completionMode": "Indexed",
                "completions": count,
                "parallelism": count,
                "backoffLimit": 0,  # a pod that fails has the JobSet start all again
                "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
            }
        },
    }


def printed(jobs: dict[str, Any]) -> str:
    """Write a JobSet as YAML, with a word on the secret that it needs."""
    name = jobs["metadata"]["name"]
    return (
        f"# kubectl create secret generic {name}-token --from-literal={_TOKEN_KEY}=$(openssl rand -hex 32)\n"
        "# kubectl apply -f THIS_FILE\n"
        f"{json.dumps(jobs, indent=2)}\n"
    )


__all__ = ["job_set", "printed"]
