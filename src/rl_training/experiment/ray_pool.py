"""Workers on a Ray cluster: every run is a task, which Ray places, and starts elsewhere if its machine dies."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_training.core.errors import ConfigError, import_extra
from rl_training.experiment.pools import Job, JobKey, SeedProgress, perform

RETRIES = 5
"""Restarts of a run elsewhere after its process or machine has died."""
QUEUE = 100
"""Runs given to Ray beyond the number of processors, because a cluster that scales needs to see a queue."""
HOW_TO_START = "start one with: ray start --head"
POLL_SECONDS = 0.5
ANSWER_SECONDS = 5.0
"""Time limit for the answer of an address."""
STOP_SECONDS = 60.0
"""Time for runs to save their state when all of them are stopped."""


class RayPool:
    """Runs as tasks of a Ray cluster."""

    def __init__(self, address: str, *, cpus: int = 1) -> None:
        self._ray = import_extra("ray", "ray", "--ray")
        self._cpus = cpus
        self._is_own = not self._ray.is_initialized()
        if self._is_own:
            _connect(self._ray, address)
        here = self._ray.get_runtime_context().get_node_id()
        self._mailbox = self._ray.remote(num_cpus=0)(_Mailbox).options(scheduling_strategy=_on(here)).remote()
        self._task = self._ray.remote(max_retries=RETRIES)(_train)
        self._running: dict[Any, SeedProgress] = {}

    @property
    def workers(self) -> int:
        """The number of runs for which the cluster has processors now."""
        return max(int(self._ray.cluster_resources().get("CPU", 0)) // self._cpus, 1)

    @property
    def free(self) -> int:
        """The number of runs it can take now."""
        return self.workers + QUEUE - self.busy

    @property
    def busy(self) -> int:
        """The number of runs that have not ended."""
        return len(self._running)

    def submit(self, job: Job) -> None:
        """Give a run to Ray, with its processors, and a GPU if it needs one."""
        gpus = 1 if str(job.config.device).startswith("cuda") else 0
        task = self._task.options(num_cpus=self._cpus, num_gpus=gpus, name=str(job.config.run_name or job.config.algo))
        self._running[task.remote(job, str(Path.cwd()), self._mailbox)] = job.begin()

    def collect(self) -> Iterator[SeedProgress]:
        """Wait for news of runs, and pass it on."""
        while True:
            told = list(self._messages())
            yield from told
            ended, _ = self._ray.wait(list(self._running), timeout=0 if told else POLL_SECONDS)
            for task in ended:
                last = self._running.pop(task)
                # Its last reports may have arrived meanwhile.
                yield from self._messages()
                yield self._outcome(task, last)
            if told or ended:
                return

    def stop(self, key: JobKey) -> None:
        """Let a run save its state and end."""
        for task, last in self._running.items():
            if last.key == key:
                self._ray.cancel(task)

    def close(self) -> None:
        """Let all runs save their state and end; leave the cluster, if it was joined here."""
        try:
            for task in self._running:
                self._ray.cancel(task)
            if self._running:
                self._ray.wait(list(self._running), num_returns=len(self._running), timeout=STOP_SECONDS)
        finally:
            for task in self._running:
                self._ray.cancel(task, force=True)
            self._ray.kill(self._mailbox)
            if self._is_own:
                self._ray.shutdown()

    def _messages(self) -> Iterator[SeedProgress]:
        """Reports of unfinished runs since the last call."""
        tasks = {last.key: task for task, last in self._running.items()}
        for progress in self._ray.get(self._mailbox.take.remote()):
            if progress.key in tasks:
                self._running[tasks[progress.key]] = progress
                yield progress

    def _outcome(self, task: Any, last: SeedProgress) -> SeedProgress:
        """The outcome of a task: its own report, or the error of Ray."""
        errors = self._ray.exceptions
        try:
            found: SeedProgress = self._ray.get(task)
            return found
        except errors.TaskCancelledError:
            return replace(last, status="interrupted")
        except errors.RayError as error:
            reason = str(error).strip().splitlines()[0]
            return replace(last, status="failed", error=f"Ray could not finish the run ({reason})")


class _Mailbox:
    """An actor that collects the progress of runs for the sweep."""

    def __init__(self) -> None:
        self.told: dict[JobKey, SeedProgress] = {}
        self.scores: list[SeedProgress] = []
        self.begun: set[JobKey] = set()

    def begin(self, key: JobKey) -> bool:
        """Record that a run begins, and return whether it was begun before."""
        is_again = key in self.begun
        self.begun.add(key)
        return is_again

    def post(self, progress: SeedProgress) -> None:
        """Keep the newest report of a run, and every score."""
        before = self.told.pop(progress.key, None)
        if before is not None and before.metrics != progress.metrics:
            self.scores.append(before)
        self.told[progress.key] = progress

    def take(self) -> list[SeedProgress]:
        """Return the reports since the last call."""
        found = [*self.scores, *self.told.values()]
        self.told, self.scores = {}, []
        return found


def _train(job: Job, folder: str, mailbox: Any) -> SeedProgress:
    """The body of a task, in the working folder of the process that started the sweep."""
    import ray

    _let_ray_interrupt()
    try:
        os.chdir(folder)
    except OSError as error:
        reason = f"{folder} cannot be used on {socket.gethostname()} ({error.strerror})"
        advice = "a sweep on several machines needs a folder that all of them share"
        return replace(job.begin(), status="failed", error=f"{reason}: {advice}")
    # One that was begun before was begun on a machine that has died since.
    is_again = ray.get(mailbox.begin.remote(job.key))
    job = replace(job, resume=job.resume or is_again)

    def post(progress: SeedProgress) -> None:
        # The task returns the last report itself.
        if not progress.has_ended:
            mailbox.post.remote(progress)

    return perform(job, post)


def _let_ray_interrupt() -> None:
    """Answer SIGINT, by which Ray cancels a task, also on a cluster that was started with the signal ignored."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _connect(ray: Any, address: str) -> None:
    """Join a cluster. Ray itself would try an address without an answer for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address != "auto":
        if not (host and port.isdecimal()):
            raise ConfigError(f"--ray expects auto or an address such as 10.0.0.1:6379, got {address!r}")
        try:
            socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS).close()
        except OSError as error:
            raise ConfigError(f"no Ray cluster answers at {address} ({error}); {HOW_TO_START}") from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"no Ray cluster can be joined at {address} ({reason}); {HOW_TO_START}") from None


def _on(node: str) -> Any:
    """The placement of the mailbox: on the machine that started the sweep, and nowhere else."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node, soft=False)
