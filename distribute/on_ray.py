"""`run_on_ray`: the tasks of a cluster as actors of Ray, which finds machines for them.

Ray starts processes, and brings functions there and results back. Tensors travel between the tasks themselves, as on
any cluster. When a task is lost or fails, all are started again together, as their addresses are other ones then.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import queue
import secrets
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

from .cluster import host_to_bind
from .ports import ReservedPorts
from .restarts import Restarts
from .tied import tied

_logger = logging.getLogger(__name__)
_PLACE_SECONDS = 120.0  # how long Ray has to find places for all tasks
_POLL_SECONDS = 0.5  # how often ps tasks are looked at while scripts run
Options = Mapping[str, Any]
T = TypeVar("T")
Lines = Callable[[str, str], None]  # shows a line of a worker: its name, and the line


def run_on_ray(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    *,
    workers: int = 1,
    ps: int = 0,
    address: str | None = None,
    max_restarts: int = 0,
    worker_options: Options | None = None,
    ps_options: Options | None = None,
) -> list[Any]:
    """Call a function in each worker of a cluster of actors; return the results, by worker.

    The function makes a strategy, as a script under ``launch`` does, and finds its place in the environment. It needs
    Ray: ``pip install 'anabranch[ray]'``.

    Args:
        function: what workers do; Ray brings it to them, with all that it refers to.
        args: what it is given.
        workers: how many call it.
        ps: how many tasks hold the parameters, for `ParameterServer`.
        address: of a Ray cluster ("auto", "local", "ray://host:10001"). By default the one that this process is
            connected to, or that ``RAY_ADDRESS`` names, or a new one on this machine.
        max_restarts: how often, within an hour, all tasks are started again after one is lost or fails.
        worker_options, ps_options: what each actor asks Ray for, such as ``{"num_cpus": 4, "num_gpus": 1}``. By
            default a worker has one CPU, and a ps task none of its own.

    Raises:
        ModuleNotFoundError: Ray is not installed.
        ValueError: a number does not fit.
        TimeoutError: Ray finds no places for the tasks.
        ray.exceptions.RayError: a task was lost; what the function has raised comes as its own class, too.
    """

    def call(tasks: _Tasks) -> tuple[list[Any], str]:
        calls = [actor.call.remote(function, tuple(args), found) for actor, found in tasks.workers]
        return tasks.results(calls), ""

    return _with_restarts(call, workers, ps, address, max_restarts, worker_options, ps_options)


def run_script_on_ray(
    script: Sequence[str], workers: int, ps: int, address: str | None, max_restarts: int, show: Lines
) -> int:
    """Run a script in each worker of a cluster of actors; return the exit status of the chief, or of who has failed.

    Args:
        script: its path, which is the same on all machines, and its arguments.
        workers, ps: how many tasks there are.
        address, max_restarts: as for `run_on_ray`.
        show: shows the lines that workers write.
    """

    def run(tasks: _Tasks) -> tuple[int, str]:
        status = tasks.run_script(script, show)
        return status, f"a worker ended with exit status {status}" if status else ""

    def give_up(why: str) -> int:
        _logger.warning("A task was lost: %s", why)
        return 1

    return _with_restarts(run, workers, ps, address, max_restarts, give_up=give_up)


def _with_restarts(
    attempt: Callable[[_Tasks], tuple[T, str]],
    workers: int,
    ps: int,
    address: str | None,
    max_restarts: int,
    worker_options: Options | None = None,
    ps_options: Options | None = None,
    give_up: Callable[[str], T] | None = None,
) -> T:
    """Start the tasks and have them do something; all start again when that fails, as often as they may.

    Args:
        attempt: gives the result, and why the tasks are to start again; "" if they are not.
        workers, ps, address, max_restarts, worker_options, ps_options: as for `run_on_ray`.
        give_up: gives the result when a task is lost that does not start again; by default Ray's error is raised.
    """
    _check(workers, ps, max_restarts)
    with _connected(address) as ray:
        restarts = Restarts(max_restarts)
        while True:
            with contextlib.ExitStack() as stack:
                try:
                    tasks = stack.enter_context(_Tasks(ray, workers, ps, max_restarts, worker_options, ps_options))
                    result, why = attempt(tasks)
                    if not why or not restarts.take():
                        return result
                except ray.exceptions.RayError as error:
                    why = _reason(ray, error)
                    if not restarts.take():
                        if give_up is None:
                            raise
                        return give_up(why)
                _say_again(why, restarts)


def _check(workers: int, ps: int, max_restarts: int) -> None:
    if workers < 1 or ps < 0 or max_restarts < 0:
        raise ValueError(
            f"run_on_ray: workers={workers} must be at least 1, and ps={ps} and max_restarts={max_restarts} at least 0."
        )


def _say_again(what: str, restarts: Restarts) -> None:
    _logger.warning("%s; all tasks are started again (restart %d of %d).", what, restarts.count, restarts.limit)


def _reason(ray: Any, error: Any) -> str:
    """Say in a line what an error of Ray says: what a task has raised, or how it was lost."""
    if isinstance(error, ray.exceptions.RayTaskError):
        return f"a task has failed with {type(error.cause).__name__}: {error.cause}"
    return str(error).strip().partition("\n")[0]


@contextlib.contextmanager
def _connected(address: str | None) -> Generator[Any]:
    """Connect to Ray, unless this process is connected; yield the module.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ModuleNotFoundError(
            "run_on_ray and launch --ray need Ray, which is not installed: pip install 'anabranch[ray]'.", name="ray"
        ) from None
    is_ours = not ray.is_initialized()
    if is_ours:
        ray.init(address=address, logging_level=logging.WARNING)
    try:
        yield ray
    finally:
        if is_ours:
            ray.shutdown()


# --- the process that asks ------------------------------------------------------------------------------------------


class _Tasks:
    """Actors that are the tasks of one cluster; they end with the block."""

    def __init__(
        self,
        ray: Any,
        workers: int,
        ps: int,
        max_restarts: int,
        worker_options: Options | None,
        ps_options: Options | None,
    ) -> None:
        self._ray = ray
        self._counts = {"ps": ps, "worker": workers}
        self._options = {
            "ps": {"num_cpus": 0, **(ps_options or {})},
            "worker": {"num_cpus": 1, **(worker_options or {})},
        }
        self._max_restarts = max_restarts
        self._actors: dict[str, list[Any]] = {}
        self.workers: list[tuple[Any, dict[str, str]]] = []  # actors, and what is in their environment
        self._serving: list[Any] = []

    def __enter__(self) -> _Tasks:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        ray = self._ray
        kind = ray.remote(TaskActor)
        for job, count in self._counts.items():
            self._actors[job] = [kind.options(**self._options[job]).remote() for _ in range(count)]
        hosts = self._placed([actor.host.remote() for actors in self._actors.values() for actor in actors])
        is_local = len({*hosts}) == 1  # then nothing has to be reached from elsewhere
        found = self._placed([actor.address.remote(is_local) for actors in self._actors.values() for actor in actors])
        addresses = iter(found)
        cluster = {job: [next(addresses) for _ in actors] for job, actors in self._actors.items()}
        cluster = {job: tasks for job, tasks in cluster.items() if tasks}
        common = {"ANABRANCH_TOKEN": secrets.token_hex(16), "ANABRANCH_MAX_RESTARTS": str(self._max_restarts)}
        for index, actor in enumerate(self._actors["ps"]):
            self._serving.append(actor.serve.remote(cluster, index, common))
        for index, actor in enumerate(self._actors["worker"]):
            config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
            self.workers.append((actor, {**common, "TF_CONFIG": json.dumps(config)}))

    def _placed(self, asked: list[Any]) -> list[Any]:
        """Return the answers of actors, once Ray has found places for them.

        Raises:
            TimeoutError: it finds none.
        """
        try:
            return self._ray.get(asked, timeout=_PLACE_SECONDS)
        except self._ray.exceptions.GetTimeoutError:
            wanted = ", ".join(f"{count} of {job} with {self._options[job]}" for job, count in self._counts.items())
            raise TimeoutError(
                f"Ray has found no places for all tasks within {_PLACE_SECONDS:g} s. They are {wanted}; the cluster "
                f"has {self._ray.cluster_resources()}, of which {self._ray.available_resources()} are free. Ask for "
                "fewer tasks, or less for each (worker_options)."
            ) from None

    def results(self, calls: list[Any]) -> list[Any]:
        """Wait for all workers; return their results.

        Raises:
            ray.exceptions.RayError: that of the first task that fails.
        """
        left = [*calls]
        while left:
            done, _ = self._ray.wait([*left, *self._serving], num_returns=1)
            self._ray.get(done)
            left = [call for call in left if call not in done]
        return self._ray.get(calls)

    def run_script(self, script: Sequence[str], show: Lines) -> int:
        """Run a script in each worker; return the exit status of the first that fails, or 0.

        Raises:
            ray.exceptions.RayError: a task was lost.
        """
        ended: queue.Queue[Any] = queue.Queue()
        folder = os.getcwd()

        def follow(index: int, lines: Any) -> None:
            status: Any = 1
            try:
                for each in lines:
                    value = self._ray.get(each)
                    if isinstance(value, int):
                        status = value
                    else:
                        show(f"worker {index}" if index else "", value)
            except self._ray.exceptions.RayError as error:
                status = error
            ended.put(status)

        for index, (actor, environment) in enumerate(self.workers):
            lines = actor.run.options(num_returns="streaming").remote([*script], folder, environment)
            threading.Thread(target=follow, args=(index, lines), daemon=True).start()
        for _ in self.workers:
            status = self._next_of(ended)
            if isinstance(status, Exception):
                raise status
            if status:
                return int(status)
        return 0

    def _next_of(self, ended: queue.Queue[Any]) -> Any:
        while True:
            with contextlib.suppress(queue.Empty):
                return ended.get(timeout=_POLL_SECONDS)
            lost, _ = self._ray.wait(self._serving, timeout=0) if self._serving else ([], [])
            self._ray.get(lost)

    def __exit__(self, *exception: object) -> None:
        for actors in self._actors.values():
            for actor in actors:
                self._ray.kill(actor)


# --- the actors -----------------------------------------------------------------------------------------------------


class TaskActor:
    """One task, in a process that Ray has started."""

    def host(self) -> str:
        """Return the address of the machine."""
        return str(importlib.import_module("ray").util.get_node_ip_address())

    def address(self, is_local: bool) -> str:
        """Return an address at which nobody else listens.

        Args:
            is_local: whether all tasks are on this machine.
        """
        host = "localhost" if is_local else self.host()
        name = f"[{host}]" if ":" in host else host
        self._ports = ReservedPorts(host, 1)  # until the actor ends
        return f"{name}:{self._ports.numbers[0]}"

    def serve(self, cluster: dict[str, list[str]], index: int, environment: dict[str, str]) -> None:
        """Serve as a ps task until the actor ends."""
        from .tasks.server import Server

        os.environ.update(environment)
        Server(cluster, "ps", index, bind=host_to_bind(cluster["ps"][index])).join()

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], environment: dict[str, str]) -> Any:
        """Call the function of a worker.

        Raises:
            RuntimeError: it has ended its process with another status than 0.
        """
        os.environ.update(environment)
        try:
            return function(*args)
        except SystemExit as error:
            if error.code:
                raise RuntimeError(f"the worker has ended with exit status {error.code}") from None
            return None

    def run(self, script: list[str], folder: str, environment: dict[str, str]) -> Generator[str | int]:
        """Run the script of a worker; yield its lines, then its exit status."""
        given = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
        with tied(script, folder if os.path.isdir(folder) else ".", given) as process:
            assert process.stdout is not None
            yield from (line for line in process.stdout)  # Ray sends to what it iterates over: a file has no send()
            yield process.wait()


__all__ = ["run_on_ray", "run_script_on_ray"]
