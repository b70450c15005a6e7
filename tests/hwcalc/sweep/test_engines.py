"""Every engine: a grid gives what its plans give, at lengths, batches and with options by chance; refusals too."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import pytest

from hwcalc import load_model
from hwcalc.engines import ENGINES
from hwcalc.profiles.catalog import list_models
from hwcalc.sweep.grid import Grid
from hwcalc.sweep.setting import SettingRows
from tests.effort import cases
from tests.hwcalc.sweep.test_sweep import agree, planned, rows

GRIDS: Final = cases(10, 20)
LENGTHS: Final = (1, 2, 15, 16, 17, 127, 128, 255, 4_095, 4_096, 4_097, 8_192, 100_003, 2**20, 2**40)
BATCHES: Final = (1, 1, 2, 3, 7, 8, 16, 100, 255, 256, 257, 1_025, 2**40)
GPUS: Final[Mapping[str, tuple[str, ...]]] = {
    "mlx": ("m4-max", "h100-sxm5-80gb"),
    "llamacpp": ("rtx-4090", "m4-max", "h100-sxm5-80gb"),
    "ollama": ("rtx-4090", "m4-max", "h100-sxm5-80gb"),
    "tgi": ("mi300x", "h100-sxm5-80gb"),
}
OTHER_GPUS: Final = ("l4", "h100-sxm5-80gb", "b200")
DTYPES: Final[Mapping[str, tuple[str | None, ...]]] = {
    "reference": (None, "bf16", "fp8", "q8_0:q4_0", "fp8_ds_mla"),
    "llamacpp": (None, "q8_0", "q8_0:q4_0"),
    "ollama": (None, "q8_0"),
    "transformers": (None, "int4"),
    "mlx": (None, "int8"),
}
OPTIONS: Final[Mapping[str, tuple[dict[str, str], ...]]] = {
    "transformers": (
        {"cache": "static", "max_cache_len": "4096"}, {"cache": "static"}, {"cache": "quantized"}, {"cache": "offloaded"},
    ),
    "vllm": ({"block_size": "32"}, {"max_num_seqs": "16"}, {"max_num_batched_tokens": "512"}),
    "sglang": ({"page_size": "16"}, {"max_running_requests": "40"}),
    "llamacpp": (
        {"n_gpu_layers": "999"}, {"n_ctx": "8192"}, {"n_seq_max": "7"}, {"defaults": "api", "n_batch": "64"},
        {"defaults": "api", "n_ctx": "100"}, {"kv_unified": "true"},
    ),
    "ollama": ({"num_ctx": "8192"}, {"num_parallel": "4"}),
    "tensorrt-llm": ({"tokens_per_block": "64"}, {"max_batch_size": "8"}),
    "tgi": ({"attention": "paged"},),
    "mlx": ({"max_kv_size": "4096"}, {"kv_bits": "8"}),
    "lmdeploy": ({"cache_max_entry_count": "0.5"},),
    "mistral-rs": ({"paged_attn": "off"}, {"max_seqs": "4"}),
}  # fmt: skip
FURTHER: Final[tuple[dict[str, Any], ...]] = (
    *({},) * 12,
    {"weights": "fp8"}, {"weights": "q4_k_m"}, {"prompt": 5_000}, {"dp": 2}, {"pp": 2}, {"samples": 2}, {"shared_prefix": 64},
    {"kv_memory": "8GiB"}, {"memory_utilization": 0.5}, {"encoder_seq": 100},
)  # fmt: skip


def grid_of(engine: str, draw: random.Random) -> Grid:
    """One model in one setting, with some lengths and batches."""
    gpu = draw.choice((None, draw.choice(GPUS.get(engine, OTHER_GPUS)), draw.choice(GPUS.get(engine, OTHER_GPUS))))
    options = {"engine": engine, **draw.choice(FURTHER)}
    if draw.random() < 0.4 and engine in OPTIONS:
        options["engine_options"] = draw.choice(OPTIONS[engine])
    lengths = (draw.choice((*LENGTHS, draw.randrange(1, 2**18), draw.randrange(1, 2**14))) for _ in range(draw.choice((1, 3, 5))))
    batches = (draw.choice((*BATCHES, draw.randrange(1, 500))) for _ in range(draw.choice((1, 3))))
    return Grid(
        models=(load_model(draw.choice(list_models()), offline=True),),
        seqs=() if draw.random() < 0.1 else tuple(dict.fromkeys(lengths)),
        batches=tuple(dict.fromkeys(batches)),
        dtypes=(draw.choice(DTYPES.get(engine, (None, "fp8"))),),
        gpus=(gpu,),
        tps=(draw.choice((None, None, None, 1, 2, 3, 8)),),
        options=options,
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_grid_is_its_plans(engine: str) -> None:
    """Every row, whether it was evaluated in an array, planned or refused."""
    draw, kinds = random.Random(f"sweep {engine}"), Counter[str]()  # noqa: S311 - a sample
    for _ in range(GRIDS):
        grid = grid_of(engine, draw)
        found = iter(rows(grid))
        keywords = grid.keywords(next(grid.settings))
        for seq in grid.seqs or (None,):
            for batch in grid.batches:
                expected = planned(grid.models[0], seq, batch, **keywords)  # type: ignore[arg-type]
                agree(next(found), expected)
                kinds["refused" if expected["error"] else "planned"] += 1
        assert next(found, None) is None

    assert set(kinds) == {"refused", "planned"}


@pytest.mark.parametrize("gpu", [None, "h100-sxm5-80gb"])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_evaluates_arrays(engine: str, gpu: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No point of a plain request is planned by itself, with an accelerator or without."""
    monkeypatch.setattr(SettingRows, "plan", lambda *_: pytest.fail("a plan"))
    options = {"engine": engine, **({"weights": "q4_k_m"} if engine in ("llamacpp", "ollama") else {})}
    models = tuple(load_model(name, offline=True) for name in ("meta-llama/Llama-3.1-8B", "google/gemma-3-27b-it"))
    grid = Grid(models=models, seqs=(100, 1_000, 70_000), batches=(1, 300), gpus=(gpu,), options=options)

    found = rows(grid)

    assert [row["error"] is None or row["batch"] == 300 for row in found] == [True] * 12
    assert all(row["error"] or (row["fits"] is None) == (gpu is None) for row in found)


def test_few_points_need_no_numpy() -> None:
    """Its import takes longer than their plans."""
    grid = "from hwcalc.cli import main; import sys; main(['sweep', 'Qwen/Qwen3-8B', '--seq', '1k..128k', '--gpu', 'l4', '--offline'])"
    run = subprocess.run(
        [sys.executable, "-c", f"{grid}; sys.exit('numpy' in sys.modules)"], capture_output=True, text=True, check=False
    )

    assert (run.returncode, run.stdout.count("\n")) == (0, 9)
