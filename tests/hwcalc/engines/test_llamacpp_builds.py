"""Builds of llama.cpp, told apart: what each of them allocates for the same small files (``golden/llamacpp_builds.json``)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

import pytest
from msgspec.structs import replace

from hwcalc import load_model, plan
from hwcalc.engines import find_engine
from hwcalc.engines.devices import Placement
from hwcalc.engines.llamacpp.builds import (
    HISTORY_ENDS,
    NEWEST,
    NEWEST_RULES,
    OLDEST,
    RELEASE,
    BuildRules,
    build_of,
    known_since,
    ollama_build,
    resolve,
    rules_of,
)
from hwcalc.engines.llamacpp.graph import Buffers, HostPart, Part, fullest, gpu_moments, sizes_of
from hwcalc.engines.llamacpp.occupancy import LlamacppOccupancy
from hwcalc.engines.llamacpp.settings import Settings
from hwcalc.engines.setup import Hardware, Request
from hwcalc.engines.versions import rules_in
from hwcalc.errors import UnknownNameError, UnsupportedError
from hwcalc.parsers.gguf.hparams import hparams_of
from hwcalc.planner.context import open_request
from hwcalc.profiles.engines import llamacpp_builds
from hwcalc.profiles.gpus import find_gpu
from hwcalc.units import MIB
from tests.paths import GOLDEN

MEASURED: Final = json.loads((GOLDEN / "llamacpp_builds.json").read_text(encoding="utf-8"))
ROWS: Final[list[dict[str, Any]]] = MEASURED["rows"]
CONTEXTS: Final[list[dict[str, Any]]] = MEASURED["contexts"]
LLAMA: Final = "meta-llama/Llama-3.1-8B-Instruct"
ROUNDED: Final = 0.011
"""Logs have two decimals; a sum of two lines may be off by twice a half."""


class Case(NamedTuple):
    """A context of a build."""

    number: int
    occupancy: LlamacppOccupancy
    settings: Settings


@cache
def model(name: str) -> Any:
    """A small model."""
    return load_model(dict(MEASURED["models"][name]))


def cases(row: Mapping[str, Any], seen: str) -> Iterator[Case]:
    """The contexts of a row of which ``seen`` is known, by the library's own defaults but for windows."""
    for number, context in enumerate(CONTEXTS):
        if row[seen][number] is None:
            continue
        options = {name: str(value) for name, value in context.items() if name not in ("n_outputs_max", "kv_unified")}
        options |= {"defaults": "api", "swa_full": "false", "kv_unified": "true" if context.get("kv_unified") else "false"}
        request = Request.of(
            seq=1,
            batch=context.get("n_seq_max", 1),
            options=options,
            engine_version=resolve(row["build"]),
        )
        occupancy = find_engine("llamacpp")[0].deploy(model(row["model"]), request.setup).at(request.load)
        assert isinstance(occupancy, LlamacppOccupancy)
        settings = occupancy.settings
        if "n_outputs_max" in context:
            settings = replace(settings, n_outputs=context["n_outputs_max"])
        yield Case(number, occupancy, settings)


def named(row: Mapping[str, Any]) -> str:
    """A name for a row."""
    return f"{row['build']}-{row['model']}"


@pytest.mark.parametrize("row", [row for row in ROWS if "cache" in row], ids=named)
def test_caches_and_outputs_are_exact(row: dict[str, Any]) -> None:
    """Cells, keys, values, states and the output buffer, of every build that was run: within what its log rounds away."""
    for case in cases(row, "cache"):
        context, settings = CONTEXTS[case.number], case.settings
        assert case.occupancy.stored_bytes / MIB == pytest.approx(row["cache"][case.number], abs=2 * ROUNDED), context
        assert settings.n_ctx == row["cells"][case.number], context
        outputs = 4 * case.occupancy.hparams.n_vocab * settings.n_seq_max
        assert outputs / MIB == pytest.approx(row["output"][case.number], abs=ROUNDED), context


def ends_of(case: Case, place: str) -> tuple[float, float]:
    """The range of a compute buffer in MiB."""
    read, one = hparams_of(case.occupancy.model), case.settings
    if place == "host":
        buffers = Buffers(read, one, sixteen_bit=False, once=lambda _, make: make())
        part = buffers.parts(HostPart(alone=False, partly=False, helped=True, copies=1))[0]
        return part.low / MIB, part.high / MIB
    sizes = sizes_of(gpu_moments(read, one, Part(alone=place == "cpu")), one)
    return fullest(sizes, "low") / MIB, fullest(sizes, "high") / MIB


@pytest.mark.parametrize(("place", "count"), [("cpu", 1498), ("gpu", 504), ("host", 504)])
def test_compute_buffers_lie_in_their_ranges(place: str, count: int) -> None:
    """Of every build at least 19 of 20 do; a host without layers has its buffer within half a MiB."""
    found: dict[str, list[bool]] = defaultdict(list)
    for row in ROWS:
        for case in cases(row, place) if place in row else ():
            low, high = ends_of(case, place)
            found[row["build"]].append(low - 0.5 <= row[place][case.number] <= high + 0.5)
    shares = {build: sum(inside) / len(inside) for build, inside in found.items()}
    assert min(shares.values()) >= (1 if place == "host" else 0.93), shares
    assert sum(map(sum, found.values())) / sum(map(len, found.values())) >= 0.97
    assert sum(map(len, found.values())) == count


def test_a_cache_on_the_host_is_copied_to_the_gpu_that_attends_to_it() -> None:
    """One layer after the other: the buffers that two builds reserved with ``no_kv_offload`` lie in their ranges."""
    outside = []
    for row in MEASURED["kept_on_host"]:
        options = {name: str(row[name]) for name in ("n_ctx",)} | {
            "flash_attn": "on",
            "no_kv_offload": "true",
            "n_gpu_layers": "all",
        }
        options |= {"defaults": "api", "swa_full": "false"}
        request = Request.of(
            seq=1,
            batch=row.get("n_seq_max", 1),
            options=options,
            engine_version=resolve(row["build"]),
            hardware=Hardware(gpu=find_gpu("rtx-4090")),
        )
        occupancy = find_engine("llamacpp")[0].deploy(model(row["model"]), request.setup).at(request.load)
        assert isinstance(occupancy, LlamacppOccupancy)
        settings = occupancy.settings
        if "n_outputs_max" in row:
            settings = replace(settings, n_outputs=row["n_outputs_max"])
        # Vulkan's flash attention reads a cache of 16 bits as it is.
        buffers = Buffers(hparams_of(occupancy.model), settings, sixteen_bit=False, once=lambda _, make: make(), kv_on_host=True)
        low, expected, high = (buffers.of(occupancy.layout.gpus[0].part, end) / MIB for end in ("low", "expected", "high"))
        if not low - 0.5 <= row["gpu"] <= high + 0.5:
            outside.append((row, low, expected, high))
    assert not outside


def placed(name: str, engine: str) -> Placement:
    """What each device holds of a model of 4 bits with 8,192 tokens on a card with 24 GB."""
    occupancy = open_request(load_model(name), engine=engine, gpu="rtx-4090", weights="q4_k_m", seq=8192)
    found = occupancy.devices.placement()
    assert found is not None
    return found


def test_a_build_before_a_change_and_the_build_that_made_it() -> None:
    """The first build of every rule has another value than the build before."""
    for name, rule in rules_in(BuildRules).items():
        for first, value in rule.entries[:-1]:
            assert getattr(rules_of(int(first)), name) == value
            assert getattr(rules_of(int(first) - 1), name) != value
    assert rules_of(HISTORY_ENDS) == rules_of(NEWEST) == NEWEST_RULES


def test_names_of_builds() -> None:
    """``b6900``, ``6900`` and releases; what lies outside is refused with the next one that is known."""
    assert [resolve(name) for name in ("b6900", "6900", "v0.5.0", "0.5", "0.4")] == [
        "b6900",
        "b6900",
        "v0.5.0",
        "v0.5.0",
        "v0.4.0",
    ]
    assert (build_of("b6900"), build_of(RELEASE)) == (6900, NEWEST)
    for name, next_to_type in (
        (f"b{OLDEST - 1}", f"llamacpp@b{OLDEST}"),
        (f"b{NEWEST + 1}", "llamacpp@v0.5.0"),
        ("v0.9", "v0.5.0"),
    ):
        with pytest.raises(UnknownNameError) as refused:
            resolve(name)
        assert next_to_type in str(refused.value.hint)


def test_logits_of_a_batch_until_the_server_limits_them() -> None:
    """b9460: 512 x (128,256 + 4,096) x 4 B = 258.5 MiB before it, and one row of logits since."""

    def compute(build: str) -> float:
        share = placed(LLAMA, f"llamacpp@{build}").gpus[0]
        return next(part.expected for part in share.parts if part.name == "compute buffer") / MIB

    assert compute("b9459") == pytest.approx(258.5 * 1.02, abs=0.1)
    assert compute("b9460") == pytest.approx(116, abs=0.1)


def test_fitting_by_itself_began_in_b7407() -> None:
    """70B in 24 GB: newer builds leave layers to the host, older ones try all, and before b6325 none goes to the GPU."""

    def on_gpu(build: str) -> int | None:
        return placed("meta-llama/Llama-3.1-70B-Instruct", f"llamacpp@{build}").gpu_layers

    fitted = on_gpu("b7407")
    assert fitted is not None
    assert 20 < fitted < 81
    assert on_gpu("b7406") == 81
    assert on_gpu("b6324") == 0


def test_a_build_refuses_an_architecture_that_it_does_not_know() -> None:
    """gpt-oss: since b6096. Latents of DeepSeek's attention: since b5137."""
    assert known_since("gpt-oss", latent=False) == 6096
    with pytest.raises(UnsupportedError, match="b6095 does not know gpt-oss: b6096"):
        plan("openai/gpt-oss-20b", engine="llamacpp@b6095", seq=4096)
    assert plan("openai/gpt-oss-20b", engine="llamacpp@b6096", seq=4096).cache.total_bytes
    with pytest.raises(UnsupportedError, match="b5137"):
        plan("deepseek-ai/DeepSeek-V3", engine="llamacpp@b5136", seq=4096)
    with pytest.raises(UnsupportedError, match="no multi-token prediction"):
        plan("Qwen/Qwen3.5-9B", engine="llamacpp@b9179", seq=4096, engine_options={"load_mtp": "true"})


def test_ollama_starts_the_build_that_it_names() -> None:
    """``LLAMA_CPP_VERSION`` of its releases: 0.30.0 has b9452, before logits were limited, and 0.30.1 b9479."""
    assert (ollama_build("0.30.0"), ollama_build("0.30.3"), ollama_build("0.32.15")) == (9452, 9479, 10488)
    ollama = find_engine("ollama")[0]
    assert [ollama.version(text) for text in ("0.33.1", "0.31.2", "v0.32.5", "0.30.0", "0.30.4")] == [
        "0.33", "0.31", "0.32", "0.30.0", "0.30",
    ]  # fmt: skip
    assert all(build >= OLDEST for build in llamacpp_builds().ollama.values())
    with pytest.raises(UnknownNameError) as refused:
        ollama.version("0.12.5")
    assert "llamacpp@b6646" in str(refused.value.hint)
    older, newer = (placed(LLAMA, f"ollama@{version}").gpus[0] for version in ("0.30.0", "0.31"))
    assert sum(part.expected for part in older.parts) > sum(part.expected for part in newer.parts) + 100 * MIB
