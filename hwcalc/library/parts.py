"""Parts of work: in this process, or through any executor of :mod:`concurrent.futures`, with those that are finished kept (:func:`results`).

A part is the work of one model, engine and setting. Its result comes back to this process, which alone writes. So an executor needs no
common folder: processes of this machine (:class:`Workers`), a Dask cluster (:func:`dask_executor`), or a pool of MPI or Ray.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import quote, urlsplit

from msgspec import Struct

from hwcalc._version import __version__
from hwcalc.errors import KvplanError, ServerError, UnwritableFileError, UsageError, WorkerError
from hwcalc.files import whole_file
from hwcalc.formulas.record import Record
from hwcalc.profiles.calibration import enabled
from hwcalc.profiles.catalog import own
from hwcalc.text import quoted, shown

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

T = TypeVar("T")

KEY: Final = "kvplan_key"
"""The key under which a file has the digest of all that its rows follow from."""
SETTING: Final = "kvplan_setting"
_NAME_DIGITS: Final = 16
_TRIES: Final = 2
_CONNECT_SECONDS: Final = 10
_SCHEDULER_PORT: Final = 8786


class Part(Record):
    """The work ``call(*arguments)`` for one model, engine and setting. An iterator comes back from a worker as a list.

    ``setting`` and ``others`` tell its rows from others of the model and the engine. ``content`` is all that its result follows from, but
    for the version of kvplan and the facts of the user's own.
    """

    model: str
    engine: str
    setting: str
    others: tuple[Any, ...] = ()
    content: tuple[Any, ...]
    call: Callable[..., Any]
    arguments: tuple[Any, ...]


class Dataset(Generic[T]):
    """A folder with the rows of each finished part in a file: ``model=MODEL/engine=ENGINE/part-SETTING.parquet``.

    ``write(file, result, stamp)`` writes Parquet with the ``stamp`` among its metadata, and ``read(path, part)`` returns the result of such a
    file. A file belongs to the work if its stamp is the digest of what the part follows from; else the part takes its place. A file is
    there whole or not at all, so that nothing else says which parts are finished.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        write: Callable[[IO[bytes], T, Mapping[str, str]], None],
        read: Callable[[Path, Part], T],
    ) -> None:
        if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder) or "\0" in os.fspath(folder):
            raise UsageError(f"--out {quoted(folder, 40)} names no folder.", hint="Write: --out 'points'")
        self.folder, self._write, self._read = Path(folder), write, read
        self._known: dict[int, tuple[str, Any]] = {}
        parquet_ready("leave out --out")
        self._base = digest(__version__, _facts_of_user())
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            if not os.access(self.folder, os.W_OK):
                raise PermissionError(13, "it is write-protected")

    def refuse_equal(self, parts: Iterable[Part]) -> None:
        """Raise :class:`~hwcalc.errors.UsageError` for two parts that would be the same file with other rows."""
        keys = dict[Path, str]()
        for part in parts:
            if keys.setdefault(self._path(part), key := self._key(part)) != key:
                message = f"two models are called {shown(part.model)}, and a dataset could not tell them apart."
                raise UsageError(message, hint="Keep them in two folders: --out 'first', then --out 'second'")

    def has(self, part: Part) -> bool:
        """True if the part is finished: its file is there, with its digest."""
        import pyarrow as pa

        try:
            return bool(metadata_of(self._path(part)).get(KEY.encode()) == self._key(part).encode())
        except (OSError, pa.ArrowInvalid):
            return False

    def keep(self, part: Part, result: T) -> None:
        """Write the rows of a part."""
        path = self._path(part)
        with self._writing():
            path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(str(path), "--out") as file:
            self._write(file, result, {KEY: self._key(part), SETTING: part.setting})

    def read(self, part: Part) -> T:
        """The result of a finished part."""
        return self._read(self._path(part), part)

    def _path(self, part: Part) -> Path:
        model, engine = (quote(name, safe="") for name in (part.model, part.engine))
        name = f"part-{digest(part.setting, part.others)[:_NAME_DIGITS]}.parquet"
        return self.folder / f"model={model}" / f"engine={engine}" / name

    def _key(self, part: Part) -> str:
        # Parts share most of what they follow from: a model, the lengths, the requests.
        for value in part.content:
            if id(value) not in self._known:
                self._known[id(value)] = digest(value), value
        return digest(self._base, [self._known[id(value)][0] for value in part.content])

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, UnicodeError) as error:
            message = f"--out {shown(str(self.folder))} cannot be written: {getattr(error, 'strerror', None) or error}."
            raise UnwritableFileError(message, hint="Name another folder: --out 'points'") from error


def results(
    parts: Sequence[Part],
    executor: Executor | None = None,
    dataset: Dataset[Any] | None = None,
    begin: Callable[[int, int, str], None] | None = None,
) -> Iterator[Any]:
    """The results of all parts in their order, each worked out here or by a worker of the ``executor``, or read if the ``dataset`` has it.

    ``begin`` is called with the number of parts that are done, the number of all, and the words of the part that begins, or that has ended
    where an executor runs them. A part whose worker dies is given to another worker once. Raises
    :class:`~hwcalc.errors.WorkerError` if that one dies, too, and the error of a part that raises one; what is finished then stays in the
    dataset.
    """
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise UsageError(f"executor={quoted(executor, 40)} has no submit().", hint="Allowed: any executor of concurrent.futures.")

    def tell(place: int) -> None:
        if begin is not None:
            begin(done, len(parts), parts[place].setting)

    def finished(place: int, result: Any) -> Any:
        if dataset is None:
            return result
        dataset.keep(parts[place], result)
        return None

    if dataset is not None:
        dataset.refuse_equal(parts)
    left = [place for place, part in enumerate(parts) if dataset is None or not dataset.has(part)]
    waiting, done, ready = set(left), len(parts) - len(left), dict[int, Any]()
    with closing(_computed({place: parts[place] for place in left} if executor is not None else {}, executor)) as computed:
        for place, part in enumerate(parts):
            if executor is None and place in waiting:
                tell(place)
                ready[place] = finished(place, part.call(*part.arguments))
                done += 1
            while place in waiting and place not in ready:
                other, result = next(computed)
                ready[other] = finished(other, result)
                done += 1
                tell(other)
            result = ready.pop(place, None)
            yield result if dataset is None else dataset.read(part)


def _computed(parts: Mapping[int, Part], executor: Executor | None) -> Generator[tuple[int, Any]]:
    """The results of the parts by their numbers, in the order in which workers finish them."""
    ended, running, tries = SimpleQueue[Future[Any]](), dict[Future[Any], int](), dict.fromkeys(parts, 0)

    def submit(place: int) -> None:
        assert executor is not None
        tries[place] += 1
        future = executor.submit(_outcome, __version__, parts[place].call, parts[place].arguments)
        running[future] = place
        future.add_done_callback(ended.put)

    try:
        for place in parts:
            submit(place)
        while running:
            future = ended.get()
            place = running.pop(future)
            # What the part raises is a part of its outcome: an exception is the executor's own.
            try:
                result, error = future.result()
            except Exception as lost:
                if tries[place] == _TRIES:
                    raise _lost(parts[place].setting, lost) from lost
                submit(place)
                continue
            if error is not None:
                raise error
            yield place, result
    except BrokenExecutor as broken:
        raise _lost("", broken) from broken
    finally:
        for future in running:
            future.cancel()


def _lost(setting: str, lost: Exception) -> WorkerError:
    what = (
        f"{_TRIES} workers died or could not run {setting}" if setting else "a worker died, and this executor takes no more work"
    )
    hint = "Give workers more memory, or take fewer: --workers 1. If --out keeps finished parts, the same call goes on with the others."
    return WorkerError(f"{what}: {type(lost).__name__}: {lost}", hint=hint)


def _outcome(version: str, call: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, Exception | None]:
    """The result of a part in a worker, and the error that it raises."""
    if version != __version__:
        message = f"a worker has kvplan {__version__}, and this is {version}."
        return None, WorkerError(message, hint="Install the same version for the workers.")
    try:
        result = call(*arguments)
        return list(result) if isinstance(result, Iterator) else result, None
    except Exception as error:  # noqa: BLE001 - it is raised where the part was sent from
        if not isinstance(error, KvplanError):
            import traceback

            error.add_note(traceback.format_exc())
        return None, error


class Workers(Executor):
    """An executor of so many processes on this machine. Each is a pool of its own: one that is killed costs its task alone, and is replaced."""

    def __init__(self, number: int) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._idle: SimpleQueue[ProcessPoolExecutor] = SimpleQueue()
        self._idle.put(_process())
        self._threads = ThreadPoolExecutor(number)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        return self._threads.submit(self._run, partial(fn, *args, **kwargs))

    def _run(self, task: Callable[[], T]) -> T:
        try:
            process = self._idle.get_nowait()
        except Empty:
            process = _process()
        try:
            return process.submit(task).result()
        except BrokenExecutor:
            process.shutdown(wait=False)
            process = _process()
            raise
        finally:
            self._idle.put(process)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        while not self._idle.empty():
            self._idle.get().shutdown(wait)


def _process() -> ProcessPoolExecutor:
    import multiprocessing
    import signal
    from concurrent.futures import ProcessPoolExecutor

    # Ctrl-C is for the program that has the workers, and ends them.
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN))


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """The workers of a Dask cluster as an executor, from the ``address`` of its scheduler, such as ``tcp://host:8786``."""
    import socket

    try:
        from distributed import Client
    except ImportError as error:
        message = "a Dask cluster needs distributed, which is not installed."
        raise UsageError(message, hint="Install it: pip install 'hwcalc[dask]', or use --workers N.") from error
    place = urlsplit(address if "://" in address else f"tcp://{address}")
    try:
        # A client that reaches nobody goes on trying.
        socket.create_connection((place.hostname or "", place.port or _SCHEDULER_PORT), _CONNECT_SECONDS).close()
        client = Client(place.geturl(), timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        message = f"no Dask scheduler answers at {shown(address, 80)}."
        hint = "Start one: dask scheduler, and on each machine: dask worker tcp://HOST:8786. Then: --dask tcp://HOST:8786"
        raise ServerError(message, hint=hint) from error
    with client, client.get_executor() as executor:
        yield executor


def digest(*content: Any) -> str:
    """A digest of values: of records all fields, whatever their text shows."""
    import hashlib

    whole = hashlib.sha256()
    for text in chain.from_iterable(map(_texts, content)):
        whole.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return whole.hexdigest()


def _texts(value: Any) -> Iterator[str]:
    """The value as texts, each element of a collection after its length."""
    if isinstance(value, Struct):
        yield type(value).__qualname__
        value = [getattr(value, name) for name in value.__struct_fields__]
    elif isinstance(value, Mapping):
        value = list(chain.from_iterable(value.items()))
    if isinstance(value, (list, tuple)):
        yield f"{len(value)}"
        for element in value:
            yield from _texts(element)
    else:
        yield value.__qualname__ if callable(value) else repr(value)


def _facts_of_user() -> list[str | bytes]:
    """The files of the user's own that may change a result, and whether measurements are used."""
    folder = own()
    facts: list[str | bytes] = [str(enabled())]
    for path in sorted(Path(folder).rglob("*")) if folder is not None else ():
        with suppress(OSError):
            facts += [path.name, path.read_bytes()]
    return facts


def metadata_of(path: Path) -> Mapping[bytes, bytes]:
    """The metadata of a Parquet file. It is opened here: pyarrow reads a tilde in a name, and none that is not Unicode."""
    import pyarrow.parquet as pq

    with path.open("rb") as file:
        return pq.read_metadata(file).metadata or {}


def parquet_ready(otherwise: str = "use --format csv") -> None:
    """Raise :class:`~hwcalc.errors.UsageError` if Parquet cannot be written here."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        message = "Parquet needs pyarrow, which is not installed."
        raise UsageError(message, hint=f"Install it: pip install 'hwcalc[parquet]', or {otherwise}.") from error
