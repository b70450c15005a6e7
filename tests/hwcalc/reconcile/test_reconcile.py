"""Logs that were reported in public beside the plan, and figures that do not agree."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from hwcalc.engines import find_engine
from hwcalc.errors import LogError, UsageError
from hwcalc.reconcile import reconcile
from hwcalc.reconcile.facts import Facts, Range, compared, spread
from tests.effort import sample
from tests.hwcalc.engines.vllm_rows import Row as GoldenRow
from tests.hwcalc.engines.vllm_rows import rows as golden_rows
from tests.hwcalc.reconcile.logs import GIB, LLAMA, LOGS, figures

GPT2: Final = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 768,
    "n_positions": 1024,
    "vocab_size": 50_257,
    "torch_dtype": "float32",
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize(
    ("model", "log", "options", "names"),
    [
        (
            "meta-llama/Llama-3.1-8B-Instruct",
            "v0-0.7-llama-3.1-8b-20k.log",
            {"gpu": "rtx-3090"},
            {"weights", "device memory", "non-torch", "torch peak", "available", "blocks", "concurrency"},
        ),
        (
            "meta-llama/Llama-3.1-8B-Instruct",
            "v0-0.6-llama-3.1-8b-29k-refused.log",
            {"gpu": "rtx-3090"},
            {"weights", "device memory", "non-torch", "torch peak", "available", "blocks", "concurrency", "tokens stored"},
        ),
        ("meta-llama/Meta-Llama-3-8B", "v0-0.6-llama-3-8b-a100.log", {}, {"weights", "blocks", "concurrency"}),
        ("meta-llama/Llama-3.1-70B-Instruct", "v1-0.7-llama-3.1-70b.log", {"tolerance": "60%"}, {"weights", "concurrency"}),
        (LLAMA, "v1-0.9-llama-3.1-8b-l40s.log", {}, {"concurrency"}),
        ("Qwen/Qwen3-235B-A22B", "v1-0.10-qwen3-235b-tp4-refused.log", {}, {"needed"}),
        ("Qwen/Qwen3.5-27B", "v1-0.19-qwen3.5-27b-blocks.log", {}, {"attention block", "state padding"}),
        ("Qwen/Qwen3.5-35B-A3B", "v1-0.19-qwen3.5-35b-blocks.log", {}, {"attention block", "state padding"}),
        ("LiquidAI/LFM2-1.2B", "v1-0.28-lfm2-blocks.log", {}, {"attention block", "state padding"}),
        (
            "Qwen/Qwen3-235B-A22B-FP8",
            "v1-0.27-qwen3-235b-tp4.log",
            {"gpu": "h20-96gb"},
            {
                "weights", "device memory", "requested", "activation peak", "consumed", "CUDA graphs", "available", "tokens",
                "concurrency",
            },
        ),
        ("Qwen/Qwen2.5-0.5B", "v1-0.29-qwen2.5-0.5b.log", {}, {"weights", "tokens", "concurrency"}),
        (LLAMA, "v1-0.33-llama-3.1-8b-refused.log", {}, {"needed", "longest request"}),
        (LLAMA, "v1-0.33-llama-3.1-8b-two-starts.log", {}, {"tokens", "concurrency"}),
    ],
)  # fmt: skip
def test_logs_agree(model: str, log: str, options: dict[str, Any], names: set[str]) -> None:
    """Every figure that such a log states is compared, and lies within tolerance."""
    found = reconcile(model, LOGS / "vllm" / log, **options)

    assert set(figures(found)) == names
    assert [row.name for row in found.rows if not row.within] == []
    assert found.within


def _told_by_its_line(row: GoldenRow) -> bool:
    """Whether it started, on the GPU that is planned where none is named, with a model of the catalog."""
    plain = not row["options"].get("speculative") and not row.get("config")
    return plain and "log_line" in row["result"] and "H100" in row["result"]["gpu_emulated"]


@pytest.mark.parametrize("name", sample([name for name, row in golden_rows().items() if _told_by_its_line(row)], 110))
def test_lines_of_vllms_own_planner(name: str) -> None:
    """The line that vLLM 0.33 prints for every model of its golden run, with the budget as its log rounds it."""
    row = golden_rows()[name]
    options, result = row["options"], row["result"]
    effective = result["effective"]
    text = (
        f"(EngineCore pid=1) INFO [core.py:1] Initializing a V1 LLM engine (v0.33.0) with config: model='{row['model']}', "
        f"dtype=torch.{effective['dtype']}, max_seq_len={effective['max_model_len']}, tensor_parallel_size={options.get('tp', 1)}, "
        f"pipeline_parallel_size={options.get('pp', 1)}, decode_context_parallel_size={options.get('dcp', 1)}, "
        f"kv_cache_dtype={options.get('kv_cache_dtype', 'auto')}, enable_prefix_caching={effective['enable_prefix_caching']}, "
        f"max_num_batched_tokens={effective['max_num_batched_tokens']}, max_num_seqs={effective['max_num_seqs']}\n"
        f"(Worker_TP0 pid=2) INFO [gpu_worker.py:1] Available KV cache memory: {round(options['available_bytes'] / GIB, 2)} GiB\n"
        f"(EngineCore pid=1) INFO [kv_cache_utils.py:1] {result['log_line']}\n"
    )
    own = {
        "num_gpu_blocks_override": options.get("num_gpu_blocks_override"),
        "disable_hybrid_kv_cache_manager": "true" if options.get("disable_hybrid") else None,
        "mamba_ssm_cache_dtype": options.get("mamba_ssm_cache_dtype"),
        "async_scheduling": None if effective["async_scheduling"] else "false",
    }
    from hwcalc.sources import resolve

    config = {key: value for key, value in dict(resolve(row["model"]).config).items() if key != "quantization_config"}
    if isinstance(config.get("text_config"), dict):
        config["text_config"] = {key: value for key, value in config["text_config"].items() if key != "quantization_config"}
    found = reconcile(config, text, engine_options={key: value for key, value in own.items() if value is not None})

    assert {"tokens", "concurrency"} <= set(figures(found))
    assert [(one.name, one.predicted, one.reported) for one in found.rows if one.name != "weights" and one.within is False] == []


def test_what_does_not_agree() -> None:
    """A model with half the layers: blocks are off by a factor, and each row says by how much."""
    found = reconcile("meta-llama/Llama-3.2-1B", LOGS / "vllm/v0-0.7-llama-3.1-8b-20k.log", gpu="rtx-3090")
    blocks = figures(found)["blocks"]

    assert not found.within
    # 16 tokens x 16 layers x 8 heads x (64 + 64) x 2 bytes in a block, of 3.81 GiB.
    assert blocks.predicted == round(3.81 * GIB) // (16 * 16 * 8 * 128 * 2)
    assert (blocks.reported, blocks.difference) == (1952, 1952 - blocks.predicted)
    assert blocks.percent == pytest.approx(100 * (1952 - blocks.predicted) / blocks.predicted)
    assert (blocks.within, blocks.line, blocks.definition) == (False, 4, "engine")
    assert any(note.code == "other-model" for note in found.notes)


def test_options_replace_what_the_log_states() -> None:
    """And each input says who said so."""
    found = reconcile(LLAMA, LOGS / "vllm/v0-0.7-llama-3.1-8b-20k.log", seq="10k", kv_memory="1GiB", batch=2)
    inputs = {one.name: (one.value, one.source, one.line) for one in found.inputs}

    assert inputs["seq"] == ("10240", "option", None)
    assert inputs["kv_memory"] == (str(GIB), "option", None)
    assert inputs["tp"] == ("1", "log", 1)
    assert inputs["dp"] == ("1", "default", None)
    # 512 blocks of 2 MiB, where the log had 1,952.
    assert figures(found)["blocks"].predicted == 512
    assert not found.within


def test_tolerance() -> None:
    """A tolerance is for estimates: the weights of an H100 within it, the memory outside torch past it."""
    text = (
        "model weights take 14.99GiB; non_torch_memory takes 0.50GiB; PyTorch activation peak memory takes 1.30GiB; "
        "the rest of the memory reserved for KV Cache is 54.00GiB.\n"
    )
    # Outside torch at most 0.46 GiB were seen: 0.04 of 0.50 apart.
    assert "non-torch" in [
        row.name for row in reconcile(LLAMA, text, seq=1024, gpu="h100", tolerance="1%").rows if not row.within
    ]
    assert "non-torch" in [row.name for row in reconcile(LLAMA, text, seq=1024, gpu="h100", tolerance="20%").rows if row.within]
    for wrong in ("100%", "-1%", "much"):
        with pytest.raises(UsageError):
            reconcile(LLAMA, text, tolerance=wrong)


@pytest.mark.parametrize(
    ("low", "high", "predicted", "within", "distance"),
    [
        (100, 100, spread(100), True, 0.0),
        (100, 102, spread(101), True, 0.0),
        (100, 100, Range(low=80, expected=90, high=120), True, 0.0),
        (100, 100, spread(99), True, 1.0),
        (100, 100, spread(98), False, 2.0),
        (99, 101, spread(102), True, 100 / 102),
        (0, 0, spread(0), True, 0.0),
        (0, 0, spread(5), False, 100.0),
    ],
)
def test_distance(low: int, high: int, predicted: Range, within: bool, distance: float) -> None:
    """Between the two ranges, as a share of the larger figure."""
    facts = Facts()
    facts.add("a", (low + high) // 2, low=low, high=high)
    row = compared("a", facts.last("a"), predicted, 0.01, definition="engine", meaning="")[0]

    assert row.within is within
    assert row.distance_percent == pytest.approx(distance)


def test_a_script_of_transformers() -> None:
    """GPT-2 in fp32: 124,439,808 parameters of 4 bytes; 12 layers x 512 tokens x 12 heads x (64 + 64) x 4 bytes."""
    found = reconcile(GPT2, LOGS / "transformers/gpt2.log", seq=512)
    rows = figures(found)

    assert (found.dialect, found.engine) == ("transformers", "transformers")
    assert (rows["weights"].predicted, rows["weights"].difference) == (124_439_808 * 4, 0)
    assert (rows["cache"].predicted, rows["cache"].difference) == (12 * 512 * 12 * 128 * 4, 0)
    assert found.within
    assert not reconcile(GPT2, LOGS / "transformers/gpt2.log", seq=256).within


def test_without_a_budget() -> None:
    """Blocks are sized, tokens alone give concurrency; a log that leaves nothing to compare is an error that says what is missing."""
    metrics = LOGS / "prometheus/v1-llama-3.1-8b.txt"
    found = figures(reconcile(LLAMA, metrics))
    assert {name: row.predicted for name, row in found.items()} == {
        "block size": 16,
        "tokens": 65_536,
        "concurrency": 4096 / 4095,
    }
    with pytest.raises(LogError, match="states nothing that can be compared"):
        reconcile(LLAMA, "Maximum concurrency for 4,096 tokens per request: 2.00x")
    with pytest.raises(LogError, match="no line that is known"):
        reconcile(LLAMA, LOGS / "vllm/bad-lines.log")
    with pytest.raises(LogError, match="is empty"):
        reconcile(LLAMA, [])


def test_a_log_that_cannot_be_planned() -> None:
    """What a log states is not the user's mistake: exit 3; what an option says is: exit 2."""
    text = "Initializing a V1 LLM engine (v0.33.0) with config: tensor_parallel_size=5\nAvailable KV cache memory: 4.00 GiB\n"
    with pytest.raises(LogError, match="cannot be planned") as caught:
        reconcile(LLAMA, text, seq=None)
    assert caught.value.exit_code == 3
    with pytest.raises(UsageError):
        reconcile(LLAMA, "Available KV cache memory: 4.00 GiB\n", tp=5)


@pytest.mark.parametrize(("version", "planned"), [("0.11.2", "0.11"), ("0.20.1", "0.20"), ("0.99.0", "0.33")])
def test_versions(version: str, planned: str) -> None:
    """The log's, or the nearest that is known, with a note."""
    text = f"Initializing a V1 LLM engine (v{version}) with config: max_seq_len=4096\nAvailable KV cache memory: 4.00 GiB\n# GPU blocks: 2048"
    found = reconcile(LLAMA, text)

    assert found.engine_version is not None
    assert found.engine_version.startswith(planned)
    assert ("version-unknown" in {note.code for note in found.notes}) is (not version.startswith(planned))
    assert find_engine(f"vllm@{planned}")


def test_v0() -> None:
    """A log of the V0 engine is read: its blocks are the budget / bytes of a block; its batches are V0's; its release is planned."""
    found = reconcile("meta-llama/Llama-3.1-8B-Instruct", LOGS / "vllm/v0-0.6-llama-3.1-8b-29k-refused.log", gpu="rtx-3090")
    options = {one.name.removeprefix("engine_options."): one.value for one in found.inputs}

    assert found.within
    assert "version-unknown" not in {note.code for note in found.notes}
    assert (options["max_num_batched_tokens"], options["max_num_seqs"]) == ("29000", "256")
    # 2.89 GiB / 2 MiB.
    assert figures(found)["blocks"].reported == 1478
    assert figures(found)["blocks"].low <= 1478 <= figures(found)["blocks"].high
    later = reconcile(
        LLAMA,
        "Initializing a V0 LLM engine (v0.9.2) with config: max_seq_len=1024\nAvailable KV cache memory: 4.00 GiB\n# GPU blocks: 2048\n",
    )
    assert "other-engine" in {note.code for note in later.notes}
    assert "other-engine" not in {note.code for note in found.notes}
    newer = reconcile(
        LLAMA,
        "Initializing a V1 LLM engine (v0.7.1) with config: max_seq_len=1024\n# GPU blocks: 2048\nMaximum concurrency for 1024 tokens per request: 32.00x\n",
    )
    assert "max_num_batched_tokens" not in {one.name.removeprefix("engine_options.") for one in newer.inputs}


def test_a_release_before_all_that_are_known() -> None:
    """0.5.4 is planned by the rules of 0.6, which ``kvplan plan`` plans too."""
    text = "Initializing an LLM engine (v0.5.4) with config: max_seq_len=1024\n# GPU blocks: 2048, # CPU blocks: 9\n"
    found = reconcile(LLAMA, f"{text}Maximum concurrency for 1024 tokens per request: 32.00x")
    said = [note.message for note in found.notes if note.code == "version-unknown"]

    assert said == ["The rules of vLLM 0.5.4 are not known: those of 0.6 are taken."]


@pytest.mark.parametrize(
    "wrong",
    [
        {"dialect": "exllama"},
        {"engine": "transformers"},
        {"engine": "nobody"},
        {"calibrate": True},
        {"gpu": 4},
        {"kv_memory": "much"},
    ],
)
def test_wrong_options(wrong: dict[str, Any]) -> None:
    """Each is a usage error."""
    with pytest.raises(UsageError):
        reconcile(LLAMA, "Available KV cache memory: 4.00 GiB\n# GPU blocks: 2048", **wrong)


def test_the_document_is_plain() -> None:
    """It can be written as JSON, without numbers that JSON lacks."""
    found = reconcile(LLAMA, LOGS / "vllm/v0-0.7-llama-3.1-8b-20k.log")

    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["rows"][0]["name"] == "weights"


def test_blocks_alone_beside_a_gpu() -> None:
    """/metrics gives blocks and no bytes: they are compared with what the GPU has room for, and not only with themselves."""
    sample = 'vllm:cache_config_info{block_size="16",gpu_memory_utilization="0.9",num_gpu_blocks="%d"} 1'
    right, wrong = (
        reconcile("Qwen/Qwen3-8B", sample % blocks, seq=32768, gpu="h100-sxm5-80gb", offline=True) for blocks in (24_900, 12_000)
    )

    assert [row.name for row in right.rows if row.name == "blocks"] == ["blocks"]
    assert (right.within, wrong.within) == (True, False)
    assert [row.definition for row in wrong.rows if row.name == "blocks"] == ["estimate"]


def test_a_log_under_a_policy() -> None:
    """A log of vLLM states its pool and how many whole sequences it holds, whatever a plug-in drops later; the input is shown as it was asked for."""
    log = LOGS / "vllm/v0-0.7-llama-3.1-8b-20k.log"
    plain = reconcile(LLAMA, log)
    found = reconcile(LLAMA, log, policy="triattention:kv_budget=1024", compaction="fill", prompt="1k")
    inputs = {one.name: (one.value, one.source) for one in found.inputs}

    assert found.rows == plain.rows
    assert (inputs["policy"], inputs["compaction"], inputs["prompt"]) == (
        ("triattention:kv_budget=1024", "option"), ("fill", "option"), ("1024", "option"),
    )  # fmt: skip
    assert not {"policy", "compaction", "prompt"} & {one.name for one in plain.inputs}
