"""The command ``python -m anabranch launch``: a script in several processes of this machine, and ps tasks for it.

Each worker runs the same script; worker 0 is the chief, whose output is shown as it is. Lines of the others begin with
their task. The exit status is 0 if the chief's is, else that of the task that failed first.

With ``--max-restarts`` a task that fails is started again. A worker takes part in the training that goes on. When a ps
task is lost, workers that make backups wait for it, and go on from the last one. When the chief is killed, another
worker takes over; when it fails, all tasks are started again.

Without ps tasks workers go on after a loss, also of the chief: the launcher's membership service decides who is left,
and which of them leads. It says whether a training is under way which a worker that is started again can join. If not,
all workers are started again.
"""

from __future__ import annotations

import argparse
import os
import sys

from .kubernetes import job_set, printed
from .processes import Launch, show_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument("-n", "--workers", type=int, default=1, metavar="N", help="how many workers run the script")
    parser.add_argument("--ps", type=int, default=1, metavar="N", help="how many ps tasks keep the parameters")
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="how often, within an hour, tasks that fail are started again",
    )
    parser.add_argument("--nnodes", metavar="MIN:MAX", help="with --rdzv: how many hosts take part")
    parser.add_argument("--rdzv", metavar="HOST:PORT", help="the rendezvous of all launchers, on the first host")
    parser.add_argument(
        "--k8s", action="store_true", help="print a JobSet of Kubernetes that does it, and start nothing"
    )
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help='run the tasks as actors of a Ray cluster; also "auto", "local"',
    )
    parser.add_argument("--image", default="", help="with --k8s: the container's image, which has the script")
    parser.add_argument("--name", default="anabranch", help="with --k8s: the name of the JobSet (default: %(default)s)")
    parser.add_argument("script", help="the Python script")
    arguments = parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script is given")
    arguments.required = False  # else an error for a script that is left out names both


def run(options: argparse.Namespace) -> int:
    """Run the script; return the exit status (see `Launch.wait`)."""
    if options.workers < 1 or options.ps < 0:
        print("anabranch launch: -n must be at least 1, and --ps at least 0.", file=sys.stderr)
        return 2
    if options.max_restarts < 0:
        print("anabranch launch: --max-restarts must be at least 0.", file=sys.stderr)
        return 2
    ways = [name for name in ("k8s", "ray", "rdzv") if getattr(options, name)]
    if len(ways) > 1:
        print(f"anabranch launch: --{ways[0]} and --{ways[1]} do not go together. Give one.", file=sys.stderr)
        return 2
    if options.k8s:
        return _print_job_set(options)
    if not os.path.exists(options.script):
        print(f"anabranch launch: there is no script {options.script!r}.", file=sys.stderr)
        return 2
    script = [options.script, *options.arguments]
    if options.ray:
        return _run_on_ray(options, script)
    if options.rdzv:
        if options.nnodes is None:
            print("anabranch launch: --rdzv needs --nnodes, how many hosts take part: 4, or 1:4.", file=sys.stderr)
            return 2
        from .hosts import run_on_hosts  # has imports that a launch on one host needs not

        return run_on_hosts(options.workers, options.ps, script, options.nnodes, options.rdzv, options.max_restarts)
    if options.nnodes not in (None, "1"):
        print("anabranch launch: --nnodes needs --rdzv, the rendezvous of the hosts.", file=sys.stderr)
        return 2
    try:
        made = Launch(options.workers, options.ps, script, options.max_restarts)
    except ValueError as error:
        print(f"anabranch launch: {error}", file=sys.stderr)
        return 2
    with made as launch:
        return launch.wait()


def _run_on_ray(options: argparse.Namespace, script: list[str]) -> int:
    """Run the script in actors of Ray; return the exit status."""
    from ..on_ray import run_script_on_ray  # few need it

    script = [os.path.abspath(script[0]), *script[1:]]
    try:
        return run_script_on_ray(script, options.workers, options.ps, options.ray, options.max_restarts, show_line)
    except (ModuleNotFoundError, ConnectionError, TimeoutError, ValueError) as error:
        print(f"anabranch launch: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("anabranch launch: interrupted.", file=sys.stderr)
        return 130


def _print_job_set(options: argparse.Namespace) -> int:
    """Print what Kubernetes takes; return the exit status."""
    script = [options.script, *options.arguments]
    try:
        jobs = job_set(options.name, options.image, options.workers, options.ps, script, options.max_restarts)
    except ValueError as error:
        print(f"anabranch launch: {error}", file=sys.stderr)
        return 2
    print(printed(jobs), end="")
    return 0
