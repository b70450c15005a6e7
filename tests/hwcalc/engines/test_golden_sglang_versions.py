"""What the releases of SGLang before 0.5.23 themselves resolved and computed (``tests/golden/sglang_versions.json``) is planned alike."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from hwcalc import load_model, plan
from hwcalc.engines import find_engine
from hwcalc.engines.setup import Hardware, Parallel, Request
from hwcalc.engines.sglang.engine import SglangOccupancy
from hwcalc.engines.sglang.memory import default_fraction
from hwcalc.engines.sglang.rules import ARGUMENTS_SINCE, NEWEST, VERSIONS, resolve
from hwcalc.errors import UnknownNameError, UnsupportedError
from hwcalc.profiles.gpus import find_gpu
from tests.paths import GOLDEN

_CASES: Final = json.loads((GOLDEN / "sglang_versions.json").read_text(encoding="utf-8"))["cases"]


def _planned(case: dict[str, Any]) -> dict[str, Any]:
    """The figures of a case."""
    parallel = Parallel(**{name: case.get(name, 1) for name in ("tp", "pp", "dp")})
    request = Request.of(
        seq=1024,
        dtype=case.get("dtype"),
        parallel=parallel,
        hardware=Hardware(gpu=find_gpu(case["gpu"])),
        options=case.get("options", {}),
        engine_version=case["version"],
    )
    opened = find_engine("sglang")[0].open(load_model(case["model"]), request)
    assert isinstance(opened, SglangOccupancy)
    sizes, own = opened.sizes(case["budget_bytes"]), opened.settings
    return {
        "page_size": own.page_size,
        "chunk": own.chunk,
        "fraction": default_fraction(opened.deployment),
        "tokens": sizes.tokens,
        "swa": sizes.swa_tokens,
        "running": sizes.running,
        "slots": sizes.slots,
        "each": opened.deployment.slots,
    }


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_a_release_is_planned_as_it_computes_itself(version: str) -> None:
    """Pages, tokens of a prompt, share of the memory, pools, slots and requests of every case."""
    unlike, cases = {}, [case for case in _CASES if case["version"] == version]
    for case in cases:
        planned = _planned(case)
        differ = {
            name: (planned[name], value) for name, value in case["found"].items() if planned[name] != pytest.approx(value, 1e-12)
        }
        if differ:
            unlike[case["gpu"], case["model"], str(case.get("options")), str(case.get("dtype"))] = differ
    assert not unlike
    assert len(cases) > 90


def test_every_release_has_an_argument_that_came_with_it() -> None:
    """By which a log tells its release."""
    assert tuple(ARGUMENTS_SINCE) == VERSIONS


def test_spellings_of_a_release() -> None:
    """A line is its newest release; what was mended after a release has its rules; others are refused with a list of the known ones."""
    assert (resolve("0.5"), resolve("v0.5.18"), resolve("0.5.16.post1")) == (NEWEST, "0.5.18", "0.5.16")
    for unknown in ("0.5.15", "0.5.24", "0.4.9", "0.5.16rc1", "main"):
        with pytest.raises(UnknownNameError, match="no rules for that version") as raised:
            resolve(unknown)
        assert "0.5.16 to 0.5.23" in str(raised.value.hint)


def test_a_class_that_came_later_is_refused() -> None:
    """Granite with windows came with 0.5.19."""
    with pytest.raises(UnsupportedError, match=r"SGLang 0\.5\.17 has no class .*, which came with 0\.5\.19") as raised:
        plan("ibm-granite/granite-swash-2b", engine="sglang@0.5.17", seq=4096, kv_memory="8GiB")
    assert str(raised.value.hint).startswith("Use: --engine sglang@0.5.19")


def test_a_small_gpu_before_and_since() -> None:
    """512 + 1.5 x 2,048 + 128 + 2 x 24 + 8 x 42 MiB of 32,607 until 0.5.19; chunks of 4,096, graphs of 48 and 50 lengths since."""
    for version, reserved in (("0.5.19", 512 + 3072 + 128 + 48 + 336), ("0.5.20", 512 + 6144 + 128 + 96 + 400)):
        case = {"version": version, "gpu": "rtx-5090", "model": "Qwen/Qwen3-8B", "budget_bytes": 2**33}
        assert _planned(case)["fraction"] == round((32_607 - reserved) / 32_607, 3)


def test_four_bits_before_and_since_methods_of_their_own() -> None:
    """Qwen2.5-1.5B: 28 layers x 2 heads x 128 x 2 numbers of half a byte and a scale for each 16 are 8,064 bytes.

    Until 0.5.20 one layer is unpacked beside them: 512 bytes more.
    """
    for version, size in (("0.5.20", 8064 + 512), ("0.5.21", 8064)):
        made = plan(
            "Qwen/Qwen2.5-1.5B-Instruct", engine=f"sglang@{version}", seq=8192, dtype="fp4_mx_block16", kv_memory=size * 1_000_000
        )
        assert made.pool is not None
        assert made.pool.tokens == 1_000_000
    for version in ("0.5.16", "0.5.20", NEWEST):
        with pytest.raises(UnknownNameError, match="releases before"):
            plan("Qwen/Qwen2.5-1.5B-Instruct", engine=f"sglang@{version}", seq=8192, dtype="fp4_e2m1", kv_memory="8GiB")
