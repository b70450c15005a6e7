"""Do the same work for several files at once, in threads that never keep the program from ending."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import TypeVar

__all__ = ["done_in_any_order"]

T = TypeVar("T")
R = TypeVar("R")


def done_in_any_order(work: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """The results of ``work`` for all items, each as soon as it is there. The first exception ends it."""
    waiting: SimpleQueue[T] = SimpleQueue()
    count = 0
    for item in items:
        waiting.put(item)
        count += 1
    results: SimpleQueue[tuple[R] | BaseException] = SimpleQueue()
    stopped = Event()

    def run() -> None:
        while not stopped.is_set():
            try:
                results.put((work(waiting.get_nowait()),))
            except Empty:
                return
            except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
                results.put(error)
                return

    try:
        # Not those of concurrent.futures: at the end of the program these would wait for the Hub.
        for _ in range(min(threads, count)):
            Thread(target=run, name="kvplan-header", daemon=True).start()
        for _ in range(count):
            result = results.get()
            if isinstance(result, BaseException):
                raise result
            yield result[0]
    finally:
        stopped.set()
