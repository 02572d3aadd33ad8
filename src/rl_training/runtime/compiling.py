"""The switch from eager to compiled updates, and the process that compiles beside an eager run."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING

import torch

from rl_training.algorithms import Algorithm
from rl_training.compilation import can_compile
from rl_training.core.batches import Batch
from rl_training.core.spaces import SpaceSpec

if TYPE_CHECKING:
    from rl_training.runtime.trainer import TrainerState

BACKEND = "inductor"


class Compiling:
    """Updates before number `state.compiled_from` are eager, those from it on compiled, however fast the machine is.

    While the run makes the eager ones, a helper, a process of low priority, compiles the graphs and puts them into
    torch's folder. Then the run reads them there. The helper changes no result: the run itself
    compiles a graph that is missing. It does not wait for the helper, which may hardly get a core on a busy machine. A
    thread would not do, since tracing sets switches and random states of the whole process.
    """

    def __init__(self, algorithm: Algorithm, spaces: SpaceSpec, state: TrainerState) -> None:
        self.algorithm, self.spaces, self.state = algorithm, spaces, state
        self.is_compiled = False
        self.has_helper = False
        self.helper: subprocess.Popen[bytes] | None = None

    def follow(self, batch: Batch) -> None:
        """Make the algorithm eager or compiled, by the number of the next update; `batch` is that of the update."""
        state = self.state
        if not state.compiled:
            return
        if state.update_count >= state.compiled_from:
            if not self.is_compiled:
                self._switch(batch)
        elif self.is_compiled:
            # The run went back to an earlier checkpoint.
            self.algorithm.run_eagerly()
            self.is_compiled = False
        elif not self.has_helper:
            self._start_helper(batch)

    def _switch(self, batch: Batch) -> None:
        """Compile, or stay eager for good with a warning; a run that must be compiled fails instead."""
        self.close()
        self.is_compiled, must = True, self.state.compiled_from == 0
        try:
            if must or can_compile(True):
                self.algorithm.compile_steps(backend=BACKEND)
                self.algorithm.compile_for(batch)
                return
        except Exception as error:
            if must:
                raise
            reason = str(error).strip().partition("\n")[0]
            warnings.warn(f"training without compilation, which is slower: {reason}", stacklevel=2)
        self.algorithm.run_eagerly()
        self.state.compiled = False

    def _start_helper(self, batch: Batch) -> None:
        self.has_helper, algorithm = True, self.algorithm
        if os.name != "posix" or algorithm.obs_mean.device.type != "cpu":
            return
        fields = {name: (tuple(value.shape), value.dtype) for name, value in batch.items()}
        # Without a helper if only this process knows a class, or if the machine has no room for another process.
        with suppress(OSError, pickle.PicklingError, AttributeError, TypeError):
            task = pickle.dumps((type(algorithm), self.spaces, algorithm.hyper, fields, torch.get_num_threads()))
            self.helper = subprocess.Popen(  # noqa: S603 - this module
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                # Ctrl-C is for the run.
                start_new_session=True,
            )
            with self.helper.stdin as pipe:  # type: ignore[union-attr]
                pipe.write(task)

    def close(self) -> None:
        """End the process that compiles, and the compiler that it has started."""
        if self.helper is not None and self.helper.poll() is None:
            with suppress(OSError):
                os.killpg(self.helper.pid, signal.SIGTERM)
            self.helper.wait()
        self.helper = None


def main() -> None:
    """Put the graphs of an algorithm, for batches of given shapes, into torch's folder; the run sends the task."""
    os.nice(10)
    algorithm, spaces, hyper, fields, threads = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started this one
    # Part of what graphs are found by. Compiling itself has one thread.
    torch.set_num_threads(threads)
    built = algorithm.build(spaces, hyper)
    if can_compile(True):
        built.compile_steps(backend=BACKEND)
        built.compile_for({name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in fields.items()})


if __name__ == "__main__":
    main()
