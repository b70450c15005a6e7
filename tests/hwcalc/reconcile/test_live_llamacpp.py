"""llama-server is started on a small file, and its log agrees with the plan: context, caches, states and weights, exactly."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pytest

from hwcalc import ModelSpec, load_model
from hwcalc.engines.llamacpp.engine import LlamacppDeployment
from hwcalc.engines.llamacpp.tensors import repacked_bytes
from hwcalc.parsers.gguf.from_config import gguf_keys
from hwcalc.planner.context import open_request
from hwcalc.quantization.gguf import file_tensors
from hwcalc.reconcile import Reconciliation, reconcile
from hwcalc.reconcile.facts import Fact
from hwcalc.reconcile.server import Server
from tests.llamacpp.library import wheel
from tests.paths import ROOT

pytestmark = pytest.mark.skipif(wheel() is None, reason="xllamacpp is not installed: pip install xllamacpp")

VOCABULARY: Final = 320
MIB: Final = 2**20
COMMON: Final = {
    "vocab_size": VOCABULARY, "max_position_embeddings": 4096, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "plain": {**COMMON, "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_attention_heads": 8, "head_dim": 64},
    "windows": {
        **COMMON, "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 6, "head_dim": 256,
        "sliding_window": 512, "sliding_window_pattern": 6, "tie_word_embeddings": True,
    },
    "latent": {
        **COMMON, "model_type": "deepseek_v2", "architectures": ["DeepseekV2ForCausalLM"], "num_key_value_heads": 4, "q_lora_rank": 256,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 256, "first_k_dense_replace": 1,
    },
    "convolutions": {
        **COMMON, "model_type": "lfm2", "architectures": ["Lfm2ForCausalLM"], "conv_L_cache": 3, "block_ff_dim": 512,
        "block_auto_adjust_ff_dim": False, "layer_types": ["conv", "full_attention"] * 2, "tie_word_embeddings": True,
    },
    "states": {
        **COMMON, "model_type": "falcon_h1", "architectures": ["FalconH1ForCausalLM"], "head_dim": 64, "mamba_d_ssm": 512,
        "mamba_d_state": 128, "mamba_d_conv": 4, "mamba_n_heads": 8, "mamba_d_head": 64, "mamba_n_groups": 1,
    },
}  # fmt: skip
"""Small models whose heads, windows and states are those of published ones."""
LOADED: Final[Mapping[str, Any]] = {
    "attention.layer_norm_epsilon": 1e-5,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.q_lora_rank": 256,
    "expert_weights_scale": 1.0,
}
"""Keys that llama.cpp wants and that bear on no memory."""
CONTEXTS: Final = (
    ("n_ctx=2048",),
    ("n_ctx=3000", "n_parallel=2", "kv_unified=false"),
    ("n_ctx=4096", "n_parallel=2", "kv_unified=true", "cache_type_k=q8_0", "cache_type_v=q8_0"),
)


def write(path: Path, model: ModelSpec) -> None:
    """The file that the converter and the quantiser would make of the model, with zeros for its tensors."""
    import gguf
    import numpy as np

    keys: dict[str, Any] = dict(gguf_keys(model))
    arch = keys.pop("general.architecture")
    writer = gguf.GGUFWriter(path, arch)
    for name, value in {**{f"{arch}.{key}": value for key, value in LOADED.items()}, **keys}.items():
        kinds: dict[type, Any] = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
        }
        kinds.get(type(value), writer.add_array)(name, value)
    writer.add_string("tokenizer.ggml.model", "test")
    writer.add_array("tokenizer.ggml.tokens", [f"t{number}" for number in range(VOCABULARY)])
    for tensor in file_tensors(model, "q4_k_m") or ():
        kind = gguf.GGMLQuantizationType[tensor.type.upper()]
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        *rows, columns = reversed(tensor.shape)
        # src/models/falcon-h1.cpp names this one without a suffix.
        name = tensor.name.removesuffix(".weight") if arch == "falcon-h1" and "ffn_norm" in tensor.name else tensor.name
        if block == 1:
            writer.add_tensor(name, np.zeros((*rows, columns), dtype={4: np.float32, 2: np.float16}[block_bytes]))
        else:
            data = np.zeros((*rows, columns // block * block_bytes), dtype=np.uint8)
            writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files of all models."""
    folder = tmp_path_factory.mktemp("live")
    found = {name: folder / f"{name}.gguf" for name in CONFIGS}
    for name, path in found.items():
        write(path, load_model(dict(CONFIGS[name])))
    return found


@lru_cache(maxsize=32)
def log_of(path: Path, words: tuple[str, ...], verbosity: int) -> str:
    """What llama-server says while it starts."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path))}
    command = [sys.executable, "-m", "tests.llamacpp.server", str(path), f"verbosity={verbosity}", "swa_full=false", *words]
    ended = subprocess.run(
        command, capture_output=True, text=True, errors="replace", env=environment, cwd=ROOT, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr[-1500:]
    return ended.stderr


def of(found: Reconciliation) -> dict[str, bool | None]:
    """Whether each figure agrees, but for those that are estimates."""
    return {row.name: row.within for row in found.rows if row.definition != "estimate"}


@pytest.mark.parametrize("words", CONTEXTS, ids=["one slot", "two slots", "shared, 8 bits"])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_log_agrees_with_the_plan(name: str, words: tuple[str, ...], files: dict[str, Path]) -> None:
    """Cells, cache, states and weights, up to the rounding of the log. Nothing about memory is left over."""
    found = reconcile(str(files[name]), log_of(files[name], words, 4), gpu="cpu-8gb", verbose=True)
    states = {"states"} if name in ("convolutions", "states") else set()
    assert of(found) == dict.fromkeys({"cells", "cells of a slot", "cache", "weights"} | states, True)
    assert [line.text for line in found.unread] == []


@pytest.mark.parametrize("name", CONFIGS)
def test_weights_are_laid_out_anew_for_the_processor(name: str, files: dict[str, Path]) -> None:
    """The buffer ``CPU_REPACK`` has the size that one of the processors has here. One for which llama.cpp has no layout has none."""
    found = reconcile(str(files[name]), log_of(files[name], CONTEXTS[0], 4), gpu="cpu-8gb")
    opened = open_request(load_model(str(files[name])), gpu="cpu-8gb", seq=2048)
    deployment = opened.deployment
    assert isinstance(deployment, LlamacppDeployment)
    buffers: list[Fact] = [fact for fact in found.facts if fact.name == "model_bytes" and fact.rank == "CPU_REPACK"]
    assert len(buffers) <= 1
    for buffer in buffers:
        assert isinstance(buffer.value, (int, float))
        assert any(abs(size - buffer.value) <= MIB // 100 for size in repacked_bytes(deployment).values())


def test_a_server_that_runs_says_what_it_holds(files: dict[str, Path]) -> None:
    """Two slots of 1,024 cells, none of which works, and the bytes of all tensors; it is asked once more."""
    words = ("serve", str(files["plain"]), "n_ctx=2048", "n_parallel=2", "kv_unified=false", "endpoint_metrics=true")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path))}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.llamacpp.server", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        cwd=ROOT,
    ) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        server = Server(started.stdout.readline().strip())
        first, second = server.serving(str(files["plain"]), gpu="cpu-8gb"), server.again()
        started.stdin.close()

    assert first.reconciliation is not None
    assert {row.name: row.within for row in first.reconciliation.rows} == {"cells of a slot": True, "weights": True}
    for serving in (first, second):
        assert (serving.engine, serving.running, serving.waiting, serving.most_running) == ("llamacpp", 0, 0, 2)
        assert [(room.seq, room.users, room.limit) for room in serving.rooms] == [(1024, 2, "n_seq_max")]


def test_what_is_said_to_developers_is_not_left_over(files: dict[str, Path]) -> None:
    """With every line that llama.cpp has, the figures are the same, and its lines of level D count as read."""
    found = reconcile(str(files["windows"]), log_of(files["windows"], CONTEXTS[1], 10), gpu="cpu-8gb", verbose=True)
    assert all(of(found).values())
    assert [line.text for line in found.unread] == []
