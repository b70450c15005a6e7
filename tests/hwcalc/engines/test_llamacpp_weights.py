"""The tensors that llama.cpp loads: of a file, and of a config; overrides; what is loaded."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Final

import pytest

from hwcalc import load_model, plan
from hwcalc.engines.llamacpp.tensors import EXPERTS, Override, WeightTensor, loaded, model_tensors, overrides, with_overrides
from hwcalc.errors import UnknownNameError, UnsupportedError, UsageError
from hwcalc.model import ModelSpec
from hwcalc.quantization.patterns import compiled
from tests.hwcalc.sources.gguf.given import gguf_bytes

GIB: Final = 2**30
LAYERS: Final = 4
KEYS: Final = {
    "general.architecture": "llama", "llama.block_count": LAYERS, "llama.context_length": 4096, "llama.embedding_length": 256,
    "llama.feed_forward_length": 512, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2, "llama.vocab_size": 1000,
}  # fmt: skip


def tensors() -> dict[str, tuple[str, tuple[int, ...]]]:
    """A small Llama without a table of its own for the output."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {
        "token_embd.weight": ("q6_k", (256, 1000)),
        "output_norm.weight": ("f32", (256,)),
    }
    for number in range(LAYERS):
        for name, shape in {
            "attn_norm": (256,), "attn_q": (256, 256), "attn_k": (256, 128), "attn_v": (256, 128), "attn_output": (256, 256),
            "ffn_norm": (256,), "ffn_gate": (256, 512), "ffn_up": (256, 512), "ffn_down": (512, 256),
        }.items():  # fmt: skip
            found[f"blk.{number}.{name}.weight"] = ("f32" if len(shape) == 1 else "q4_k", shape)
    return found


@pytest.fixture
def file(tmp_path: Path) -> ModelSpec:
    """The file, read."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf_bytes(KEYS, tensors()))
    return load_model(str(path))


def bytes_of(found: tuple[WeightTensor, ...] | None) -> int:
    """All of them."""
    assert found is not None
    return sum(one.bytes for one in found)


def test_a_file_as_it_is(file: ModelSpec) -> None:
    """Each tensor with the type that the file gives it; a tied table is there twice, on the host and with the output."""
    found = model_tensors(file)
    assert found is not None
    by_name = {(one.name, one.copy): one for one in found}
    table = by_name["token_embd.weight", False]
    assert (table.type, table.bytes, table.role, table.layer) == ("q6_k", 1000 * 210, "input", -1)
    assert by_name["token_embd.weight", True].role == "output"
    assert by_name["blk.2.ffn_down.weight", False].layer == 2
    assert by_name["output_norm.weight", False].role == "output"
    matrices = 2 * 256 * 256 + 2 * 128 * 256 + 3 * 512 * 256
    assert bytes_of(found) == 2 * 1000 * 210 + LAYERS * (matrices // 256 * 144 + 2 * 1024) + 1024


def test_a_file_made_again(file: ModelSpec) -> None:
    """The mix that is asked for, from the tensors of the file, and a note; the reference engine plans the same."""
    found = model_tensors(file, "q3_k_m")
    assert found is not None
    types = {one.name: one.type for one in found}
    assert types["token_embd.weight"] == "q6_k"
    assert types["blk.0.attn_v.weight"] == "q5_k"
    assert types["blk.3.attn_q.weight"] == "q3_k"
    result = plan(file, seq=128, weights="q3_k_m", engine="reference")
    assert result.memory.weights.bytes == bytes_of(tuple(one for one in found if not one.copy))
    assert any(note.code == "weights-requantized" for note in result.notes)
    assert not any(note.code == "weights-requantized" for note in plan(file, seq=128).notes)


def test_types_are_as_the_file_has_them(file: ModelSpec) -> None:
    """Bytes by type."""
    assert file.weights is not None
    assert set(file.weights.bytes_by_dtype) == {"f32", "q4_k", "q6_k"}
    assert file.weights.total_bytes == bytes_of(tuple(one for one in model_tensors(file) or () if not one.copy))


@pytest.mark.parametrize(
    ("model", "layers", "experts"),
    [("Qwen/Qwen3-8B", 36, False), ("Qwen/Qwen3-30B-A3B", 48, True), ("deepseek-ai/DeepSeek-V3", 61, True)],
)
def test_a_config(model: str, layers: int, experts: bool) -> None:
    """Names, layers and experts as the converter writes them; as converted, in 16 bits and 32."""
    spec = load_model(model)
    found = model_tensors(spec)
    assert found is not None
    names = {one.name for one in found}
    assert {"token_embd.weight", "output.weight", "output_norm.weight", f"blk.{layers - 1}.ffn_norm.weight"} <= names
    assert max(one.layer for one in found) == layers - 1
    assert any(one.expert for one in found) == experts
    assert all(bool(re.search(EXPERTS, one.name)) == one.expert for one in found)
    assert {one.type for one in found} == {"f32", "bf16"}
    assert spec.counted is not None
    # The corrections of the routers are no parameters.
    assert sum(one.elements for one in found if "exp_probs_b" not in one.name) == spec.counted.total
    assert all(one.type == "f32" for one in found if "norm" in one.name)


def test_the_latent_is_divided() -> None:
    """One matrix for every head for the keys, of rows as long as a key without rotation, and one for the values."""
    found = {one.name: one for one in model_tensors(load_model("deepseek-ai/DeepSeek-V3"), "q4_k_m") or ()}
    keys, values = found["blk.5.attn_k_b.weight"], found["blk.5.attn_v_b.weight"]
    assert (keys.columns, keys.elements, keys.type) == (128, 128 * 512 * 128, "q5_0")
    assert (values.columns, values.elements, values.type) == (512, 512 * 128 * 128, "q4_k")


def test_prediction_layers_load_only_for_themselves() -> None:
    """GLM-4.5 Air: layer 46 is for prediction."""
    found = model_tensors(load_model("zai-org/GLM-4.5-Air"), "q4_k_m")
    assert found is not None
    assert {one.layer for one in found if one.mtp} == {46}
    assert bytes_of(loaded(found, mtp=True)) == bytes_of(found) > bytes_of(loaded(found))


def test_prediction_layers_that_load_by_a_part() -> None:
    """Hy3: libllama, without ``load_mtp``, has 180,652,949,504 bytes on a GPU with all layers, with the last layer's experts.

    The file had no corrections of the routers, which this loader does not ask for; published files have those of the checkpoint.
    """
    found = loaded(model_tensors(load_model("tencent/Hy3-preview"), "q4_k_m") or ())
    corrections = [one for one in found if one.name.endswith(".exp_probs_b")]
    assert [(one.layer, one.bytes) for one in corrections] == [(layer, 4 * 192) for layer in range(1, 81)]
    assert bytes_of(tuple(one for one in found if one.role != "input" and one not in corrections)) == 180_652_949_504
    assert {one.name.removeprefix("blk.80.") for one in found if one.layer == 80} >= {"ffn_up_exps.weight", "ffn_gate_inp.weight"}
    assert "blk.80.attn_q.weight" not in {one.name for one in found}


def test_tensors_that_no_checkpoint_has() -> None:
    """Factors of rotary embeddings, and DeepSeek-V4's table from tokens to experts."""
    sizes = {
        "meta-llama/Llama-3.1-8B": {"rope_freqs.weight": 256},
        "google/gemma-4-26B-A4B-it": {"rope_freqs.weight": 1024},
        "deepseek-ai/DeepSeek-V4-Flash": {f"blk.{layer}.ffn_gate_tid2eid.weight": 129_280 * 6 * 4 for layer in range(3)},
        "Qwen/Qwen3-8B": {},
    }
    for model, made in sizes.items():
        found = model_tensors(load_model(model), "q4_k_m") or ()
        assert {one.name: one.bytes for one in found if "rope_" in one.name or "tid2eid" in one.name} == made


@pytest.mark.parametrize(
    ("model", "layers", "experts"),
    [
        ("zai-org/GLM-4.5-Air", range(1, 47), 128),
        ("MiniMaxAI/MiniMax-M2", range(62), 256),
        ("LiquidAI/LFM2-8B-A1B", range(2, 24), 32),
        ("moonshotai/Kimi-Linear-48B-A3B-Base", range(1, 27), 256),
        # The first three find their experts in a table.
        ("deepseek-ai/DeepSeek-V4-Flash", range(3, 43), 256),
        ("arcee-ai/Trinity-Mini", range(2, 32), 128),
        ("mistralai/Mixtral-8x7B-v0.1", range(0), 0),
    ],
)
def test_corrections_of_the_routers(model: str, layers: range, experts: int) -> None:
    """The loaders of these architectures refuse a file without them (src/models/*.cpp); Mixtral has none."""
    found = [one for one in model_tensors(load_model(model), "q4_k_m") or () if one.name.endswith(".exp_probs_b.bias")]
    assert [one.layer for one in found] == list(layers)
    assert {(one.type, one.bytes) for one in found} == ({("f32", 4 * experts)} if experts else set())


def test_experts_of_the_first_layers() -> None:
    """The patterns that ``--n-cpu-moe 2`` and ``--cpu-moe`` stand for, and another before them: the first that is found decides."""
    found = model_tensors(load_model("Qwen/Qwen3-30B-A3B"), "q4_k_m") or ()
    moved = [one for one in with_overrides(found, overrides(rf"blk\.(0|1){EXPERTS}=CPU")) if one.buffer]
    assert {one.layer for one in moved} == {0, 1}
    assert len(moved) == 6
    assert all(one.buffer == "CPU" and one.expert for one in moved)
    assert sum(one.buffer == "CPU" for one in with_overrides(found, overrides(f"{EXPERTS}=CPU"))) == 48 * 3
    both = with_overrides(found, overrides(rf"blk\.1\.ffn_up_exps=CUDA0,ffn_(up|gate)_exps=CPU,{EXPERTS}=CPU"))
    buffers = {one.name: one.buffer for one in both}
    assert buffers["blk.1.ffn_up_exps.weight"] == "CUDA0"
    assert buffers["blk.11.ffn_up_exps.weight"] == "CPU"
    assert buffers["blk.0.attn_q.weight"] is None
    assert with_overrides(found, ()) == found


@pytest.mark.parametrize(
    "text",
    ["blk", "a=", "(=CPU", "a**=CPU", "(?=a)=CPU", "[a=CPU", r"\1=CPU", "x" * 2000 + "=CPU", "a{9999}=CPU", "(" * 50 + "=CPU"],
)
def test_overrides_that_are_refused(text: str) -> None:
    """With the pattern, and an example."""
    with pytest.raises(UsageError, match="override_tensor"):
        with_overrides((), overrides(text))


def test_a_pattern_of_any_kind_is_found_fast() -> None:
    """Nested repetitions too."""
    start = time.perf_counter()
    names = [f"blk.{number}.{'a' * 60}" for number in range(200)]
    for pattern in ("(a+)+$", "(a|a)*b", "(.*)*x", "((a{1,30}){1,30})z", "a?" * 60 + "a" * 60):
        one = compiled(pattern)
        for name in names:
            one.found_in(name)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (r"blk\.(1[0-9]|2)\.ffn_.*_exps\.", ["blk.12.ffn_up_exps.weight", "blk.2.ffn_up_exps.weight", "blk.3.ffn_up_exps.weight"]),
        (r"^token_embd", ["token_embd.weight", "per_layer_token_embd.weight"]),
        (r"weight$", ["output.weight", "output.bias"]),
        (r"\.ffn_(up|down|gate|gate_up)_(ch|)exps", ["blk.0.ffn_gate_up_exps.weight", "blk.0.ffn_up_chexps.weight", "blk.0.ffn_up.weight"]),
        (r"blk\.\d{2}\.", ["blk.1.attn_q.weight", "blk.11.attn_q.weight"]),
        (r"[^a-z]q", ["blk.1.attn_q.weight", "blk.1.attnq"]),
        (r"", ["x"]),
    ],
)  # fmt: skip
def test_patterns_as_python_reads_them(pattern: str, names: list[str]) -> None:
    """Where both read the pattern, they find the same."""
    for name in names:
        assert compiled(pattern).found_in(name) == (re.search(pattern, name) is not None)


def test_an_override() -> None:
    """In the order of the text."""
    assert overrides("a=CPU,b=CUDA1") == (Override(pattern="a", buffer="CPU"), Override(pattern="b", buffer="CUDA1"))


@pytest.mark.parametrize("name", ["awq", "exl2 4bpw", "fp8", "nvfp4"])
def test_formats_that_no_gguf_file_has(name: str) -> None:
    """With one that it has."""
    with pytest.raises(UnsupportedError, match="llama-quantize makes none") as error:
        plan("Qwen/Qwen3-8B", seq=4096, engine="llamacpp", weights=name)
    assert "--weights q" in error.value.hint


@pytest.mark.parametrize("name", ["UD-Q4_K_XL", "ud-iq2_m", "Q6_K_L", "Q3_K_XL", "UD-TQ1_0"])
def test_mixes_by_hand(name: str) -> None:
    """Unsloth's and bartowski's own: the file says it, no rule."""
    with pytest.raises(UnknownNameError, match="no rule says") as error:
        plan("Qwen/Qwen3-8B", seq=4096, weights=name)
    assert "Give the file" in error.value.hint


@pytest.mark.parametrize(
    ("model", "name"), [("Qwen/Qwen3-30B-A3B", "q4_k_m"), ("zai-org/GLM-4.5-Air", "q4_k_s"), ("Qwen/Qwen3-8B", None)]
)
def test_parts_add_up(model: str, name: str | None) -> None:
    """Each tensor once; prediction layers are apart."""
    weights = plan(model, seq=4096, engine="llamacpp", weights=name).memory.weights
    assert sum(part.bytes for part in weights.parts if part.part != "mtp") == weights.bytes
    assert all(sum(one.bytes for one in part.formats) == part.bytes for part in weights.parts)
    assert {"embedding", "head", "norm", "attention"} <= {part.kind for part in weights.parts}


def test_made_with_and_without_a_matrix() -> None:
    """Low and high are both, as for the other engines."""
    weights = plan("Qwen/Qwen3-8B", seq=4096, engine="llamacpp", weights="iq4_xs").memory.weights
    other = plan("Qwen/Qwen3-8B", seq=4096, engine="reference", weights="iq4_xs").memory.weights
    assert (weights.low, weights.bytes, weights.high) == (other.low, other.bytes, other.high)
    assert weights.low is not None
    assert weights.bytes is not None
    assert weights.low < weights.bytes
