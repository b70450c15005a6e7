"""Compute buffers: derived sizes against those that llama.cpp reserves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pytest
from msgspec.structs import replace

from hwcalc.engines.llamacpp.graph import (
    NOTHING_COPIED,
    PIPELINE_COPIES,
    Buffers,
    GpuPart,
    HostPart,
    Part,
    compute_buffer,
    fullest,
    gpu_moments,
    moments,
    sizes_of,
)
from hwcalc.engines.llamacpp.settings import Settings, read_settings
from hwcalc.engines.memory import BudgetPart
from hwcalc.engines.setup import Request
from hwcalc.parsers.gguf.hparams import Hparams, read_hparams
from hwcalc.profiles.engines import llamacpp_profile
from hwcalc.units import MIB
from tests.paths import GOLDEN

MEASURED: Final = json.loads((GOLDEN / "llamacpp_compute.json").read_text(encoding="utf-8"))
NOT_OPTIONS: Final = {"model", "cpu", "gpu", "host", "n_outputs", "flash_attn"}
SERVER: Final[dict[str, Any]] = {"n_outputs": 1}
WHOLE: Final = Part()
ALONE: Final = Part(alone=True)
FIRST_OF_TWO: Final = Part(output=False, copies=PIPELINE_COPIES)
LAST_OF_TWO: Final = Part(first=False, copies=PIPELINE_COPIES)


def hparams(model: str) -> Hparams:
    """The hyperparameters of a measured model."""
    return read_hparams(MEASURED["models"][model])


def settings(read: Hparams, row: Mapping[str, Any]) -> Settings:
    """The settings of a measured row: defaults of the library, without the whole cache for windows."""
    options = {name: str(value) for name, value in row.items() if name not in NOT_OPTIONS}
    options |= {"defaults": "api", "swa_full": "0", "flash_attn": "on" if row.get("flash_attn", 1) else "off"}
    one = read_settings(Request.of(seq=row["n_ctx"], options=options), read)
    return replace(one, n_outputs=row.get("n_outputs", one.n_batch))


def of_part(read: Hparams, one: Settings, part: Part) -> BudgetPart:
    """The compute buffer of a device that runs a part of the model."""
    sizes = sizes_of(gpu_moments(read, one, part), one)
    low, expected, high = (fullest(sizes, end) for end in ("low", "expected", "high"))
    return compute_buffer(sizes, one, (low, expected, high))


def gpu(model: str, part: Part = WHOLE, **row: Any) -> BudgetPart:
    """The compute buffer of a GPU."""
    read = hparams(model)
    return of_part(read, settings(read, row), part)


def copying(model: str, from_host: int, full: int, *, kv_on_host: bool = False, **row: Any) -> BudgetPart:
    """The compute buffer of a GPU that copies so many bytes of weights from the host, and cells of so many bytes."""
    read = hparams(model)
    one = settings(read, {**row, **SERVER})
    buffers = Buffers(read, one, sixteen_bit=False, once=lambda _, make: make(), kv_on_host=kv_on_host)
    return buffers.parts(GpuPart(runs=True, first=True, output=True, copies=1, from_host=from_host, full=full))[0]


def host(model: str, copies: int = 1, *, partly: bool = False, **row: Any) -> BudgetPart:
    """The compute buffer of the host beside GPUs."""
    read = hparams(model)
    return host_buffer(read, settings(read, row), copies, partly=partly)


def host_buffer(read: Hparams, one: Settings, copies: int = 1, part: int = 0, *, partly: bool = False) -> BudgetPart:
    """The same in a context; ``part`` 1 is the output buffer."""
    buffers = Buffers(read, one, sixteen_bit=False, once=lambda _, make: make())
    return buffers.parts(HostPart(alone=False, partly=partly, helped=True, copies=copies))[part]


def inside(part: BudgetPart, size: float) -> bool:
    """Whether a size lies in the range; printed sizes are rounded to a hundredth or half of a MiB."""
    return part.low - 0.5 * MIB <= size <= part.high + 0.5 * MIB


def published() -> dict[str, tuple[BudgetPart, float]]:
    """The figures that were published with the rules, in MiB: those of a server unless the name says otherwise."""
    llama = "llama-3.1-8b"
    found = {
        "8B, library": (gpu(llama, n_ctx=8192), 258.50),
        "8B, library, host": (host(llama, n_ctx=8192), 24.01),
        "8B": (gpu(llama, n_ctx=8192, **SERVER), 116.01),
        "8B, host": (host(llama, n_ctx=8192, **SERVER), 24.01),
        "8B, 128k": (gpu(llama, n_ctx=131072, **SERVER), 236.01),
        "8B, 128k, host": (host(llama, n_ctx=131072, **SERVER), 144.01),
        "8B without flash attention": (gpu(llama, n_ctx=8192, flash_attn=0), 564.0),
        "8B without flash attention, 32k": (gpu(llama, n_ctx=32768, flash_attn=0), 2148.0),
        "8B, first of two GPUs": (gpu(llama, FIRST_OF_TWO, n_ctx=8192), 172),
        "8B, last of two GPUs": (gpu(llama, LAST_OF_TWO, n_ctx=8192), 354.5),
        "8B, host of two GPUs": (host(llama, PIPELINE_COPIES, n_ctx=8192), 72),
        "8B, ten layers on a GPU, host": (host(llama, partly=True, n_ctx=8192), 124),
        "8B, outputs": (host_buffer(hparams(llama), settings(hparams(llama), {"n_ctx": 8192, **SERVER}), part=1), 0.49),
        "DeepSeek-V3, 2,048 tokens": (gpu("deepseek-v3", n_ctx=32768, n_ubatch=2048, **SERVER), 1640),
        "Mamba-2": (gpu("mamba2-codestral-7b", n_ctx=8192, **SERVER), 112.6),
    }
    tables = {
        "gpt-oss-20b": (95.5, 119.5), "qwen3-30b-a3b": (92, 116), "deepseek-v3": (386, 410), "deepseek-v3.2": (627, 784),
        "qwen3-next-80b": (90, 114), "qwen3.5-27b": (130, 154), "jamba-v0.1": (192, 216), "granite-4.0-h-small": (150, 174),
        "llama4-scout": (104, 128.5), "gemma4-31b": (188.5, 212.5),
    }  # fmt: skip
    for model, sizes in tables.items():
        for n_ctx, size in zip((8192, 32768), sizes, strict=True):
            found[f"{model}, {n_ctx}"] = (gpu(model, n_ctx=n_ctx, **SERVER), size)
    return found


PUBLISHED: Final = published()


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_figure_lies_inside_the_range(name: str) -> None:
    """Each of them does."""
    part, size = PUBLISHED[name]
    assert inside(part, size * MIB), (part.low / MIB, size, part.high / MIB)


def test_16_bit_copies_of_a_quantised_cache() -> None:
    """8B with 128k tokens of q8_0: 512 MiB for one layer's keys and values, which the host does not need."""
    read = hparams("llama-3.1-8b")
    one = settings(read, {"n_ctx": 131072, "type_k": "q8_0", "type_v": "q8_0", **SERVER})
    copies = {moment.name: moment.fixed_bytes.at(one) for moment in moments(read, one, Part(sixteen_bit=True))}
    assert copies["16-bit copies"] == 512 * MIB
    assert inside(of_part(read, one, Part(sixteen_bit=True)), 672.09 * MIB)
    assert "16-bit copies" not in {moment.name for moment in moments(read, one, WHOLE)}


def test_measured_sizes_lie_inside_the_ranges() -> None:
    """At least 19 of 20 of what was measured over architectures, batches, contexts, sequences and attention; never further off than half."""
    found: dict[str, list[bool]] = {"gpu": [], "host": [], "cpu": []}
    for row in MEASURED["rows"]:
        read = hparams(row["model"])
        one = settings(read, row)
        parts = {"gpu": of_part(read, one, WHOLE), "host": host_buffer(read, one), "cpu": of_part(read, one, ALONE)}
        for place, part in parts.items():
            if place in row:
                found[place].append(inside(part, row[place]))
                assert part.low / 1.5 < row[place] < 1.5 * part.high + MIB, (place, row)
    shares = {place: sum(fits) / len(fits) for place, fits in found.items()}
    assert min(shares.values()) >= 0.95, shares
    assert sum(map(len, found.values())) == 876


def test_golden_contexts() -> None:
    """Of the contexts that libllama made on a CPU, 19 of 20 have their compute buffer inside the range."""
    fits = []
    for row in json.loads((GOLDEN / "llamacpp.json").read_text(encoding="utf-8"))["cases"]:
        if "exact_bytes" not in row:
            continue
        read = read_hparams(
            {"general.architecture": row["arch"]} | {f"{row['arch']}.{key}": value for key, value in row["hparams"].items()}
        )
        options = {name: str(value) for name, value in row["options"].items()} | {"defaults": "api"}
        one = read_settings(Request.of(seq=row["options"]["n_ctx"] or 1, options=options), read)
        fits.append(inside(of_part(read, one, ALONE), row["exact_bytes"]["compute_cpu"]))
    assert len(fits) == 208
    assert sum(fits) / len(fits) >= 0.95, sum(fits)


@pytest.mark.parametrize("model", MEASURED["models"])
def test_larger_batches_and_contexts_need_no_less(model: str) -> None:
    """On every device, with and without flash attention."""
    for flash in (0, 1):
        for part in (WHOLE, ALONE, FIRST_OF_TWO, LAST_OF_TWO):
            batches = [gpu(model, part, n_ctx=8192, n_ubatch=ubatch, flash_attn=flash).expected for ubatch in (32, 64, 512, 1024)]
            contexts = [gpu(model, part, n_ctx=n_ctx, flash_attn=flash).expected for n_ctx in (2048, 4096, 20000, 131072)]
            assert batches == sorted(batches)
            assert contexts == sorted(contexts)


@pytest.mark.parametrize("model", MEASURED["models"])
def test_a_range_holds_what_is_expected(model: str) -> None:
    """Low <= expected <= high, and the steps add up to it."""
    part = gpu(model, n_ctx=8192, **SERVER)
    assert 0 < part.low <= part.expected <= part.high
    assert part.steps


def test_weights_of_the_host_are_copied() -> None:
    """Qwen3-30B-A3B in Q4_K with all experts on the host: 108 MiB of one tensor beside the batch; eight tensors of Llama 8B fit as well.

    A cell of a layer of Llama, which is copied too, has 4,096 bytes.
    """
    llama = "llama-3.1-8b"
    assert inside(copying("qwen3-30b-a3b", 108 * MIB, 0, n_ctx=8192), 176.01 * MIB)
    assert inside(copying("deepseek-v3", 2016 * MIB, 0, n_ctx=8192), 2228.01 * MIB)
    assert inside(copying(llama, 33030144, 4096, n_ctx=8192), 129.5 * MIB)
    assert inside(copying(llama, 33030144, 4096, n_ctx=32768), 185.0 * MIB)
    assert inside(copying("llama-3.1-70b", 126 * MIB, 4096, n_ctx=4096), 306.0 * MIB)


def test_a_cache_that_lies_on_the_host_is_copied_for_flash_attention() -> None:
    """8B with 32,768 cells: 32 MiB of the mask, 128 of one layer's keys and values, 4 x 4,096 numbers of 512 tokens.

    Without flash attention nothing is, and nothing of a cache that lies on the GPU.
    """
    row: dict[str, Any] = {"n_ctx": 32768}
    counted = (32 + 128 + 32) * MIB
    assert copying("llama-3.1-8b", NOTHING_COPIED, 4096, kv_on_host=True, **row).expected == pytest.approx(counted, rel=0.05)
    assert copying("llama-3.1-8b", NOTHING_COPIED, 4096, **row) == gpu("llama-3.1-8b", **row, **SERVER)
    plain = row | {"flash_attn": 0}
    assert copying("llama-3.1-8b", NOTHING_COPIED, 4096, kv_on_host=True, **plain) == gpu("llama-3.1-8b", **plain, **SERVER)


def test_every_moment_has_a_measured_error() -> None:
    """The profile names every moment that a derivation may give."""
    names = {"host"}
    for model in MEASURED["models"]:
        read = hparams(model)
        for flash in (0, 1):
            one = settings(read, {"n_ctx": 8192, "flash_attn": flash})
            part = Part(copies_host=True, sixteen_bit=True)
            names |= {moment.name for moment in moments(read, replace(one, type_k=one.type_v) if flash else one, part)}
    older = {"logits of a batch"}
    assert names | older | {"16-bit copies", "draft attention", "draft feed-forward"} == set(llamacpp_profile().compute)
