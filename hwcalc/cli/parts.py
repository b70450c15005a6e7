"""The options of commands whose work has parts: who does them (``--workers``, ``--dask``), and where finished ones are kept (``--out``)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from hwcalc.cli.options import Option
from hwcalc.errors import UsageError
from hwcalc.text import shown
from hwcalc.unfinished import Unfinished

if TYPE_CHECKING:
    from concurrent.futures import Executor

OF_PARTS: Final = (
    Option("workers", ("--workers",), "N", "Processes of this machine that share the parts of the work. Default: 1."),
    Option(
        "dask",
        ("--dask",),
        "ADDRESS",
        "Scheduler of a Dask cluster whose workers share the parts: tcp://host:8786. Needs: pip install 'hwcalc[dask]'.",
    ),
    Option(
        "out",
        ("--out",),
        "DIR",
        "Keep each finished part in this folder, a Parquet dataset; the same line goes on with the others. Needs: pip install 'hwcalc[parquet]'.",
        complete="files",
    ),
)

_MOST_WORKERS: Final = 512


@contextmanager
def shared(workers: str | None, dask: str | None, out: str | None) -> Iterator[Executor | None]:
    """The executor of these options, ``None`` for this process alone. A signal says where finished parts are."""
    if workers is not None and dask is not None:
        raise UsageError("--workers are processes of this machine, and --dask has workers elsewhere.", hint="Give one of them.")
    with ExitStack() as stack:
        if out is not None:
            said = f"kvplan: finished parts are in {shown(out)}. The same line goes on with the others.\n"
            stack.enter_context(Unfinished(lambda _: os.write(2, said.encode("utf-8", "replace"))))
        if dask is not None:
            from hwcalc.library.parts import dask_executor

            yield stack.enter_context(dask_executor(dask))
        else:
            yield None if workers is None else stack.enter_context(_processes(workers))


@contextmanager
def _processes(number: str) -> Iterator[Executor]:
    """So many processes, which end with the command."""
    import multiprocessing

    from hwcalc.library.parts import Workers
    from hwcalc.units import parse_tokens

    def end(_: int) -> None:
        for process in multiprocessing.active_children():
            process.terminate()

    count, warnings = parse_tokens(number, "workers"), os.environ.get("PYTHONWARNINGS")
    if count > _MOST_WORKERS:
        raise UsageError(f"--workers {count:,} are too many processes.", hint=f"At most {_MOST_WORKERS}; --dask takes more.")
    # Python's own process that removes semaphores would warn of those of a command that Ctrl-C has ended.
    os.environ["PYTHONWARNINGS"] = "ignore"
    try:
        pool = Workers(count)
    finally:
        os.environ.pop("PYTHONWARNINGS")
        os.environ.update({} if warnings is None else {"PYTHONWARNINGS": warnings})
    with Unfinished(end), pool:
        try:
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)
