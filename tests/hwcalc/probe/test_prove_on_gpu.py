"""``scripts/prove_on_gpu.py`` as it is typed: its processes, its files, its exit statuses, and what is left of a run that is cut."""

from __future__ import annotations

import errno
import getpass
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from scripts import prove_on_gpu
from scripts.gpu_proof import child, record
from scripts.gpu_proof.child import records_of
from scripts.gpu_proof.record import CaseRecord, Receipt, exact, judged, known, scrubbed, skipped
from scripts.gpu_proof.steps import STEPS
from tests.paths import ROOT

SCRIPT = ROOT / "scripts" / "prove_on_gpu.py"
TORCH = """
import os, time
import hwcalc.probe.bandwidth
from tests.hwcalc.probe.fake_cuda import GPU_NAME, FakeTorch

fake = FakeTorch(
    total=80 * 2**30,
    name=GPU_NAME,
    expandable="expandable_segments:True" in os.environ.get("PYTORCH_ALLOC_CONF", ""),
    extra=int(os.environ.get("FAKE_EXTRA", "0")),
)
if "FAKE_VERSION" in os.environ:
    __version__ = os.environ["FAKE_VERSION"]
if "FAKE_NONE" in os.environ:
    fake.cuda.is_available = lambda: False

def on_empty(made):
    time.sleep(float(os.environ.get("FAKE_SLEEP", "0")))
    if made == int(os.environ.get("FAKE_CRASH", "0")):
        os._exit(11)

fake.on_empty = on_empty
hwcalc.probe.bandwidth.perf_counter = lambda: fake.now

def __getattr__(name):
    return getattr(fake, name)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which ``import torch`` gives a GPU that is not there, and transformers is missing."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "torch.py").write_text(TORCH)
    (folder / "transformers.py").write_text("raise ModuleNotFoundError('none', name='transformers')")
    own = {name: value for name, value in os.environ.items() if name != "OUT"}
    return {**own, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}


def proved(environment: dict[str, str], out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The script, run to its end."""
    command = [sys.executable, str(SCRIPT), "--out", str(out), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300, cwd=out.parent)


def documents(out: Path) -> dict[str, Any]:
    """Every file, by the name of its step."""
    found = [json.loads(path.read_text()) for path in sorted(out.iterdir())]
    return {document["step"]: document for document in found}


def test_several_steps(environment: dict[str, str], tmp_path: Path) -> None:
    """All agree, under both settings, whatever the user's own are: status 0, a file for each step, and no name of this machine in any."""
    out = tmp_path / "out"
    # Each step by itself is a test of test_prove_steps.
    chosen = {"context", "free", "live"}
    ended = proved(environment, out, "--only", ",".join(sorted(chosen)))
    files = documents(out)

    assert (0, "") == (ended.returncode, ended.stderr)
    # Without transformers nothing of it was compared.
    assert files.keys() == chosen - {"live"}
    assert all(path.name.startswith("h100-80gb-hbm3-") for path in out.iterdir())
    for name, document in files.items():
        assert document["complete"] is True
        assert document["counts"]["differs"] == document["counts"]["failed"] == 0
        assert {record["allocator"] for record in document["records"]} == set(STEPS[name].allocators)
    assert all(document["counts"]["agrees"] for document in files.values())
    assert "skipped: live models [default] transformers is not installed" in ended.stdout
    assert "in all: " in ended.stdout
    text = "".join(path.read_text() for path in out.iterdir())
    assert not [name for name in (str(ROOT), str(tmp_path), socket.gethostname()) if name in text]


def test_a_wrong_prediction(environment: dict[str, str], tmp_path: Path) -> None:
    """Status 1, and the output names the cases."""
    ended = proved({**environment, "FAKE_EXTRA": "512"}, tmp_path / "out", "--only", "fill")

    assert ended.returncode == 1
    assert "fill: 12 differs" in ended.stdout
    assert "differs: Qwen/Qwen3-8B reference bf16 [default] memory_allocated" in ended.stdout
    assert documents(tmp_path / "out")["fill"]["counts"]["differs"] == 12


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_that_is_cut(environment: dict[str, str], tmp_path: Path, number: signal.Signals) -> None:
    """What was measured is kept, and the file says that the step did not come to its end."""
    out = tmp_path / "out"
    command = [sys.executable, str(SCRIPT), "--out", str(out), "--only", "lists"]
    with subprocess.Popen(command, env={**environment, "FAKE_SLEEP": "0.01"}, stdout=subprocess.DEVNULL) as process:
        until = time.monotonic() + 60
        while time.monotonic() < until and not (
            out.exists() and len(documents(out).get("lists", {"records": []})["records"]) >= 3
        ):
            time.sleep(0.05)
        process.send_signal(number)
        status = process.wait(timeout=60)

    document = documents(out)["lists"]
    assert status == (-signal.SIGKILL if number == signal.SIGKILL else 128 + signal.SIGTERM)
    assert ["h100-80gb-hbm3-lists.json.part"] == [path.name for path in out.iterdir()]
    assert document["complete"] is False
    assert 3 <= len(document["records"]) == document["counts"]["agrees"] < 200


def test_no_gpu(environment: dict[str, str], tmp_path: Path) -> None:
    """Status 2, one message with what to type next, no traceback and no file."""
    ended = proved({**environment, "FAKE_NONE": "1"}, tmp_path / "out")

    assert (2, "") == (ended.returncode, ended.stdout)
    assert ended.stderr == (
        "prove_on_gpu: nothing can be measured here: --device cuda: torch 2.13.0+fake finds no CUDA device.\n  Use: --device cpu\n"
    )
    assert not list((tmp_path / "out").iterdir())


def test_a_package_that_is_missing(environment: dict[str, str], tmp_path: Path) -> None:
    """Some cases read YAML: without PyYAML they would fail, so that nothing is begun."""
    (tmp_path / "site" / "yaml.py").write_text("raise ModuleNotFoundError('none', name='yaml')")
    ended = proved(environment, tmp_path / "out")

    assert ended.returncode == 2
    assert "yaml is not installed" in ended.stderr
    assert "pip install --target" in ended.stderr


def test_an_old_torch(environment: dict[str, str], tmp_path: Path) -> None:
    """2.10 is older than 2.11, though its text is not less by the alphabet of 2.9."""
    for version in ("2.10.1+cu128", "2.9.0"):
        ended = proved({**environment, "FAKE_VERSION": version}, tmp_path / "out")
        assert ended.returncode == 2
        assert f"torch {version} is older than 2.11" in ended.stderr


@pytest.mark.parametrize(
    "words, said",
    [
        (("--only", "nothing"), "allowed: context, lists, allocator"),
        (("--minutes", "0"), "--minutes is 0"),
        (("--most", "much"), "'much'"),
        (("--most", "-5"), "--most is -5; allowed: 0 or more"),
        (("--out", ""), "--out is empty"),
        (("--out", "/proc"), "no file can be written into '/proc'"),
        (("--device", "tpu"), "allowed: cuda, cpu"),
    ],
)
def test_wrong_usage(environment: dict[str, str], tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    """Status 2, before anything is started."""
    ended = proved(environment, tmp_path / "out", *words)

    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_what_the_steps_are(environment: dict[str, str], tmp_path: Path) -> None:
    """``--list`` names them all, ``--help`` the one command."""
    listed = proved(environment, tmp_path / "out", "--list").stdout

    assert [line.split()[0] for line in listed.splitlines()] == list(STEPS)
    assert "python3 scripts/prove_on_gpu.py --out" in proved(environment, tmp_path / "out", "--help").stdout


def test_no_time(environment: dict[str, str], tmp_path: Path) -> None:
    """With three seconds nothing is begun: each step says so, and nothing has been proved."""
    ended = proved(environment, tmp_path / "out", "--minutes", "0.05", "--only", "lists,free")

    assert ended.returncode == 1
    assert "skipped: lists (default) [-] no time was left" in ended.stdout
    assert "free: 2 skipped" in ended.stdout
    assert ended.stdout.count("nothing was compared: no file is kept") == 2
    assert not list((tmp_path / "out").iterdir())


def records(environment: dict[str, str], step: str, seconds: float) -> list[dict[str, Any]]:
    """What a step's process says."""
    return list(records_of(step, allocator="default", seconds=seconds, device="cuda", most_bytes=None, environment=environment))


def test_a_process_that_hangs(environment: dict[str, str]) -> None:
    """It is stopped when its time is up, and that is a failure."""
    began = time.monotonic()
    (*_, last) = records({**environment, "FAKE_SLEEP": "60"}, "lists", 2.0)

    assert time.monotonic() - began < 20
    assert (last["status"], last["why"]) == ("failed", "it did not end in its time and was stopped")


def test_a_process_that_breaks(environment: dict[str, str]) -> None:
    """What it said before is kept; its end is a failure."""
    (*first, last) = records({**environment, "FAKE_CRASH": "40"}, "lists", 60.0)

    assert {record["status"] for record in first} == {"agrees"}
    assert (last["status"], last["why"]) == ("failed", "its process ended with status 11: nothing was said")


def test_on_the_cpu(tmp_path: Path) -> None:
    """The rehearsal really runs: every byte written and read back, with torch itself."""
    environment = {name: value for name, value in os.environ.items() if name != "OUT"}
    ended = proved(environment, tmp_path / "out", "--device", "cpu", "--most", "64MiB", "--only", "fill,context")
    files = documents(tmp_path / "out")

    assert (0, "") == (ended.returncode, ended.stderr)
    assert "skipped: context [-] it needs CUDA\n  nothing was compared" in ended.stdout
    assert (files["fill"]["counts"]["agrees"], files["fill"]["counts"]["skipped"]) == (5, 1)
    assert [record["why"].partition(":")[0] for record in files["fill"]["records"] if record["why"]] == ["it does not fit"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"cpu-fill.json"}


def test_rehearsing_leaves_the_kept_files_alone(environment: dict[str, str], tmp_path: Path) -> None:
    """Without ``--out`` nothing of the checkout is written, whatever the device; and of all memory with no byte no pool is made."""
    kept = {path: path.read_bytes() for path in (ROOT / "tests" / "receipts").rglob("*") if path.is_file()}
    for device in ("cpu", "cuda"):
        command = [sys.executable, str(SCRIPT), "--device", device, "--most", "0", "--only", "fill"]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300, cwd=tmp_path)

        assert (1, "") == (ended.returncode, ended.stderr)
        assert f"in all: 0 agrees, 0 differs, 0 failed, {6 if device == 'cpu' else 12} skipped, 0 measured" in ended.stdout
    assert kept == {path: path.read_bytes() for path in (ROOT / "tests" / "receipts").rglob("*") if path.is_file()}
    assert not list((tmp_path / "gpu-proof").iterdir())


def test_a_whole_file_is_kept_until_there_is_another(tmp_path: Path) -> None:
    """A second run that is cut, or compares nothing, does not touch it; one that comes to its end replaces it."""
    whole = tmp_path / "r.json"

    def started(*cases: CaseRecord) -> Receipt:
        receipt = Receipt(whole, "s", "w", {})
        for case in cases:
            receipt.add(case)
        return receipt

    started(judged("first", exact("n", 1, 1))).finish()
    first = whole.read_text()
    started(judged("second", exact("n", 1, 2)))
    assert (first, True) == (whole.read_text(), (tmp_path / "r.json.part").exists())
    started(skipped("third", "no time was left"), judged("fourth", known("n", 1))).finish()
    assert (first, [whole]) == (whole.read_text(), list(tmp_path.iterdir()))
    started(judged("fifth", exact("n", 1, 2))).finish()
    assert "fifth" in whole.read_text()
    assert [whole] == list(tmp_path.iterdir())


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2 and one message, also if the first file could still be begun."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(record, "write_atomically", full)
    monkeypatch.setattr(prove_on_gpu, "checked", lambda _: {"device": "cpu", "device_name": "x", "torch": "2", "driver": ""})
    before = signal.getsignal(signal.SIGTERM)
    try:
        status = prove_on_gpu.main(["--device", "cpu", "--only", "context", "--out", str(tmp_path)])
    finally:
        signal.signal(signal.SIGTERM, before)

    assert 2 == status
    assert "No space left on device" in capsys.readouterr().err


def test_the_users_own_catalog_does_not_come_first(environment: dict[str, str], tmp_path: Path) -> None:
    """What is measured does not depend on whose machine it is: an entry of their own is not read."""
    folder = tmp_path / "config" / "kvplan" / "profiles" / "models" / "Qwen"
    folder.mkdir(parents=True)
    entry = json.loads((ROOT / "profiles" / "models" / "Qwen" / "Qwen3-8B.json").read_text())
    entry["config"]["max_position_embeddings"] = 77
    (folder / "Qwen3-8B.json").write_text(json.dumps(entry))
    own = {**environment, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    command = [
        sys.executable,
        "-c",
        "import hwcalc; print(hwcalc.load_model('Qwen/Qwen3-8B', offline=True).max_position_embeddings)",
    ]
    lengths = [
        subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout.strip()
        for env in (own, child._own(own, "default"))
    ]

    assert ["77", "40960"] == lengths


def test_a_torch_that_does_not_start(environment: dict[str, str], tmp_path: Path) -> None:
    """It is installed, and a library that it needs is not: that is what is said."""
    (tmp_path / "site" / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')")
    ended = proved(environment, tmp_path / "out")

    assert 2 == ended.returncode
    assert "PyTorch is installed and does not start: libcudart.so.12: cannot open" in ended.stderr
    assert "not installed here" not in ended.stderr


def test_names_are_taken_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths, the machine and its user; the slash of a model's name stays."""
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-node-7.example.org")
    monkeypatch.setattr(getpass, "getuser", lambda: "jane")
    text = "Qwen/Qwen3-8B: cannot open '/home/jane/x/y.json' (~/z) on gpu-node-7 of jane, janet: 3 B/s, 1/2"

    assert scrubbed({"a": [text]}) == {
        "a": ["Qwen/Qwen3-8B: cannot open '<path>' (<path>) on <removed> of <removed>, janet: 3 B/s, 1/2"]
    }
    receipt = Receipt(tmp_path / "r.json", "s", "w", {"device_name": "x of jane"})
    receipt.add(judged("at /tmp/a/b", known("n", 1), host="gpu-node-7"))
    assert "jane" not in receipt.part.read_text()
    assert "gpu-node" not in receipt.part.read_text()
    assert "/tmp" not in receipt.part.read_text()  # noqa: S108 - it is looked for


@pytest.mark.parametrize(
    "text, left",
    [
        (r"cannot open 'C:\Users\Jane Doe\torch\lib\c10.dll' or \\store\share\x", "cannot open '<path>' or <path>"),
        (r"C:/Users/jane/x.py, line 3", "<path>, line 3"),
        (
            "rank 0 at 10.0.0.7:29500 and [fe80::1ff:fe23:4567]:1, ::ffff:10.1.2.3",
            "rank 0 at <address>:29500 and [<address>]:1, <address>",
        ),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6 and MIG-8932f937-d72c-4106-c12f-20bd9faed9f6", "<id> and <id>"),
        ("uuid 8932F937-d72c-4106-c12f-20bd9faed9f6, GPU-8932f937", "uuid <id>, <id>"),
        ("at 12:30:45 torch 2.11.0, driver 570.124.06, a::b, 1.2.3.400: Qwen/Qwen3-8B", None),
    ],
)
def test_what_names_a_machine_is_taken_out(text: str, left: str | None) -> None:
    """Windows' paths, addresses, ids of GPUs. A time, a version and a model's name are none."""
    assert (text if left is None else left) == scrubbed(text)


@pytest.mark.parametrize("name", ["default", "cuda", "Qwen3-8B", "agrees"])
def test_a_machine_that_is_called_like_our_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Its name is taken out of free text; kvplan's own fields stay, so that the file can be read again."""
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    monkeypatch.setattr(getpass, "getuser", lambda: name)
    receipt = Receipt(tmp_path / "r.json", "lists", "w", {"device": "cuda", "device_name": f"box of {name}"})
    receipt.add(
        {
            "allocator": "default",
            **asdict(judged("Qwen/Qwen3-8B default", why=f"on {name}", model="Qwen/Qwen3-8B", probe_receipt={"device": "cuda"})),
            "status": "agrees",
        }
    )
    receipt.finish()
    document = json.loads(receipt.path.read_text())
    (kept,) = document["records"]

    assert ("cuda", "box of <removed>") == (document["environment"]["device"], document["environment"]["device_name"])
    assert ("default", "agrees", "Qwen/Qwen3-8B default", "on <removed>") == tuple(
        kept[word] for word in ("allocator", "status", "case", "why")
    )
    assert kept["details"] == {"model": "Qwen/Qwen3-8B", "probe_receipt": {"device": "cuda"}}
