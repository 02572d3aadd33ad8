"""Signals that ask a process to end, and the status with which it then ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

SUPERVISING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals of supervisors and closed terminals. Often all processes of a job get them, and some get them twice."""
ENDING = (signal.SIGINT, *SUPERVISING)


def exit_status(number: int) -> int:
    """The status of a process that a signal ended, as shells report it: 130, 143, 129."""
    return 128 + number


INTERRUPTED = exit_status(signal.SIGINT)


class Interrupted(KeyboardInterrupt):
    """A signal other than Ctrl-C asked the process to end: it is answered as Ctrl-C is."""


@contextmanager
def answered(numbers: Iterable[int], answer: Callable[[int, object], None]) -> Iterator[None]:
    """Answer signals with a function in this block. An ignored one stays ignored; only the main thread has answers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Ignored: nohup ignores a closed terminal, and the workers of a sweep leave Ctrl-C to their leader.
    before = {each: signal.getsignal(each) for each in numbers}
    before = {each: handler for each, handler in before.items() if handler is not signal.SIG_IGN}
    for each in before:
        signal.signal(each, answer)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def raised() -> Iterator[list[int]]:
    """Let signals of supervisors raise `Interrupted`, once; the number of the signal is then in the list."""
    received: list[int] = []

    def answer(number: int, _frame: object) -> None:
        if not received:
            received.append(number)
            raise Interrupted(f"interrupted by {signal.Signals(number).name}")

    with answered(SUPERVISING, answer):
        yield received


def name_of(number: int) -> str:
    """The name of a signal; of one that Python does not know, its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
