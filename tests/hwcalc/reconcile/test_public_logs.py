"""Public start-up logs of vLLM, SGLang, llama.cpp and others agree with the plan of what they say, or the reason stands here."""

from __future__ import annotations

from statistics import median
from typing import Any, Final

import pytest

from hwcalc import load_model, plan
from hwcalc.formulas import Role
from hwcalc.planner.context import open_request
from hwcalc.reconcile import reconcile
from hwcalc.units import GIB, MIB
from tests.hwcalc.reconcile.public_logs import GEMMA_12B, rows, sglang_text, vllm_text

NO_CONFIG: Final = "no config of it is published here"
UNDECIDED: Final = {
    "v003": f"rednote-hilab/dots.ocr: {NO_CONFIG}",
    **dict.fromkeys(("v037", "v039", "v041", "v087"), f"a third party's weights and DFlash drafter: {NO_CONFIG}"),
    "v067": f"poolside/Laguna-S-2.1: {NO_CONFIG}",
    "v089": "speculation and KV dtype are cut off in the excerpt",
    "s077": "the excerpt does not name its model",
    "s079": f"poolside/Laguna-S-2.1: {NO_CONFIG}",
    "s081": "the full pool is cut off in the excerpt, which is from before a fix of its sizing",
}
"""Logs of which nothing can be compared."""
LEFT_OUT: Final = {
    "v005": ({"weights"}, "bitsandbytes keeps 2.7 % less than four bits with scales in fp32 for every 64 numbers; not explained"),
    "v083": ({"weights", "available"}, "a quantization of another author than that of the config, in NVFP4 too"),
}
"""Figures that cannot be judged in a log, with the reason."""
NEEDS_GPU: Final = {
    "v085": "the block of a latent cache is the kernel's, and the log does not say on which GPU",
}
"""Logs whose pool depends on an accelerator that nobody names."""


def config_of(row: dict[str, Any]) -> Any:
    """The config to plan with."""
    return GEMMA_12B if row["config"] == "google/gemma-4-12B-it" else row["config"]


@pytest.mark.parametrize(
    "row", [row for row in [*rows("vllm"), *rows("sglang")] if row["id"][:4] not in UNDECIDED], ids=lambda row: row["id"]
)
def test_a_server_log(row: dict[str, Any]) -> None:
    """Layout and pool are exact within what rounding leaves open, weights and budget in their range."""
    short, text = row["id"][:4], vllm_text(row) if row["engine"] == "vllm" else sglang_text(row)
    # Without the weights of an excerpt nothing follows from the GPU. A build of a clone without tags is of June 2026.
    gpu = row.get("gpu") if row["logged"].get("weights_gib") or row["engine"] == "sglang" else None
    version = "vllm@0.22" if row.get("version", "").startswith("0.1.") else None
    found = reconcile(config_of(row), text, gpu=gpu, engine=version)
    left, _ = LEFT_OUT.get(short, (set(), ""))
    apart = {one.name for one in found.rows if one.within is False}
    assert apart == left
    pool = [one for one in found.rows if one.name not in ("weights", "available")]
    assert (
        all(one.within is None and one.needs == "--gpu" for one in pool)
        if short in NEEDS_GPU
        else any(one.within for one in pool)
    )


@pytest.mark.parametrize("row", [row for row in rows("sglang") if "s001" <= row["id"][:4] <= "s033"], ids=lambda row: row["id"])
def test_a_log_by_the_release_of_its_day(row: dict[str, Any]) -> None:
    """They are of 7 to 11 June 2026; SGLang 0.5.12 is of 16 May, and 0.5.13 of 11 June: windows, cells of four bits, and the requests that are named."""
    found = reconcile(config_of(row), sglang_text(row), gpu=row["gpu"], engine="sglang@0.5.12")
    assert found.within
    assert any(one.within for one in found.rows if one.name not in ("weights", "available"))


def pool_errors() -> list[tuple[str, float, bool]]:
    """Of each vLLM log with GPU and weights: by which share the pool that the GPU leaves is off, and whether the log is in the range."""
    found = []
    for row in rows("vllm"):
        logged = row["logged"]
        if (
            row["id"][:4] in UNDECIDED
            or not row.get("gpu")
            or not logged.get("weights_gib")
            or not logged.get("available_kv_gib")
            or row.get("pooling")
        ):
            continue
        flags = row.get("flags", {})
        options = {name: str(flags[name]) for name in ("max_num_seqs", "max_num_batched_tokens") if name in flags}
        options |= {"enforce_eager": "true"} if row.get("eager") == "True" else {}
        drafted = (flags.get("speculative_config") or {}).get("num_speculative_tokens")
        options |= {"speculative": f"mtp:{drafted}"} if drafted else {}
        release = ".".join(row["version"].split(".")[:2])
        made = plan(
            config_of(row),
            engine=f"vllm@{'0.22' if release == '0.1' else release}",
            gpu=row["gpu"],
            tp=row["tp"],
            seq=row["max_model_len"],
            memory_utilization=flags.get("gpu_memory_utilization"),
            dtype=None if row["kv_dtype"] == "auto" else row["kv_dtype"],
            engine_options=options,
        )
        assert made.fit is not None
        assert made.fit.budget is not None
        budget, seen = made.fit.budget, logged["available_kv_gib"][0] * GIB
        # The weights are the log's own: of most checkpoints it is not known which tensors are quantized.
        held = sum(part.expected for part in budget.parts if part.section == "weights")
        moved = held - logged["weights_gib"][0] * GIB
        low, expected, high = (end + moved for end in (budget.low, budget.expected, budget.high))
        found.append((row["id"], abs(expected - seen) / seen, low - 0.01 * GIB <= seen <= high + 0.01 * GIB))
    return found


def test_the_pool_from_the_gpu_alone() -> None:
    """The middle error is below 1.5 %, and 85 % of the logs lie inside the range. Those outside ran under Windows, which shows more memory."""
    found = pool_errors()
    assert len(found) >= 14
    assert median(error for _, error, _ in found) < 0.015
    assert sum(inside for _, _, inside in found) >= 0.85 * len(found)
    assert {name[:4] for name, _, inside in found if not inside} == {"v057", "v069"}


LLAMACPP_UNDECIDED: Final = {
    "lc3-ling3tiny-mla-2seq": f"Ling-3.0-tiny: {NO_CONFIG}",
    "lc3-stories15m-f32-256": f"stories15M: {NO_CONFIG}",
}
"""Logs of llama.cpp without a config. Of the others the caches and states are compared: their buffers and the mixes of formats in their files
belong to builds and files that the logs do not name, mostly older than the build whose graphs are planned."""
_HALF: Final = 0.0101
"""MiB by which a sum of figures with two decimals may be off."""


@pytest.mark.parametrize(
    "row", [row for row in rows("llamacpp") if row["id"] not in LLAMACPP_UNDECIDED], ids=lambda row: row["id"]
)
def test_caches_of_llamacpp(row: dict[str, Any]) -> None:
    """Every cache that the log states, of windows or of all tokens, its keys and values apart, and the states: exact within the digits."""
    config = GEMMA_12B if row["config"] == "@gemma4_12b" else row["config"]
    options = {name: str(value) for name, value in row["options"].items() if (name, value) != ("flash_attn", "auto")}
    opened = open_request(
        load_model(config),
        engine="llamacpp",
        seq=row["options"]["n_ctx"],
        weights=row.get("quant") or None,
        engine_options=options,
    )
    sizes: dict[str, float] = {}
    keys: dict[str, float] = {}
    states = 0.0
    for group in opened.stack.groups:
        for tensor in opened.kind_tensors[group.kind]:
            size = group.count * tensor.bytes / MIB
            if tensor.role in (Role.STATE, Role.CONV):
                states += size
            else:
                sizes[group.kind.name] = sizes.get(group.kind.name, 0) + size
                if tensor.role in (Role.KEY, Role.LATENT):
                    keys[group.kind.name] = keys.get(group.kind.name, 0) + size
    planned = [(sum(sizes.values()), sum(keys.values())), *((size, keys.get(name, 0)) for name, size in sizes.items())]
    for seen in row["observed"]:
        if seen["what"] in ("kv", "kvsum"):
            apart = seen.get("k") or None
            assert any(
                abs(size - seen["mib"]) < _HALF and (apart is None or abs(key - apart) < _HALF) for size, key in planned
            ), planned
        elif seen["what"] == "rs":
            assert states == pytest.approx(seen["mib"], abs=_HALF)


@pytest.mark.parametrize("row", rows("tensorrt-llm"), ids=lambda row: row["id"])
def test_a_pool_of_tensorrt_llm(row: dict[str, Any]) -> None:
    """Bytes of a token times the tokens of the pool."""
    opened = open_request(load_model(row["config"]), engine="tensorrt-llm", seq=8192, dtype=row["options"]["dtype"])
    pool = opened.told(opened.pool(0))
    assert pool is not None
    assert pool.bytes_per_token is not None
    seen = row["observed"][0]
    assert pool.bytes_per_token * seen["tokens"] / GIB == pytest.approx(seen["gib"], abs=0.0051)


def test_a_block_of_lmdeploy() -> None:
    """``[BlockManager] block_size = 64 MB``: 128 tokens of TurboMind's older default."""
    (row,) = rows("lmdeploy")
    opened = open_request(load_model(row["config"]), engine="lmdeploy", seq=8192)
    # 32 layers x 2 x 32 heads x 128 numbers of 2 bytes are 512 KiB a token.
    assert 128 * opened.stored_bytes // opened.tokens == 64 * MIB
