"""Answers that would cost a careless client its time or its memory: drips, endless bodies, bombs, lies about lengths."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from hwcalc.errors import HubUnreachableError, UsageError
from hwcalc.sources import hub_client, weights
from tests.hub.repositories import MODEL, TEXT, File, sharded
from tests.hub.server import Hub
from tests.hwcalc.sources.given import planned, refused

TOKEN = "hf_" + "x" * 20


@pytest.mark.parametrize(
    "fault",
    [
        {"header_drip": 0.05},
        {"drip": 0.05},
        {"drip": 0.05, "headers": {"Content-Length": "", "Transfer-Encoding": "chunked"}, "body": b"1\r\n{\r\n" * 200},
        {"endless": True, "headers": {"Content-Length": ""}, "status": 418},
    ],
    ids=["header lines", "bytes", "chunks", "another status"],
)
def test_a_drip_meets_the_deadline_of_the_whole_request(
    hub: Path, loopback: Hub, monkeypatch: pytest.MonkeyPatch, fault: dict[str, Any]
) -> None:
    """Each piece arrives within the time-out, but the answer as a whole does not. Six time-outs of 0.2 s are 1.2 s."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    loopback.add("org/name", MODEL)
    loopback.fail("config.json", **fault)
    begun = time.monotonic()
    error = refused("org/name", token=TOKEN)

    assert time.monotonic() - begun < 3
    assert error.exit_code == 4
    assert "too slowly" in error.message or "status 418" in error.message
    assert TOKEN not in error.message + error.hint


def test_the_tries_share_the_deadline(hub: Path, loopback: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that asks to come back in four seconds, twice, would take eight."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    loopback.add("org/name", MODEL)
    loopback.fail("config.json", status=503, headers={"Retry-After": "4"})
    begun = time.monotonic()
    error = refused("org/name")

    assert time.monotonic() - begun < 3
    assert isinstance(error, HubUnreachableError)


def test_all_requests_for_a_model_share_a_deadline(hub: Path, loopback: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand files of which each drips for its own deadline would take hours."""
    monkeypatch.setattr(hub_client, "_LONGEST_READING", 1.0)
    loopback.add("org/name", {"config.json": TEXT, **sharded(100)})
    loopback.fail("model-0", header_drip=0.05)
    begun = time.monotonic()
    raw = planned()

    assert time.monotonic() - begun < 4
    assert raw.weights is None
    assert "too slowly" in raw.notes[0].message


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("config.json", {"body": gzip.compress(bytes(60_000_000), 1), "headers": {"Content-Encoding": "gzip"}}),
        ("config.json", {"endless": True, "headers": {"Content-Length": ""}}),
        ("model.safetensors.index.json", {"endless": True, "headers": {"Content-Length": ""}, "body": b" " * 65536}),
        ("model.safetensors.index.json", {"body": b"{}", "headers": {"Content-Length": str(2**50)}}),
        (
            "model.safetensors.index.json",
            {"body": gzip.compress(bytes(30_000_000), 1) * 10, "headers": {"Content-Encoding": "gzip"}},
        ),
    ],
    ids=["bomb", "endless config", "endless index", "long index", "index bomb"],
)
def test_an_answer_takes_no_more_memory_than_its_limit(hub: Path, loopback: Hub, name: str, fault: dict[str, Any]) -> None:
    """The largest document has 16 MiB, the largest index 128 MiB; a copy may come on top of each."""
    if name == "config.json":
        loopback.add("org/name", MODEL)
    else:
        loopback.add("org/name", {"config.json": TEXT, **sharded(2)})
    loopback.fail(name, **fault)
    most = 3 * (16 if name == "config.json" else 128) * 2**20
    tracemalloc.start()
    try:
        if name == "config.json":
            assert refused("org/name").exit_code in (3, 4)
        else:
            assert planned().weights is None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most


def test_a_compressed_answer_is_read(hub: Path, loopback: Hub) -> None:
    """A mirror may compress what it was not asked to."""
    loopback.add("org/name", MODEL)
    loopback.fail("config.json", body=gzip.compress(TEXT), headers={"Content-Encoding": "gzip"})

    assert planned().config == json.loads(TEXT)


@pytest.mark.parametrize("size", [1, 5, 100_000])
def test_gzip_may_have_several_members(size: int) -> None:
    """As the format allows; zeros behind the last one are no member."""
    data = b"".join(map(gzip.compress, (TEXT[:20], TEXT[20:], b"x" * 200_000))) + bytes(9)
    pieces = (data[place : place + size] for place in range(0, len(data), size))

    assert b"".join(hub_client.unzipped(pieces)) == TEXT + b"x" * 200_000


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 1e20, float("nan")])
def test_a_time_out_is_one(hub: Path, loopback: Hub, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """One out of range is wrong usage, and nothing is asked."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", seconds)
    with pytest.raises(UsageError, match="HF_HUB_DOWNLOAD_TIMEOUT is "):
        hub_client.HubClient(endpoint=loopback.address)
    assert loopback.asked == []


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip"])
def test_other_compression_is_refused(hub: Path, loopback: Hub, encoding: str) -> None:
    """No limit of ours would hold in the client's own decoder."""
    loopback.add("org/name", MODEL)
    loopback.fail("config.json", headers={"Content-Encoding": encoding})

    assert "compressed" in refused("org/name").message


def test_of_large_headers_one_is_in_memory(hub: Path, loopback: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight files are read at a time; their headers of half a megabyte take turns, however long an index says that they are."""
    monkeypatch.setattr(weights, "LARGE", 64 * 1024)
    rows = ",".join(f'"{number}":{{"dtype":"U8","shape":[1],"data_offsets":[{number},{number + 1}]}}' for number in range(10_000))
    text = f"{{{rows}}}".encode()
    file = File(len(text).to_bytes(8, "little") + text, 8 + len(text) + 10_000)
    names = [f"m-{number}.safetensors" for number in range(8)]
    where = {f"{name} {'x' * 300} {number}": name for name in names for number in range(1000)}
    index = json.dumps({"weight_map": where}).encode()
    loopback.add("org/name", {"config.json": TEXT, "model.safetensors.index.json": index, **dict.fromkeys(names, file)})
    del where
    tracemalloc.start()
    try:
        raw = planned()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert raw.weights is not None
    assert raw.weights.tensors == 80_000
    assert peak < 2 * len(index) + 8 * len(text)


def test_headers_together_have_a_limit(hub: Path, loopback: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files on the Hub and of files in a folder."""
    monkeypatch.setattr(weights, "MOST_BYTES", 1000)
    loopback.add("org/name", {"config.json": TEXT, **sharded(9)})
    raw = planned()

    assert raw.weights is None
    assert "take more than" in raw.notes[0].message
