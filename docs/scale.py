"""One sweep through any executor: ``python docs/scale.py KIND [ADDRESS]``, where KIND is a name of :data:`EXECUTORS`.

MPI has a command of its own: ``mpiexec -n 9 python -m mpi4py.futures docs/scale.py mpi``. The rows are a Parquet dataset in ``points``.
"""

import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

from hwcalc import sweep
from hwcalc.library.parts import Workers, dask_executor


def mpi() -> Executor:
    """The ranks that mpiexec has started."""
    from mpi4py.futures import MPIPoolExecutor

    executor: Executor = MPIPoolExecutor()
    return executor


def loky() -> Executor:
    """Processes that are used again."""
    from loky import get_reusable_executor

    executor: Executor = get_reusable_executor()
    return executor


class Ray(Executor):
    """A Ray cluster, whose references to results have futures of Python's."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """A task for each call."""
        import ray

        future: Future[Any] = ray.remote(fn).remote(*args, **kwargs).future()
        return future


EXECUTORS: dict[str, Callable[..., AbstractContextManager[Executor]]] = {
    "threads": ThreadPoolExecutor,
    "processes": lambda: Workers(2),
    "dask": dask_executor,
    "mpi": mpi,
    "loky": loky,
    "ray": Ray,
}

if __name__ == "__main__":
    _, kind, *address = sys.argv
    with EXECUTORS[kind](*address) as executor:
        grid = sweep(["Qwen/Qwen3-8B", "openai/gpt-oss-20b"], seq="1k..32k", dtype=["bf16", "fp8"], executor=executor)
        print(grid.save("points"), "points")
