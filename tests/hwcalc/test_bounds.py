"""What a config of up to a megabyte costs at most: measured in processes of its own, and by counting what is worked out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from hwcalc import load_model, plan
from hwcalc.errors import ConfigError
from hwcalc.parsers.config import MAX_ITEMS, MAX_KINDS, MAX_LAYERS, MAX_NAME, MAX_TENSORS
from hwcalc.quantization import scheme
from hwcalc.quantization.config import read_scheme
from hwcalc.sources.document import MAX_VALUES
from tests.effort import sample
from tests.hwcalc.command import python

MEGABYTE: Final = 1_000_000
MOST_MB: Final = 300
HANGS_AFTER_S: Final = 60
"""A process that runs longer hangs. Nothing here takes a twentieth of it on an idle machine."""

CHILD: Final = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))
from hwcalc.cli import main
status = main(sys.argv[1:])
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print("peak", int(peak.split()[1]) * 1024 // 1000**2, status, file=sys.stderr)
"""

LLAMA: Final[dict[str, Any]] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
STEP: Final[dict[str, Any]] = {
    **LLAMA,
    "model_type": "step3p5",
    "architectures": ["Step3p5ForCausalLM"],
    "num_hidden_layers": 45,
    "sliding_window": 512,
    "layer_types": ["full_attention"] * 45,
}
GROUP: Final = {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}


def _quantized(**quantization: Any) -> dict[str, Any]:
    return {**LLAMA, "quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized", **quantization}}


def _nested(leaves: int) -> dict[str, Any]:
    inner: dict[str, Any] = {str(index): index for index in range(leaves)}
    for _ in range(90):
        inner = {"k" * 4000: inner}
    return inner


def _open_elm(layers: int) -> dict[str, Any]:
    """OpenELM, whose layers all have their own number of heads and their own width."""
    return {
        **{key: LLAMA[key] for key in ("vocab_size", "head_dim", "torch_dtype")},
        "model_type": "openelm",
        "architectures": ["OpenELMForCausalLM"],
        "model_dim": 1280,
        "num_transformer_layers": layers,
        "num_query_heads": [number + 1 for number in range(layers)],
        "num_kv_heads": [number + 1 for number in range(layers)],
        "ffn_multipliers": [0.5 + number / layers for number in range(layers)],
        "max_context_length": 2048,
        "ffn_with_glu": True,
        "share_input_output_layers": True,
        "normalize_qk_projections": True,
    }


HOSTILE: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "a layer's overrides in a wide document": lambda: {
        **STEP,
        "per_layer_config": {str(layer): {"num_attention_heads": 32} for layer in range(MAX_LAYERS)},
        **{f"key_{number}": number for number in range(50_000)},
    },
    "overrides of too many layers": lambda: {**STEP, "per_layer_config": {str(layer): {} for layer in range(70_000)}},
    "long paths in the quantisation": lambda: _quantized(config_groups={"g": GROUP}, more=_nested(40_000)),
    "empty lists": lambda: {**LLAMA, "x": [[]] * 240_000},
    "groups of one format": lambda: _quantized(
        config_groups={f"g{number}": {**GROUP, "targets": [f"model.layers.{number % 32}.a{number}"]} for number in range(7_000)}
    ),
    "modules that stay as they are": lambda: _quantized(
        config_groups={"g": GROUP}, ignore=[f"model.layers.{number % 32}.b{number}" for number in range(35_000)]
    ),
    "patterns for each layer": lambda: _quantized(
        config_groups={"g": GROUP}, ignore=[f"model.layers.{number % 32}.*" + "a*" * 100 for number in range(4_000)]
    ),
    "patterns of choices": lambda: _quantized(
        config_groups={"g": GROUP},
        ignore=[f"re:model.layers.1.(a|b)(c|d)(e|f)(g|h)(i|j)(k|l){number}" for number in range(4_000)],
    ),
    "nested repetition": lambda: _quantized(config_groups={"g": GROUP}, ignore=["re:(a+)+$", "re:(.*)*x" + "?" * 400]),
    "labels": lambda: {**LLAMA, "id2label": {str(number): f"LABEL_{number}" for number in range(35_000)}},
    "layers that all differ": lambda: _open_elm(MAX_KINDS),
    "too many layers that all differ": lambda: _open_elm(MAX_LAYERS),
    "a thousand million layers": lambda: {**LLAMA, "num_hidden_layers": 10**9},
    "a name of a megabyte": lambda: {**LLAMA, "model_type": "x" * MEGABYTE},
    "keys that nobody knows": lambda: {**LLAMA, **{f"kv_{number}": 3 for number in range(55_000)}},
}
ON_A_GPU: Final = ("--gpu", "h100-sxm5-80gb", "--seq", "4k")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize("engine", sample(["vllm", "reference"], 1))
@pytest.mark.parametrize("name", sample(HOSTILE, 5))
def test_a_megabyte_takes_little_memory(name: str, engine: str, tmp_path: Path) -> None:
    """Every config is planned or refused, in a process that stays small and ends."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(HOSTILE[name]()), encoding="utf-8")
    done = python("-c", CHILD, str(path), "--engine", engine, *ON_A_GPU, timeout=HANGS_AFTER_S)
    word, peak, status = done.stderr.split()[-3:]

    assert word == "peak"
    assert int(status) in (0, 1, 3), done.stderr[-500:]
    assert int(peak) < MOST_MB
    assert len(done.stderr) < 2000


def test_layers_share_their_document() -> None:
    """A layer's own keys lie over the document: nothing of it is copied."""
    config = {**STEP, "per_layer_config": {"0": {"num_key_value_heads": 4}}}
    layers = load_model(config).stack.layers

    assert [layers[number][0].dims()["num_key_value_heads"] for number in (0, 1)] == [4, 8]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"num_hidden_layers": MAX_LAYERS + 1},
            f"num_hidden_layers is 1001, but must be a whole number from 1 to {MAX_LAYERS:,}",
        ),
        ({"num_hidden_layers": 1e308}, "num_hidden_layers is 1e+308"),
        (
            {"layer_types": ["full_attention"] * (MAX_ITEMS + 1)},
            "layer_types is 10,001 items long, but must be a list of at most 10,000",
        ),
        (
            {"per_layer_config": {str(layer): {} for layer in range(MAX_LAYERS + 1)}},
            "per_layer_config is 1,001 layers long, but must be an object of at most 1,000 layers",
        ),
        ({"model_type": "x" * (MAX_NAME + 1)}, "a name of at most 200 characters"),
        ({"architectures": ["x" * (MAX_NAME + 1)]}, "a name of at most 200 characters"),
        ({"hidden_size": 10**5000}, "more than 4,300"),
        ({10**5000: 1}, "more than 4,300"),
        ({"x": [0] * MAX_VALUES}, "more than 1,000,000 values"),
    ],
)
def test_a_bound_says_what_was_given_and_what_is_allowed(change: dict[Any, Any], words: str) -> None:
    """The same from Python as from a file."""
    with pytest.raises(ConfigError) as raised:
        load_model({**STEP, **change})

    assert words in raised.value.message
    assert len(raised.value.message) < 300


def test_layers_for_multi_token_prediction_are_bounded_as_layers_are() -> None:
    """A count that no model has leaves the weights unknown, and says so; their layers would be laid out one by one."""
    config = dict(load_model("deepseek-ai/DeepSeek-V3").config)
    deepest, beyond = (load_model({**config, "num_nextn_predict_layers": count}) for count in (MAX_LAYERS, MAX_LAYERS + 1))

    assert deepest.counted is not None
    assert beyond.counted is None
    assert "num_nextn_predict_layers is 1001, but must be a whole number from 0 to 1,000" in str(beyond.notes)


def test_layers_must_have_something_in_common() -> None:
    """As many kinds of layers as allowed are planned; one more is an error that says both numbers. The same of tensors."""
    assert plan(_open_elm(MAX_KINDS), seq=1000).cache.total_bytes > 0
    with pytest.raises(ConfigError, match=f"{MAX_KINDS + 1} different kinds of layers: more than {MAX_KINDS}"):
        load_model(_open_elm(MAX_KINDS + 1))
    heads = list(range(1, 601))
    laguna = {
        **LLAMA,
        "model_type": "laguna",
        "architectures": ["LagunaForCausalLM"],
        "num_hidden_layers": len(heads),
        "num_key_value_heads": 1,
        "num_attention_heads_per_layer": heads,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    }
    with pytest.raises(ConfigError, match=f"different tensors: more than {MAX_TENSORS:,}"):
        load_model(laguna)


def test_a_document_that_holds_itself_is_refused() -> None:
    """From Python a list may hold itself, or one list many times in each of many levels."""
    circle: list[Any] = []
    circle.append(circle)
    tree: list[Any] = []
    for _ in range(60):
        tree = [tree, tree]

    for value, words in ((circle, "levels deep"), (tree, "1,000,000 values")):
        with pytest.raises(ConfigError, match=words):
            load_model({**LLAMA, "x": value})


def test_an_unknown_key_is_named_in_few_words() -> None:
    """Neither a key of a megabyte nor many of them fill the screen."""
    for keys in ({"kv_" + "x" * MEGABYTE: 3}, {f"kv_{number}": 3 for number in range(10_000)}):
        with pytest.raises(ConfigError) as raised:
            load_model({**LLAMA, **keys})

        assert len(raised.value.message) < 500


def test_names_are_looked_up_once_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many steps the solvers take: what a plan with a GPU asks for was asked by the plan without one."""
    calls = []
    look_up = scheme.Names._look_up

    def counted(self: scheme.Names, *what: Any) -> frozenset[int]:
        calls.append(what)
        return look_up(self, *what)

    monkeypatch.setattr(scheme.Names, "_look_up", counted)
    model = load_model(_quantized(config_groups={"g": GROUP}, ignore=["lm_head", "re:.*layers.[0-4]\\.mlp.*"]))
    plan(model, seq=1000)
    first = len(calls)
    plan(model, seq=4000, batch=3, gpu="h100-sxm5-80gb")

    assert 0 < first == len(calls)


def test_groups_of_one_format_are_one_rule() -> None:
    """Groups in a row with one format are one rule; where formats alternate, sixteen are read and more are not understood."""

    def scheme(formats: list[str]) -> int | None:
        groups = {
            str(number): {
                "weights": {"num_bits": 8, "type": "float", "strategy": form},
                "targets": [f"model.layers.{number}.mlp"],
            }
            for number, form in enumerate(formats)
        }
        read = read_scheme({"quant_method": "compressed-tensors", "config_groups": groups})
        return None if read is None else len(read.rules)

    assert scheme(["channel"] * 1000) == 1
    assert scheme(["channel", "tensor"] * 8) == 16
    assert scheme(["channel", "tensor"] * 9) is None


@pytest.mark.parametrize(
    "ignored",
    [
        [f"re:.*layers.[0-4].*x{a}{b}" for a in "abcdefghijklmnopqrst" for b in "abcdef"],
        [f"model.layers.{number}.*" + "a*" * 200 for number in range(900)],
        [f"re:model.layers.1.(a|b)(c|d)(e|f)(g|h)(i|j)(k|l){number}" for number in range(100)],
        ["re:(a+)+$"],
        ["re:" + "a" * 501],
    ],
    ids=["too many for each layer", "too long together", "too many choices", "nested repetition", "too long"],
)
def test_patterns_that_are_refused_leave_the_weights_unknown(ignored: list[str]) -> None:
    """No guess: the plan says that the quantisation is not understood, and what to give instead."""
    answer = plan({**_quantized(config_groups={"g": GROUP}, ignore=ignored), "num_hidden_layers": 100}, seq=1000)

    assert answer.memory.weights.bytes is None
    assert any(note.code == "weights-unknown" and "--weights" in note.message for note in answer.notes)
