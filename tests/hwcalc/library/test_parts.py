"""Parts of work through executors: two processes of which one is killed, finished parts that are not done again, and what makes a part stale."""

from __future__ import annotations

import runpy
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest

import hwcalc
from hwcalc.engines import find_engine
from hwcalc.errors import ServerError, UnknownNameError, UsageError, WorkerError
from hwcalc.library import parts
from hwcalc.library.parts import Part, Workers, dask_executor, results
from hwcalc.replay.compare import Comparison, compare_settings
from hwcalc.sweep.rows import Sweep
from tests.hwcalc.command import run
from tests.paths import ROOT

QWEN: Final = "Qwen/Qwen3-8B"
MODELS: Final = (QWEN, "openai/gpt-oss-20b")
GRID: Final[dict[str, Any]] = {"seq": "1k..4k", "dtype": "auto,fp8", "gpu": "l4", "engine": "vllm"}
"""Four parts with three lengths each."""
TRAFFIC: Final = "prompt=1k output=9 requests=9"


class Here(Executor):
    """Does the work in this process and counts it. From the task ``dies`` on, its workers die."""

    def __init__(self, dies: int = 1 << 30) -> None:
        self.done, self.dies = 0, dies

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.done += 1
        future = Future[Any]()
        if self.done >= self.dies:
            future.set_exception(BrokenProcessPool("terminated abruptly"))
        else:
            future.set_result(fn(*args, **kwargs))
        return future


class Deadly(Executor):
    """Hands tasks on, but the third one is SIGKILL for the worker that gets it, with which no other task lies then."""

    def __init__(self, workers: Executor) -> None:
        self.workers, self.done = workers, 0
        self._sent: list[Future[Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.done += 1
        if self.done == 3:
            wait(self._sent)
            deadly: Future[Any] = self.workers.submit(signal.raise_signal, signal.SIGKILL)
            wait([deadly])
            return deadly
        self._sent.append(self.workers.submit(fn, *args, **kwargs))
        return self._sent[-1]


@pytest.fixture(scope="module")
def two_processes() -> Iterator[Executor]:
    """Two processes of this machine."""
    with Workers(2) as workers:
        yield workers


@pytest.fixture(scope="module")
def two_of_dask() -> Iterator[Executor]:
    """The workers of a cluster that takes a part for lost when one worker has died with it."""
    import dask
    import distributed

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster,
        dask_executor(cluster.scheduler_address) as workers,
    ):
        yield workers


def swept(executor: Executor | None = None, **options: Any) -> Sweep:
    """The grid of four parts, or with other options."""
    return hwcalc.sweep(options.pop("models", MODELS), executor=executor, **{**GRID, **options})


def compared(executor: Executor | None = None, out: Path | None = None) -> Comparison:
    """Replays with four settings."""
    settings = {"max_num_seqs": ["2", "64"], "max_num_batched_tokens": ["512", "2048"]}
    return compare_settings(QWEN, TRAFFIC, settings, gpu="l4", seq="8k", executor=executor, out=out)


@pytest.mark.parametrize("workers", ["two_processes", "two_of_dask"])
def test_a_worker_that_is_killed_costs_its_part(workers: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Of four parts the third kills its worker: five tasks in all, the rows of one process, and nothing to do the next time."""
    executor = Deadly(request.getfixturevalue(workers))

    points = swept(executor).blocks(tmp_path / "points")
    rows = [point for block in points for point in zip(*map(block.values, block.columns), strict=True)]
    told = compared(executor.workers, tmp_path / "replays")

    assert executor.done == 5
    assert rows == [tuple(point.values()) for point in swept().records()]
    assert told == compared()
    nobody = Here(dies=0)
    assert swept(nobody).save(tmp_path / "points") == 12
    assert compared(nobody, tmp_path / "replays") == told
    assert nobody.done == 0


def test_parts_that_are_left_are_done(tmp_path: Path) -> None:
    """Two workers die with the third part: two are kept, and two are left for the next call, which need not have an executor."""
    with pytest.raises(
        WorkerError, match=r"2 workers died or could not run dtype=auto, gpu=l4: BrokenProcessPool: terminated.* If out keeps"
    ):
        swept(Here(dies=3)).save(tmp_path)
    kept = sorted(tmp_path.rglob("*.parquet"))
    assert len(kept) == 2
    again = Here()
    assert swept(again).save(tmp_path) == 12
    assert again.done == 2
    assert set(kept) < set(tmp_path.rglob("*.parquet"))


def test_a_pool_that_breaks_as_a_whole_says_so() -> None:
    """Python's own takes no work after one of its processes has died."""
    part = Part(model="m", engine="e", setting="s", content=(), call=signal.raise_signal, arguments=(signal.SIGKILL,))
    with ProcessPoolExecutor(1) as pool, pytest.raises(WorkerError, match="this executor takes no more work: BrokenProcessPool"):
        list(results([part], pool))


def test_a_dataset_has_the_rows_under_model_and_engine(tmp_path: Path) -> None:
    """Any reader of hive partitions has the columns of CSV, with the model's name as it is."""
    swept().save(tmp_path)
    read = pq.read_table(tmp_path).to_pylist()
    told = swept().records()

    assert {path.parent.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.parquet")} == {
        "model=Qwen%2FQwen3-8B/engine=vllm",
        "model=openai%2Fgpt-oss-20b/engine=vllm",
    }
    key = ("model", "dtype", "seq")
    assert sorted(read, key=lambda row: [row[name] for name in key]) == sorted(told, key=lambda row: [row[name] for name in key])


def test_models_of_one_name_need_two_folders(tmp_path: Path) -> None:
    """Their files would be the same."""
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "hidden_size": 512,
        "torch_dtype": "bfloat16",
    }
    with pytest.raises(UsageError, match=r"two models are called 'config'.*two folders"):
        hwcalc.sweep([config, {**config, "num_hidden_layers": 4}], seq="1k").save(tmp_path)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("changed", ["lengths", "version", "facts", "damaged"])
def test_a_stale_part_is_done_again_in_its_place(changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other lengths, another version, another file of the user's own, a file that is no Parquet: the same files, written anew."""
    options: dict[str, Any] = {"models": QWEN}
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    points = tmp_path / "points"
    swept(**options).save(points)
    files = set(points.rglob("*.parquet"))
    if changed == "lengths":
        options["seq"] = "1k,2k,4k,8k"
    elif changed == "version":
        monkeypatch.setattr(parts, "__version__", "0.0.1")
    elif changed == "facts":
        place = tmp_path / "home/kvplan/profiles/gpus/mine.yaml"
        place.parent.mkdir(parents=True)
        place.write_text("")
    else:
        for file in files:
            file.write_bytes(b"PAR1")
    again = Here()

    assert swept(again, **options).save(points) == (8 if changed == "lengths" else 6)
    assert again.done == 2
    assert set(points.rglob("*")) >= files == set(points.rglob("*.parquet"))


def test_a_search_goes_on_with_its_replays(tmp_path: Path) -> None:
    """Rounds replay other requests, which are parts of their own; the answer is the same."""
    options: dict[str, Any] = {"gpu": "l4", "seq": "8k", "ttft": "2s", "dtype": "auto", "settings": {"max_num_seqs": [2, 4]}}
    first = hwcalc.tune(QWEN, TRAFFIC, out=tmp_path, **options)
    nobody = Here(dies=0)

    assert hwcalc.tune(QWEN, TRAFFIC, out=tmp_path, executor=nobody, **options) == first
    assert nobody.done == 0
    rows = pq.read_table(tmp_path).to_pylist()
    assert {row["workload"] for row in rows} == {TRAFFIC}
    assert {row["ttft_p95"] for row in rows} >= {trial.traffic.records()[0]["ttft_p95"] for trial in first.best}


def test_an_error_of_a_part_is_its_own(two_processes: Executor) -> None:
    """With its class, its option and its hint, as if it were raised here."""
    part = Part(model="m", engine="e", setting="s", content=(), call=find_engine, arguments=("vlm",))
    with pytest.raises(UnknownNameError, match=r"vlm.*See: kvplan engines") as caught:
        list(results([part], two_processes))
    assert caught.value.option == "engine"


def test_a_worker_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch, two_processes: Executor) -> None:
    """Its numbers may be others."""
    monkeypatch.setattr(parts, "__version__", "0.0.1")
    with pytest.raises(WorkerError, match=r"a worker has kvplan .*, and this is 0\.0\.1"):
        list(swept(two_processes))


def test_the_script_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It writes 24 rows through the executor that is named."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["scale.py", "threads"])
    runpy.run_path(str(ROOT / "docs/scale.py"), run_name="__main__")

    assert capsys.readouterr().out == "24 points\n"
    assert pq.read_table("points").num_rows == 24


@pytest.mark.parametrize(
    ("line", "status", "says"),
    [
        ("sweep gpt2 --out points", 0, "1 point in points"),
        ("sweep gpt2 --workers 2 --dask tcp://host:8786", 2, "Give one of them."),
        ("sweep gpt2 --workers 0", 2, "workers"),
        ("sweep gpt2 --workers 1k", 2, "At most 512; --dask takes more."),
        ("sweep gpt2 --out file", 74, "--out 'file' cannot be written: File exists. Name another folder: --out 'points'"),
        ("sweep gpt2 --out file/points", 74, "--out 'file/points' cannot be written: Not a directory."),
        ("simulate gpt2 --trace prompt=9 --out points", 2, "--out is for several replays, and this is one. Leave it out, or add: --compare"),
    ],
)  # fmt: skip
def test_options(
    line: str, status: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is wrong with them, and nothing on standard output where the folder has the rows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    ended, out, error = run(capsys, *line.split())

    assert (ended, out) == (status, "")
    assert says in " ".join(error.replace("\n       ", " ").split())


def test_no_scheduler_answers() -> None:
    """It is said at once how to start one."""
    with pytest.raises(ServerError, match=r"no Dask scheduler answers at '127\.0\.0\.1:1'\. Start one: dask scheduler"):
        dask_executor("127.0.0.1:1").__enter__()


def test_what_is_no_executor() -> None:
    """It is said before anything is planned."""
    wrong: Any = 8
    with pytest.raises(UsageError, match=r"executor=8 has no submit\(\)"):
        list(swept(wrong))
