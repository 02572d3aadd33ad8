"""Workers on this machine: processes that train one run after the other."""

from __future__ import annotations

import multiprocessing as mp
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from rl_training.core.signals import name_of
from rl_training.core.user_code import resume_command
from rl_training.experiment.jobs import Job, JobKey, SeedProgress, perform


@dataclass
class _Worker:
    """A process, and the run that it trains; None while it waits for one."""

    process: BaseProcess
    last: SeedProgress | None = None
    is_stopping: bool = False


class LocalPool:
    """As many processes as there are runs at a time. A process that has trained its run waits for the next one."""

    def __init__(self, workers: int) -> None:
        if getattr(mp.current_process(), "_inheriting", False):
            # A worker imports the program that started it, and came to the call that started it.
            sys.exit("put what starts runs in processes under: if __name__ == '__main__':")
        self.workers = workers
        self._running: dict[Connection, _Worker] = {}

    @property
    def free(self) -> int:
        """How many runs could begin now."""
        return self.workers - self.busy

    @property
    def busy(self) -> int:
        """How many runs have begun and have not ended."""
        return sum(worker.last is not None for worker in self._running.values())

    def submit(self, job: Job) -> None:
        """Let a process that waits train a run, or a new one."""
        idle = (connection for connection, worker in self._running.items() if worker.last is None)
        connection = next(idle, None) or self._start()
        self._running[connection].last = job.begin()
        connection.send(job)

    def collect(self) -> Iterator[SeedProgress]:
        """Wait until a run has something to tell, and pass it on."""
        for connection in wait(list(self._running)):
            assert isinstance(connection, Connection)  # noqa: S101 - only connections are waited for
            worker = self._running[connection]
            try:
                told: SeedProgress = connection.recv()
            except (EOFError, ConnectionResetError):
                del self._running[connection]
                connection.close()
                worker.process.join()
                if worker.last is not None:
                    yield _unfinished(worker, worker.last)
                continue
            worker.last = None if told.has_ended else told
            if told.has_ended:
                worker.is_stopping = False
            if told.status == "failed":
                # What a run that failed leaves behind in its process is not known.
                del self._running[connection]
                connection.close()
                worker.process.join()
            yield told

    def stop(self, key: JobKey) -> None:
        """Let a run save its state and end; that it was interrupted is told like everything else."""
        for worker in self._running.values():
            if worker.last is not None and worker.last.key == key and not worker.is_stopping:
                worker.is_stopping = True
                worker.process.terminate()

    def close(self) -> None:
        """Let all runs save their state, and end all processes; if this is interrupted, end them at once."""
        busy = [worker.process for worker in self._running.values() if worker.last is not None]
        everyone = [worker.process for worker in self._running.values()]
        try:
            for process in busy:
                process.terminate()
            for connection in self._running:
                with suppress(OSError):
                    connection.send(None)
                connection.close()
            _join(everyone)
        except KeyboardInterrupt:
            for process in everyone:
                process.kill()
            _join(everyone)
            raise
        finally:
            self._running.clear()

    def _start(self) -> Connection:
        """A new process, which waits for a run."""
        context = mp.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there,))
        with _ignored_interrupt():
            process.start()
        there.close()
        self._running[here] = _Worker(process)
        return here


def _serve(connection: Connection) -> None:
    """The body of a worker process: train runs until nobody has another one."""
    while True:
        try:
            job: Job | None = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        if job is None:
            return
        perform(job, connection.send)


def _join(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.join()


@contextmanager
def _ignored_interrupt() -> Iterator[None]:
    """A process that is started here ignores Ctrl-C from its first instant; this process answers it instead."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _unfinished(worker: _Worker, last: SeedProgress) -> SeedProgress:
    """What is known of a run whose process ended before it told how the run ended."""
    if worker.is_stopping:
        return replace(last, status="interrupted")
    where = f"; resume it with: {resume_command(last.run_dir)}" if last.run_dir else ""
    return replace(last, status="failed", error=f"{_death(worker.process.exitcode)}{where}")


def _death(status: int | None) -> str:
    """How a worker ended that told nothing; a negative status is a signal."""
    name = "" if status is None or status >= 0 else name_of(-status)
    if name == "SIGKILL":
        return "the process was killed (SIGKILL), as systems do when memory runs out: try fewer workers, or less data"
    return f"the process was ended by {name}" if name else f"the process ended with status {status}"
