"""The files of ``scripts/prove_on_gpu.py`` that are kept: what was measured then is what the rules say today."""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from msgspec.structs import asdict

from hwcalc import load_model
from hwcalc.planner.context import open_request
from hwcalc.probe.allocator import Allocator, parse_settings, predict
from hwcalc.probe.receipt import verify
from scripts.gpu_proof import memory
from scripts.gpu_proof.cases import MODELS, POOLED, Run, allocations, operations
from scripts.gpu_proof.record import Figure, Receipt
from scripts.gpu_proof.steps import ALLOCATORS, STEPS
from tests.hwcalc.probe.fake_cuda import GPU_NAME, FakeTorch
from tests.paths import TESTS

KEPT = sorted((TESTS / "receipts" / "proof").glob("*.json"))


def judged_again(record: dict[str, Any]) -> list[str]:
    """The figures of a record that are not within their bounds."""
    return [figure["name"] for figure in record["figures"] if not Figure(**figure).agrees]


def planned_again(step: str, record: dict[str, Any]) -> list[str]:
    """What today's rules say otherwise than was measured."""
    details, settings = record["details"], parse_settings(ALLOCATORS[record["allocator"]] or "")
    measured = {figure["name"]: figure["measured"] for figure in record["figures"]}
    told: dict[str, int] = {}
    if step == "fill":
        return [] if verify(details["probe_receipt"], record["case"]).agrees else ["receipt"]
    if step == "allocator":
        arguments = {name: details[name] for name in ("seq", "batch", "engine", "dtype")}
        sizes = [one.bytes for one in allocations(open_request(load_model(details["model"], offline=True), **arguments))]
        statistics = predict(sizes, settings)
        told = {
            "tensors": sum(sizes),
            "memory_allocated": statistics.allocated_bytes,
            "memory_reserved": statistics.reserved_bytes,
        }
    elif step == "lists":
        rules, addresses = Allocator(settings), list[int]()
        for size in operations(int(record["case"].split()[1])):
            if size < 0:
                rules.free(addresses.pop(-1 - size))
            else:
                addresses.append(rules.allocate(size))
        told = {"allocated": rules.statistics.allocated_bytes, "reserved": rules.statistics.reserved_bytes}
    return [name for name, size in told.items() if measured[name] != size]


def drift(document: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """The cases that were measured and do not hold any more."""
    compared = [record for record in document["records"] if record["status"] in {"agrees", "measured"}]
    found = [(record["case"], judged_again(record) + planned_again(document["step"], record)) for record in compared]
    return [(case, words) for case, words in found if words]


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_kept_proofs_hold(path: Path) -> None:
    """The step came to its end, nothing differed then, and nothing does today."""
    document = json.loads(path.read_text())

    assert document["complete"] is True
    assert document["step"] in STEPS
    assert document["counts"]["differs"] == document["counts"]["failed"] == 0 < document["counts"]["agrees"]
    assert [] == drift(document)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_kept_proofs_name_nobody(path: Path) -> None:
    """No machine, no user, no path, no address."""
    text = path.read_text()
    names = {socket.gethostname(), getpass.getuser()} - {"root", "localhost"}

    assert not [name for name in names if re.search(rf"\b{re.escape(name)}\b", text)]
    assert not re.search(r"/(?:home|root|tmp|work|usr|opt|mnt)/|GPU-[0-9a-f]{8}|\b\d{1,3}(?:\.\d{1,3}){3}\b", text)


def test_there_are_kept_proofs() -> None:
    """An empty folder would prove nothing."""
    assert KEPT


@pytest.mark.parametrize("step", ["lists", "allocator", "fill"])
@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_a_file_is_planned_again(step: str, allocator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU by the rules gives holds; a byte more in one case is found."""
    monkeypatch.setattr(memory, "MODELS", MODELS[:4])
    monkeypatch.setattr(memory, "POOLED", POOLED[:4])
    torch = FakeTorch(total=20 * 2**30, name=GPU_NAME, expandable=allocator == "expandable")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", ALLOCATORS[allocator] or "")
    receipt = Receipt(tmp_path / "r.json", step, "", {})
    for record in STEPS[step].run(Run(load=lambda: torch, until=monotonic() + 600, environment=os.environ)):
        receipt.records.append({"allocator": allocator, **json.loads(json.dumps(asdict(record), default=asdict))})
    receipt.finish()
    document = json.loads(receipt.path.read_text())

    assert [] == drift(document)
    document["records"][1]["figures"][0]["measured"] += 1
    if step == "fill":
        document["records"][1]["details"]["probe_receipt"]["probe"]["ranks"][0]["tensors"][0]["measured_bytes"] += 1
    assert [document["records"][1]["case"]] == [case for case, _ in drift(document)]
