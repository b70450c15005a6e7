"""The server of a plan as a manifest: what stands around the command, and what is refused. That it is read back to its plan is a law of ``launch/test_round_trip.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from hwcalc import plan, read_launch
from hwcalc.errors import UsageError
from hwcalc.launch.planned import planned
from hwcalc.profiles.gpus import built_in_gpus, product_name
from hwcalc.report.emit import emitted, remarks_on
from tests.hwcalc.command import QWEN, Capture, run
from tests.tiny_configs import TINY_LLAMA


def written(form: str, engine: str = "vllm", model: str = QWEN, **options: Any) -> Any:
    """The documents of a manifest."""
    made = plan(model, **{"engine": engine, "gpu": "h100", "seq": 8192, "offline": True, **options})
    return list(yaml.safe_load_all(emitted(made, form)))


def test_a_deployment_has_what_a_server_needs() -> None:
    """Limits, selector, arguments as texts, shared memory, probes of its port, and a service that finds its pods."""
    deployment, service = written("kubernetes", tp=2)
    pod = deployment["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    assert server["command"] == ["vllm", "serve"]
    assert server["args"] == [QWEN, "--max-model-len", "8192", "--tensor-parallel-size", "2"]
    assert server["resources"] == {"limits": {"nvidia.com/gpu": 2}}
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert server["volumeMounts"] == [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 - a mount
    assert pod["volumes"] == [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}]
    assert server["ports"] == [{"name": "http", "containerPort": 8000}]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert server[probe]["httpGet"] == {"path": "/health", "port": "http"}
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels == deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    assert service["spec"]["ports"] == [{"port": 8000, "targetPort": "http"}]


def test_a_service_of_compose_has_its_gpus() -> None:
    """As many as the plan takes, and a server that listens to others."""
    (document,) = written("compose", "sglang", tp=2)
    (service,) = document["services"].values()
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 2, "capabilities": ["gpu"]}
    assert service["entrypoint"] == ["python", "-m", "sglang.launch_server"]
    assert service["command"][-2:] == ["--host", "0.0.0.0"]  # noqa: S104 - words
    assert service["environment"] == {"HF_HOME": "/data", "HF_TOKEN": "${HF_TOKEN:-}"}


def test_values_have_the_keys_of_the_chart() -> None:
    """``vllmConfig`` of helm/values.yaml; without ``enablePrefixCaching`` the chart would turn prefix caching off."""
    (document,) = written("helm", tp=2, memory_utilization=0.8, engine_options={"max_num_seqs": "16", "block_size": "32"})
    (spec,) = document["servingEngineSpec"]["modelSpec"]
    assert (spec["modelURL"], spec["requestGPU"], spec["requestCPU"]) == (QWEN, 2, 4)
    assert spec["vllmConfig"] == {
        "maxModelLen": 8192,
        "tensorParallelSize": 2,
        "gpuMemoryUtilization": "0.8",
        "maxNumSeqs": 16,
        "enablePrefixCaching": True,
        "extraArgs": ["--block-size", "32"],
    }


def test_the_chart_is_told_the_revision_of_a_model() -> None:
    """By a key of its own, which is read as vLLM's ``--revision``."""
    made = plan(QWEN, engine="vllm", gpu="h100", seq=4096, offline=True)
    text = emitted(replace(made, model=replace(made.model, revision="abc")), "helm")
    assert "modelRevision: abc" in text
    [server] = read_launch(text)
    assert planned(server).options["revision"] == "abc"


@pytest.mark.parametrize(
    ("engine", "options", "image"),
    [
        ("vllm@0.31", {}, "vllm/vllm-openai:v0.31.0"),
        ("vllm", {"gpu": "mi300x"}, "vllm/vllm-openai-rocm:v0.33.0"),
        ("sglang@0.5.20", {}, "lmsysorg/sglang:v0.5.20"),
        ("llamacpp@b9000", {"weights": "q8_0"}, "ghcr.io/ggml-org/llama.cpp:server-cuda-b9000"),
        ("llamacpp", {"weights": "q8_0", "gpu": "cpu-64gb"}, "ghcr.io/ggml-org/llama.cpp:server-v0.5.0"),
        ("mistral-rs", {"gpu": "l4"}, "ghcr.io/ericlbuehler/mistral.rs:cuda130-sm89-0.9.2"),
        ("tgi", {}, "ghcr.io/huggingface/text-generation-inference:3.3.7"),
    ],
)
def test_the_image_is_that_of_release_and_accelerator(engine: str, options: dict[str, Any], image: str) -> None:
    """Also without an accelerator."""
    (document,) = written("compose", engine, **options)
    assert [service["image"] for service in document["services"].values()] == [image]


@pytest.mark.parametrize(
    ("engine", "variable"),
    [("vllm", "HF_HOME"), ("llamacpp", "LLAMA_CACHE"), ("ollama", "OLLAMA_MODELS"), ("tgi", "HF_HOME")],
)
def test_downloads_are_kept_whoever_the_image_runs_as(engine: str, variable: str) -> None:
    """In a volume at a folder that the engine is told, and not where its image's user has a home."""
    (document,) = written("compose", engine, **({} if variable == "HF_HOME" else {"weights": "q8_0"}))
    (service,) = document["services"].values()
    assert f"models:{service['environment'][variable]}" in service["volumes"]


def test_settings_in_a_file_come_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT-LLM reads tokens of a block from a file; Ollama its Modelfile, from which the model is made once the server is there."""
    config, deployment, _ = written("kubernetes", "tensorrt-llm", engine_options={"tokens_per_block": "64"})
    assert config["data"] == {"kvplan.yaml": "kv_cache_config:\n  tokens_per_block: 64\n"}
    (server,) = deployment["spec"]["template"]["spec"]["containers"]
    assert server["args"][-4:-2] == ["--config", "/etc/kvplan/kvplan.yaml"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/config.json").write_text(json.dumps(TINY_LLAMA), encoding="utf-8")
    (document,) = written("compose", "ollama", "mine", weights="q6_k")
    (service,) = document["services"].values()
    assert service["configs"] == [{"source": "settings", "target": "/etc/kvplan/Modelfile"}]
    assert service["command"][-1].endswith(" -f /etc/kvplan/Modelfile; wait")
    assert "./mine-Q6_K.gguf:/models/mine-Q6_K.gguf:ro" in service["volumes"]
    assert document["configs"]["settings"]["content"].startswith("FROM /models/mine-Q6_K.gguf\n")
    (document,) = written("compose", "ollama", weights="q6_k")
    assert document["configs"]["settings"]["content"].startswith("FROM hf.co/Qwen/Qwen3-8B-GGUF:Q6_K\n")


def test_a_dollar_is_one_where_manifests_fill_in_values() -> None:
    """Compose and Kubernetes take ``$$`` for ``$``, and so are they read."""
    pattern = r"blk\.(1|2)\.ffn_up$=CPU"
    made = plan(
        QWEN, engine="llamacpp", gpu="l4", seq=4096, weights="q8_0", engine_options={"override_tensor": pattern}, offline=True
    )
    for form in ("compose", "kubernetes"):
        text = emitted(made, form)
        assert "ffn_up$$=CPU" in text
        [server] = read_launch(text)
        assert planned(server).options["engine_options"]["override_tensor"] == pattern


def test_a_label_of_nvidia_is_read_as_its_accelerator() -> None:
    """The product's name with hyphens, for every accelerator of the profiles; three of them have the name of one with more memory."""
    text = "{{kind: Pod, apiVersion: v1, spec: {{nodeSelector: {{nvidia.com/gpu.product: {}}}, containers: [{{args: [vllm, serve, org/m]}}]}}}}"
    wrong = {}
    for gpu in built_in_gpus().values():
        if gpu.vendor == "nvidia":
            [server] = read_launch(text.format(product_name(gpu).replace(" ", "-")))
            told = planned(server).options.get("gpu")
            if told != gpu.id:
                wrong[gpu.id] = told
    assert wrong == {
        "rtx-4060-ti-8gb": "rtx-4060-ti-16gb",
        "rtx-5060-ti-8gb": "rtx-5060-ti-16gb",
        "rtx-a2000-6gb": "rtx-a2000-12gb",
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--emit", "compose"], "--emit compose writes the server of an engine, and none is named.\nAdd: --engine vllm"),
        (["--emit", "command"], "--emit command writes the server of an engine, and none is named.\nAdd: --engine vllm"),
        (
            ["--emit", "compose", "--engine", "vllm"],
            "names the accelerators of a server, and the plan has none.\nAdd: --gpu h100",
        ),
        (["--emit", "helm", "--engine", "sglang", "--gpu", "l4"], "the plan is of SGLang.\nUse: --emit kubernetes"),
        (["--emit", "compose", "--engine", "mlx", "--gpu", "m4-max-64gb"], "MLX runs in no container.\nUse: --emit mlx"),
        (["--emit", "kubernetes", "--engine", "sglang", "--gpu", "mi300x"], "Known: nvidia. Use: --emit sglang"),
        (["--emit", "kubernetes", "--engine", "vllm", "--gpu", "h100", "--tp", "8", "--dp", "2"], "which has 8 of NVIDIA H100"),
        (["--emit", "kubernetes", "--engine", "reference"], "no command starts reference.\nAdd: --engine vllm"),
        (["--emit", "kubernets"], "--emit 'kubernets' is not known.\nDid you mean kubernetes? Known: vllm, sglang"),
    ],
)
def test_what_cannot_be_written_is_refused(capsys: Capture, words: list[str], message: str) -> None:
    """With what to type instead, and status 2."""
    status, out, err = run(capsys, QWEN, "--seq", "8k", *words)
    assert (status, out) == (2, "")
    assert message in err


def test_the_chart_is_told_of_prefix_caching_where_the_default_depends() -> None:
    """The chart turns it off unless it is told."""
    with pytest.raises(UsageError, match="the default of this model depends on the release"):
        written("helm", model="Qwen/Qwen3-Next-80B-A3B-Instruct", tp=4)


def test_a_command_keeps_the_limits_of_the_plan() -> None:
    """What the line of users says to set stands in the command too."""
    made = plan(QWEN, engine="vllm", gpu="h100", seq=4096, prompt=3584, itl=0.015, offline=True)
    assert made.within is not None
    assert made.within.settings
    words = emitted(made, "vllm")
    for setting in made.within.settings:
        assert setting.flag in words


@pytest.mark.parametrize(("model", "fits"), [("Qwen/Qwen3-8B", True), ("deepseek-ai/DeepSeek-V3", False)])
def test_a_server_over_several_nodes_is_led_to_its_command(model: str, fits: bool) -> None:
    """No manifest joins nodes. Fewer GPUs are a way out where they hold the model: 671 GB of DeepSeek-V3 are too many for eight of 80 GB."""
    made = plan(model, engine="vllm", gpu="h100", gpus=16, seq="8k", offline=True)
    with pytest.raises(UsageError, match="one node, which has 8") as caught:
        emitted(made, "kubernetes")

    assert caught.value.hint.startswith("Use: --emit vllm, which says what each node is told")
    assert ("--gpus 8" in caught.value.hint) is fits
    assert any("Spans 2 nodes" in remark for remark in remarks_on(made, "vllm"))
