"""A server that was read is planned as its engine would start it."""

from __future__ import annotations

from typing import Any

import pytest

from hwcalc import plan, read_launch
from hwcalc.errors import UsageError
from hwcalc.launch.planned import planned
from tests.hwcalc.command import QWEN


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "vllm serve org/m --max-model-len 32k -tp 2 --kv-cache-dtype fp8 --gpu-memory-utilization 0.8 --max-num-seqs 16 --dtype half",
            {
                "engine": "vllm", "seq": 32_000, "tp": 2, "dtype": "fp8", "memory_utilization": "0.8",
                "engine_options": {"max_num_seqs": "16", "dtype": "float16"},
            },
        ),
        # vLLM deals experts out over all ranks of tensor and data parallelism.
        ("vllm serve org/m -tp 2 -dp 4 -ep", {"engine": "vllm", "tp": 2, "dp": 4, "ep": 8}),
        ("vllm serve org/m -ep", {"engine": "vllm"}),
        ("VLLM_ALL2ALL_BACKEND=naive vllm serve org/m", {"engine": "vllm", "engine_options": {"all2all_backend": "naive"}}),
        ("vllm serve org/m --max-model-len auto --quantization compressed-tensors", {"engine": "vllm"}),
        ("vllm serve org/m -q awq_marlin --revision abc", {"engine": "vllm", "weights": "awq", "revision": "abc"}),
        ("vllm serve org/m --enable-lora --max-lora-rank 64 --max-loras 2", {"engine": "vllm", "lora": "rank=64,count=2"}),
        (
            "vllm serve org/m --speculative-config.method eagle3 --speculative-config.model org/h --speculative-config.num_speculative_tokens 3",
            {"engine": "vllm", "engine_options": {"speculative": "eagle:org/h:3"}},
        ),
        # SGLang: with attention data parallelism the replicas lie inside the ranks.
        (
            "sglang serve --model-path org/m --tp 8 --dp 8 --enable-dp-attention",
            {"engine": "sglang", "tp": 1, "dp": 8, "engine_options": {"enable_dp_attention": "true"}},
        ),
        ("sglang serve --model-path org/m --tp 2 --dp 2", {"engine": "sglang", "tp": 2, "dp": 2}),
        # llama.cpp: -c is for all slots, 8192 / 4 = 2048 for each.
        (
            "llama-server -hf org/m-GGUF:Q8_0 -c 8192 -np 4 -ctk q8_0 -ngl 20 -fa",
            {"engine": "llamacpp", "seq": 2048, "batch": 4, "engine_options": {"n_gpu_layers": "20", "type_k": "q8_0", "flash_attn": "on"}},
        ),
        (
            "CUDA_VISIBLE_DEVICES=0,1 llama-server -m m.gguf -ot exps=CPU -ot attn=CUDA0 -nkvo",
            {"engine": "llamacpp", "gpus": 2, "engine_options": {"override_tensor": "exps=CPU,attn=CUDA0", "no_kv_offload": "true"}},
        ),
        ("llama-server -m m.gguf --spec-type draft-mtp --spec-draft-n-max 3", {"engine": "llamacpp", "engine_options": {"load_mtp": "true", "n_rs_seq": "3"}}),
        # LMDeploy: --tp counts the ranks of all replicas.
        ("lmdeploy serve api_server org/m --tp 4 --dp 2 --quant-policy 8", {"engine": "lmdeploy", "tp": 2, "dp": 2, "dtype": "int8"}),
        # TGI takes all GPUs that it sees.
        ("CUDA_VISIBLE_DEVICES=0,1 text-generation-launcher --model-id org/m --quantize bitsandbytes-nf4", {"engine": "tgi", "tp": 2, "weights": "bnb4"}),
        ("trtllm-serve org/m --tp_size 2 --max_batch_size 8 --max_seq_len 99", {"engine": "tensorrt-llm", "tp": 2, "seq": 99, "engine_options": {"max_batch_size": "8"}}),
        # Ollama: the context is that of one slot.
        (
            "OLLAMA_CONTEXT_LENGTH=4096 OLLAMA_NUM_PARALLEL=2 OLLAMA_KV_CACHE_TYPE=q8_0 ollama serve & ollama run m:7b",
            {"engine": "ollama", "seq": "4096", "batch": "2", "dtype": "q8_0"},
        ),
        # mistral.rs: NCCL takes all GPUs that it sees.
        (
            "CUDA_VISIBLE_DEVICES=0,1 mistralrs serve -m org/m --isq q4k --pa-context-len 8192",
            {"engine": "mistral-rs", "tp": 2, "weights": "q4_k_m", "engine_options": {"pa_context_len": "8192"}},
        ),
        ("mlx_lm.server --model org/m --decode-concurrency 4", {"engine": "mlx", "engine_options": {"decode_concurrency": "4"}}),
    ],
)  # fmt: skip
def test_the_options_of_a_plan(text: str, expected: dict[str, Any]) -> None:
    """As each engine counts its own flags."""
    [server] = read_launch(text)
    options = {name: value for name, value in planned(server, {"kv_memory": "8GiB"}).options.items() if name != "kv_memory"}

    if "gpus" not in expected:
        options.pop("gpus", None)
    assert expected == options


@pytest.mark.parametrize(
    ("where", "gpu"),
    [
        ("nodeSelector: {cloud.google.com/gke-accelerator: nvidia-l4}", "l4"),
        ("nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}", "h100-sxm5-80gb"),
        ("nodeSelector: {node.kubernetes.io/instance-type: p5.48xlarge}", "h100-sxm5-80gb"),
        ("nodeSelector: {accelerator: nvidia-gtx-2080ti}", "rtx-2080-ti"),
    ],
)
def test_the_accelerator_that_a_manifest_names(where: str, gpu: str) -> None:
    """By labels of nodes and instance types."""
    text = f"kind: Pod\napiVersion: v1\nspec: {{{where}, containers: [{{image: 'vllm/vllm-openai:v0.11.0', args: [--model, org/m]}}]}}\n"
    [server] = read_launch(text)
    told = planned(server)

    assert gpu == told.options["gpu"]
    assert told.options["engine"] == "vllm@0.11.0"


def test_a_version_without_rules_is_planned_as_the_newest() -> None:
    """And said."""
    [server] = read_launch("docker run vllm/vllm-openai:v0.4.2 --model org/m")
    told = planned(server)

    assert told.options["engine"] == "vllm"
    assert told.remarks[0].startswith("there are no rules for vllm 0.4.2")


def test_a_plan_of_a_server() -> None:
    """Options change what the text says."""
    [server] = read_launch(f"vllm serve {QWEN} --max-model-len 8k -tp 2")
    made = plan(server, gpu="l4")

    assert (made.request.engine, made.request.seq, made.request.tp) == ("vllm", 8000, 2)
    assert plan(server, gpu="l4", seq=4096).request.seq == 4096
    assert made.fit is not None


@pytest.mark.parametrize(
    ("text", "variable"),
    [
        ("vllm serve $WHAT", "WHAT"),
        ("vllm serve --max-model-len $LEN $WHAT", "WHAT"),
        # A variable that would not close it.
        ("vllm serve --max-model-len $LEN ${WHAT/*-/}", "model"),
        ("vllm serve $(touch X; echo M)", "model"),
    ],
)
def test_a_model_that_is_left_open_is_asked_for(text: str, variable: str) -> None:
    """By the name of its variable."""
    [server] = read_launch(text)

    with pytest.raises(UsageError, match="leaves its model open") as caught:
        plan(server)
    assert f"Add: --set {variable}=ORG/NAME" == caught.value.hint


def test_what_another_file_holds_is_left_open() -> None:
    """A service that extends one of another file says so."""
    service = "{extends: {service: base, file: other.yaml}, image: vllm/vllm-openai, command: [--model, org/m]}"
    [server] = read_launch(f"services:\n  a: {service}\n")

    assert ("extends: base of other.yaml",) == server.unresolved
    assert ["the extended service base of other.yaml"] == [*server.unplanned]


def test_sglang_shares_its_ranks_evenly_among_nodes() -> None:
    """``check_server_args``: tp x pp must be divisible by nnodes."""
    [server] = read_launch("sglang serve --model-path org/m --tp 16 --nnodes 3")

    with pytest.raises(UsageError, match="16 of tp x pp are not divisible by nnodes 3"):
        planned(server)
    assert planned(read_launch("sglang serve --model-path org/m --tp 3 --pp 2 --nnodes 2")[0]).options["tp"] == 3


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("docker run --gpus 2 vllm/vllm-openai --model org/m -tp 4", {}, "has 2 GPUs, and tp 4 takes 4: vLLM will not start"),
        ("#!/bin/sh\n#SBATCH --gpus-per-node=h100:2\nsglang serve --model-path org/m --tp 2 --pp 2", {}, "tp 2 x pp 2 takes 4: SGLang will"),
        ("vllm serve org/m -tp 4", {"gpus": 2}, "has 2 GPUs, and tp 4 takes 4"),
        ("vllm serve org/m -tp 4", {"gpu": "2xh100"}, "has 2 GPUs, and tp 4 takes 4"),
    ],
)  # fmt: skip
def test_a_server_with_too_few_gpus_is_refused(text: str, options: dict[str, Any], said: str) -> None:
    """Where nothing in the text speaks of other nodes."""
    [server] = read_launch(text)

    with pytest.raises(UsageError, match=said):
        planned(server, options)


@pytest.mark.parametrize(
    ("text", "options", "gpus", "said"),
    [
        # It uses the GPUs that it was told to use.
        ("vllm serve org/m", {"gpu": "4xh100"}, {"gpu": "h100"}, "the server has 4 GPUs, and uses 1: 3 idle."),
        ("vllm serve org/m -tp 2", {"gpus": 2}, {"tp": 2}, None),
        # g6.48xlarge has 8 L4.
        ("vllm serve org/m", {"instance": "g6.48xlarge"}, {"gpus": 1}, "the server has 8 GPUs, and uses 1: 7 idle."),
        ("vllm serve org/m -tp 2", {"instance": "g6.48xlarge"}, {"tp": 2}, "the server has 8 GPUs, and uses 2: 6 idle."),
        ("text-generation-launcher --model-id org/m", {"instance": "g6.48xlarge"}, {"tp": 8}, None),
        # These take all that they see.
        ("text-generation-launcher --model-id org/m", {"gpu": "4xh100"}, {"gpu": "h100", "tp": 4}, None),
        ("llama-server -m m.gguf", {"gpu": "2xl4"}, {"gpu": "l4", "gpus": 2}, None),
        # Other nodes may have the rest.
        ("docker run --gpus 2 vllm/vllm-openai --model org/m -tp 4 --nnodes 2 --node-rank 0", {}, {"tp": 4}, "warning: the server has 2 GPUs, and tp 4 takes 4: "),
        ("ray start --head\nCUDA_VISIBLE_DEVICES=0,1 vllm serve org/m -tp 4", {}, {"tp": 4}, "warning: the server has 2"),
        # A layout on the line counts more than that of the text.
        ("vllm serve org/m -tp 4", {"gpu": "2xh100", "tp": 2}, {"gpu": "2xh100", "tp": 2}, None),
    ],
)  # fmt: skip
def test_how_the_gpus_are_used(text: str, options: dict[str, Any], gpus: dict[str, Any], said: str | None) -> None:
    """As the server was told."""
    [server] = read_launch(text)
    told = planned(server, options)

    assert gpus == {name: told.options[name] for name in ("gpu", "gpus", "tp") if name in told.options}
    if said is None:
        assert told.remarks == ()
    else:
        assert told.remarks[0].startswith(said)


def test_the_longest_that_fits() -> None:
    """Told auto, vLLM starts. Of 24 GB of an L4 16.06 are weights: they leave (24 - 16.06) x 10**9 / 131,072 B = 60,577 tokens at most."""
    [server] = read_launch("vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len auto")
    made = plan(server, gpu="l4", offline=True)

    assert made.fit is not None
    assert made.fit.fits
    assert 8192 < made.request.seq < 60_577
    assert plan(server, gpu="l4", seq="40k", offline=True).request.seq == 40_960


@pytest.mark.parametrize(("program", "takes"), [("sglang serve", True), ("python -m sglang.launch_server", False)])
def test_a_model_without_its_flag(program: str, takes: bool) -> None:
    """``sglang serve`` of 0.5.23 takes it so; ``launch_server`` has an argparse with ``--model-path`` alone, and ends at once."""
    [server] = read_launch(f"{program} Qwen/Qwen3-8B --tp 2")

    assert server.settings["model"] == "Qwen/Qwen3-8B"
    assert server.faults == (() if takes else ("Qwen/Qwen3-8B without --model-path",))
    assert read_launch(f"{program} --model-path Qwen/Qwen3-8B --tp 2")[0].faults == ()
