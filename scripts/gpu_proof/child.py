"""The two ends of a step's process: what runs inside it, and what starts it and reads its records."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import IO, Any, Final

from hwcalc.documents import document_of
from hwcalc.errors import KvplanError
from hwcalc.probe.allocator import VARIABLES
from hwcalc.probe.devices import load_torch, open_device
from scripts.gpu_proof.cases import Run
from scripts.gpu_proof.record import CaseRecord, failed
from scripts.gpu_proof.steps import ALLOCATORS, STEPS

CHECK: Final = "check"
"""The process that only asks for torch and the device."""
OLDEST_TORCH: Final = (2, 11)
_GRACE: Final = 0.2
"""The share of a process's time that is left for the case that is running when its time is up."""
_UNSET: Final = frozenset(
    {
        *VARIABLES,
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        "CUBLAS_WORKSPACE_CONFIG",
        "CUBLASLT_WORKSPACE_SIZE",
        "TORCH_CUBLASLT_UNIFIED_WORKSPACE",
        "WORLD_SIZE",
        "RANK",
    }
)
_LONGEST_LINE: Final = 64 * 2**20


def inside(step: str, *, seconds: float, device: str, most_bytes: int | None) -> int:
    """Run one step and write its records to standard output, a line each. Whatever else is printed goes to standard error."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    run = Run(load=load_torch, until=monotonic() + seconds, environment=os.environ, device_name=device, most_bytes=most_bytes)
    try:
        for record in _checked(run) if step == CHECK else map(document_of, STEPS[step].run(run)):
            lines.write(json.dumps(record, allow_nan=False) + "\n")
            lines.flush()
    except KvplanError as error:
        lines.write(json.dumps({"error": error.message, "hint": error.hint}) + "\n")
        lines.flush()
    except BrokenPipeError:
        return 1
    return 0


def _checked(run: Run) -> Iterator[dict[str, Any]]:
    """The environment of the device, once it is known that everything is here that the steps need."""
    try:
        # Some cases read YAML; without it they would fail one by one, minutes later.
        import yaml  # noqa: F401
    except ImportError as error:
        hint = "Install it, or bring it along: pip install --target site pyyaml, and PYTHONPATH=site."
        raise KvplanError(f"{error.name} is not installed.", hint=hint) from error
    torch = run.load()
    words = str(torch.__version__).split(".")[:2]
    version = tuple(int(word) for word in words if word.isdecimal())
    if version < OLDEST_TORCH:
        oldest = ".".join(str(number) for number in OLDEST_TORCH)
        raise KvplanError(f"torch {torch.__version__} is older than {oldest}.", hint=f"Install torch {oldest} or newer.")
    device = open_device(run.device_name, torch=torch)
    device.warm_up()
    yield {"environment": document_of(device.environment())}


def records_of(
    step: str, *, allocator: str, seconds: float, device: str, most_bytes: int | None, environment: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Start a step's process and give back its records as they come. The process is stopped when its time is up."""
    words = [sys.executable, str(Path(__file__).parents[1] / "prove_on_gpu.py"), "--child", step, "--device", device]
    words += ["--seconds", f"{seconds * (1 - _GRACE):.1f}"]
    words += [] if most_bytes is None else ["--most", str(most_bytes)]
    until = monotonic() + seconds
    with tempfile.TemporaryFile() as errors:
        # A group of its own, so that it can be stopped with what it has started; not a session, which would outlive the caller's.
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=_own(environment, allocator),
            process_group=0,
        )
        try:
            yield from _read(process, until)
            yield from _end(process, until, errors, step)
        finally:
            _stop(process)


def _own(environment: Mapping[str, str], allocator: str) -> dict[str, str]:
    """The environment of a step: nobody's settings of memory, and no files of theirs that would come before the catalog's."""
    own = {name: value for name, value in environment.items() if name not in _UNSET}
    nowhere = str(Path(tempfile.gettempdir()) / "kvplan-proof-without-home")
    own |= {"HF_HUB_OFFLINE": "1", "HF_HOME": nowhere, "XDG_CONFIG_HOME": nowhere}
    words = ALLOCATORS[allocator]
    return own if words is None else {**own, "PYTORCH_ALLOC_CONF": words}


def _read(process: subprocess.Popen[bytes], until: float) -> Iterator[dict[str, Any]]:
    """Its lines until it closes its output or its time is up."""
    lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def pump(pipe: IO[bytes]) -> None:
        with suppress(OSError, ValueError):
            while line := pipe.readline(_LONGEST_LINE):
                lines.put(line)
        lines.put(None)

    assert process.stdout is not None
    Thread(target=pump, args=(process.stdout,), daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=max(0.0, until - monotonic()))
        except queue.Empty:
            return
        if line is None:
            return
        with suppress(ValueError):
            yield json.loads(line)


def _end(process: subprocess.Popen[bytes], until: float, errors: IO[bytes], step: str) -> Iterator[dict[str, Any]]:
    """The record of how it ended, if it did not end well."""
    try:
        status = process.wait(timeout=max(0.1, until - monotonic()))
    except subprocess.TimeoutExpired:
        yield document_of(_broken(step, "it did not end in its time and was stopped"))
        return
    if status:
        errors.seek(0)
        text = errors.read()[-10_000:].decode("utf-8", "replace").strip().splitlines() or ["nothing was said"]
        yield document_of(_broken(step, f"its process ended with status {status}: {text[-1]}"))


def _broken(step: str, why: str) -> CaseRecord:
    return failed(f"process of {step}", why)


def _stop(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            break
        with suppress(OSError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=3)
    if process.stdout is not None:
        process.stdout.close()
