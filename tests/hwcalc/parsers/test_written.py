"""Models whose layers are written down: the arithmetic by hand, every kind, both forms, and what is wrong with a description."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, fields, replace

from hwcalc import check, compare, explain, explore, load_model, plan, sweep
from hwcalc.errors import ConfigError, UnknownArchitectureError, UnreadKeysError, UnsupportedError, UsageError
from hwcalc.formulas import KINDS, FullAttention, Layer, LayerKind, Mamba2, ShortConvolution, SlidingAttention
from hwcalc.model import ModelSpec, RawModel
from hwcalc.parsers.written import (
    MAX_TEXT,
    WrittenError,
    kind_names,
    make_kind,
    parameters_of,
    parse_written,
    pattern_text,
    read_layers,
)
from hwcalc.report.verdict import verdict
from tests.formulas.strategies import kinds
from tests.hwcalc.command import Capture, run
from tests.paths import ROOT

MAMBA: Final = Mamba2(num_heads=64, head_dim=64, d_state=128, n_groups=1, d_conv=4)
SLIDING: Final = SlidingAttention(num_attention_heads=4, num_key_value_heads=4, head_dim=128, v_head_dim=128, window=1024)
MAMBA_TEXT: Final = "mamba2(heads=64, head_dim=64, d_state=128, conv=4)"
SLIDING_TEXT: Final = "sliding(kv_heads=4, head_dim=128, window=1024)"
HYBRID: Final = f"18*{MAMBA_TEXT} + 6*{SLIDING_TEXT}"
STATES: Final = 18 * (64 * 64 * 128 * 4 + 3 * (4096 + 256) * 2)
WINDOWS: Final = 6 * 2 * 1024 * 4 * 128 * 2
"""18 states in fp32 and the last three inputs of 64 x 64 + 2 x 128 channels in bf16; six windows of keys and values."""

ZEPHYROS: Final[dict[str, Any]] = {
    "model_type": "zephyros", "architectures": ["ZephyrosForCausalLM"], "num_hidden_layers": 24, "hidden_size": 2048,
    "layer_types": ["mamba2", "mamba2", "mamba2", "sliding_attention"] * 6, "intermediate_size": 8192, "vocab_size": 128256,
    "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128, "sliding_window": 1024, "mamba_num_heads": 64,
    "mamba_head_dim": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2, "torch_dtype": "bfloat16",
}  # fmt: skip
"""A hybrid that no parser knows."""


def test_a_hybrid_by_hand() -> None:
    """12,582,912 bytes of windows and 38,218,752 of states, at any length beyond the window."""
    assert (STATES, WINDOWS) == (38_218_752, 12_582_912)
    for seq in (1024, 32_768, 1_048_576):
        planned = plan(layers_of=HYBRID, seq=seq)
        assert planned.cache.total_bytes == 50_801_664
        assert planned.cache.state_bytes_per_sequence == STATES
        assert planned.cache.bytes_per_token == 0
    assert planned.cache.definition == "exact"


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        (HYBRID, ((MAMBA,),) * 18 + ((SLIDING,),) * 6),
        (f"6*(3*{MAMBA_TEXT} + {SLIDING_TEXT})", ((MAMBA,), (MAMBA,), (MAMBA,), (SLIDING,)) * 6),
        (f"({MAMBA_TEXT} & {SLIDING_TEXT}) * 2", ((MAMBA, SLIDING),) * 2),
        (f"{MAMBA_TEXT}&{SLIDING_TEXT}", ((MAMBA, SLIDING),)),
        ("2 x Mamba-2(num_heads=64,HEAD-DIM=64,ssm_state_size=128,conv_kernel=4,n_groups=1,)", ((MAMBA,),) * 2),
        ("2 mamba2(heads=64, head_dim=64, d_state=128, conv=4, groups=1)", ((MAMBA,),) * 2),
        ("2*(2*(conv(channels=8, conv=3)))", ((ShortConvolution(channels=8, d_conv=3),),) * 4),
        ("swa(kv_heads=4, head_dim=128, window=1k)", ((SLIDING,),)),
    ],
)
def test_text_in_order(text: str, layers: tuple[Layer, ...]) -> None:
    """Numbers before or behind, patterns, several kinds in a layer, other names, and blanks."""
    assert read_layers(text) == layers


def layers_text(layers: Sequence[Layer]) -> str:
    """The layers in words: each kind with the fields that it has, by their own names."""
    return pattern_text([" & ".join(map(kind_text, layer)) for layer in layers])


def kind_text(kind: LayerKind) -> str:
    """A kind in words."""
    numbers = (f"{name}={value}" for name, value in kind.numbers().items() if value is not None)
    return f"{kind.name}({', '.join(numbers)})"


@given(st.lists(st.lists(kinds(), min_size=1, max_size=2).map(tuple), min_size=1, max_size=9), st.integers(1, 3))
def test_layers_are_what_they_are_written_as(pattern: list[Layer], times: int) -> None:
    """Any kind with any numbers, alone or beside another, in any pattern."""
    layers = tuple(tuple(replace(kind, kept=None) for kind in layer) for layer in pattern) * times
    assert read_layers(layers_text(layers)) == layers


@given(kinds())
def test_every_kind_by_its_own_fields(kind: LayerKind) -> None:
    """The names of the formulas are names here, and so are their fields."""
    given_ = {name: value for name, value in asdict(kind).items() if name != "kept"}
    assert make_kind(kind.name, given_) == replace(kind, kept=None)


def test_names_are_unambiguous() -> None:
    """Each word is one kind, each kind is reached, and no two parameters of a kind share a name."""
    assert set(kind_names().values()) == set(KINDS)
    assert kind_names()["mla"] == "latent_attention"
    for kind in KINDS.values():
        names = [name for parameter in parameters_of(kind) for name in (parameter.field, *parameter.names)]
        assert len(names) == len(set(names)), kind.name
        assert {parameter.field for parameter in parameters_of(kind)} == {field.name for field in fields(kind)} - {"kept"}


def test_models_of_the_catalog_can_be_written_down() -> None:
    """Llama, a hybrid, latents with an indexer, and windows, layer by layer."""
    for name in (
        "meta-llama/Llama-3.1-8B",
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "deepseek-ai/DeepSeek-V3.2-Exp",
        "openai/gpt-oss-20b",
    ):
        model = load_model(name, offline=True)
        written = load_model({"layers": layers_text(model.stack.layers), "dtype": "bf16"})
        assert written.stack == model.stack
        assert plan(written, seq=9_000).cache.total_bytes == plan(model, seq=9_000).cache.total_bytes


def test_a_list_is_the_same() -> None:
    """Items with a kind, a pattern with a count, kinds of one layer, and text among them."""
    listed = [
        {
            "count": 6,
            "layers": [{"kind": "mamba2", "count": 3, "heads": 64, "head_dim": 64, "d_state": 128, "conv": 4}, SLIDING_TEXT],
        },
        {"kinds": [{"kind": "full", "heads": 8, "head_dim": 64}, {"kind": "conv", "channels": 4, "conv": 4}]},
    ]
    text = f"6*(3*{MAMBA_TEXT} + {SLIDING_TEXT}) + full(heads=8, head_dim=64) & conv(channels=4, conv=4)"
    assert read_layers(listed) == read_layers(text)


def test_what_is_left_out_is_filled_in() -> None:
    """Values as wide as keys, as many query heads as key/value heads, and one group."""
    (full,) = read_layers("full(kv_heads=2, head_dim=64)")[0]
    assert full == FullAttention(num_attention_heads=2, num_key_value_heads=2, head_dim=64, v_head_dim=64)
    assert make_kind("full", {"heads": 8, "head_dim": 64}) == replace(full, num_attention_heads=8, num_key_value_heads=8)
    assert make_kind("gdn", {"key_heads": 4, "key_dim": 32, "conv": 4}).numbers()["num_value_heads"] == 4
    assert (
        make_kind("mla", {"heads": 2, "rank": 8, "rope": 0, "nope": 4, "v_head_dim": 4, "window": "none"}).numbers()["window"]
        is None
    )


WRONG: Final = (
    ("", "end after ''"), ("12*", "a kind of layer"), ("full", r"lacks num_attention_heads|lacks head_dim"), ("full(heads=8", "closing parenthesis"),
    ("mambo2(heads=3)", "no kind of layer 'mambo2'"), ("full(heds=8, head_dim=64)", "no parameter 'heds'"),
    ("mamba2(heads=64)", r"lacks head_dim, d_state, d_conv \(conv\)"), ("full(heads=8, head_dim=64) full(heads=8, head_dim=64)", "a plus sign"),
    ("full(heads=8 head_dim=64)", "a comma"), ("full(heads=8, head_dim=6.4)", "not a whole number"), ("full(heads=-8, head_dim=64)", "out of range"),
    ("full(heads=0, head_dim=64)", "from 1 to"), ("full(heads=8, heads=8, head_dim=64)", "twice"),
    ("full(heads=8, num_attention_heads=8, head_dim=64)", "twice"), ("full(heads=?, head_dim=64)", "not filled in"),
    ("full(heads=1 0, head_dim=64)", "a comma"), ("full(heads=8, head_dim=4294967296)", "Allowed|head_dim is 4,294,967,296"),
    ("indexer(heads=4, head_dim=64, index_quantized=2)", "true or false|index_quantized is"), ("0*full(heads=8, head_dim=64)", "1,000 layers"),
    ("1001*full(heads=8, head_dim=64)", "1,000 layers"), ("99*(99*full(heads=8, head_dim=64))", "1,000 layers"),
    ("9" * 5000 + "*full(heads=8, head_dim=64)", "1,000 layers"), ("(" * 5000, "nested more than"), ("full(heads=8, head_dim=64)" * 2000, "characters long"),
    ("full(heads=(8), head_dim=64)", "a comma"), ("\x1b[31m", "a kind of layer"), ("&", "a kind of layer"), ("?", "a kind of layer"),
)  # fmt: skip


def test_latents_by_rank_and_rope_alone() -> None:
    """Each of 6 layers keeps (512 + 64) x 2 bytes of a token, whatever its heads are: 8 tokens are 55,296 bytes."""
    for text in ("6*mla(kv_lora_rank=512, rope=64)", "6*mla(rank=512, rope=64, heads=16, nope=64, v=32)"):
        assert plan(layers_of=text, seq=8, dtype="bf16").cache.total_bytes == 6 * (512 + 64) * 2 * 8 == 55_296
    kind = make_kind("mla", {"rank": 512, "rope": 64, "v": 32})
    assert kind.numbers() | {"v_head_dim": 128} == make_kind("mla", {"rank": 512, "rope": 64}).numbers()
    assert read_layers(layers_text([(kind,)])) == ((kind,),)
    with pytest.raises(WrittenError, match="lacks kv_lora_rank") as caught:
        make_kind("mla", {"heads": 16})
    assert "Write: mla(heads=16, rank=N, rope=N)" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("layers", "write"),
    [
        ("24*gqa", "gqa(heads=N, head_dim=N)"),
        ("24*gqa(heads=16)", "gqa(heads=16, head_dim=N)"),
        ("24*gqa(head_dim=64)", "gqa(head_dim=64, heads=N)"),
        ("sliding(heads=2)", "sliding(heads=2, head_dim=N, window=N)"),
        ("gdn", "gdn(key_heads=N, key_dim=N, conv=N)"),
    ],
)
def test_what_a_layer_lacks_can_be_typed(layers: str, write: str) -> None:
    """Everything that is needed, what was given as it was, and with numbers in it a layer that is read."""
    with pytest.raises(WrittenError) as caught:
        read_layers(layers)
    assert (caught.value.hint or "").endswith(f"Write: {write}")
    assert len(read_layers(write.replace("N", "4"))) == 1


def test_a_key_of_configs_is_the_key_that_it_ends_with() -> None:
    """``torch_dtype`` is the format of weights and cache, which has nothing to do with that of states."""
    config = {"layers": "full(heads=8, head_dim=64)", "torch_dtype": "bf16"}
    with pytest.raises(WrittenError, match="no key 'torch_dtype'") as caught:
        parse_written(RawModel(id="x", config=config, source="python"))
    assert "Did you mean dtype?" in (caught.value.hint or "")


def test_written_layers_have_their_number() -> None:
    """``--layers`` beside them would be another number, and once took the place of the text."""
    with pytest.raises(UsageError, match="writes the layers already") as caught:
        plan(layers_of=HYBRID, layers=4, seq=8)
    assert "layers" in (caught.value.hint or "")


@pytest.mark.parametrize(("text", "words"), WRONG, ids=[repr(text[:40]) for text, _ in WRONG])
def test_wrong_text(text: str, words: str) -> None:
    """The message says what is wrong, the hint what to write; as an option it is wrong usage, in a document a bad config."""
    start = time.perf_counter()
    with pytest.raises(WrittenError, match=words) as caught:
        read_layers(text)
    assert time.perf_counter() - start < 1
    assert caught.value.hint
    assert len(caught.value.message) < 300
    with pytest.raises(UsageError, match="layers_of: "):
        plan(layers_of=text, seq=8)
    with pytest.raises(ConfigError) as config:
        load_model({"layers": text})
    assert config.value.exit_code == 3


def test_hints_name_the_nearest() -> None:
    """The nearest kind, the nearest parameter, and everything that is allowed."""
    with pytest.raises(WrittenError) as kind:
        read_layers("slidding(heads=3)")
    assert kind.value.hint.startswith("Did you mean sliding")
    assert all(word in kind.value.hint for word in ("gqa", "mla", "mamba2", "no_cache"))
    with pytest.raises(WrittenError) as parameter:
        read_layers("mamba2(heads=64, hed_dim=64)")
    assert parameter.value.hint == (
        "Did you mean head_dim? It takes num_heads (heads); head_dim; d_state; n_groups (groups), else 1; d_conv (conv)."
    )


@given(st.text(alphabet="full(heads=8,_dim64)+*& \n?x-.mamba2", max_size=60))
def test_any_text_is_layers_or_an_error(text: str) -> None:
    """Nothing else is raised."""
    with suppress(WrittenError):
        assert read_layers(text)


@pytest.mark.parametrize(
    "given_",
    [
        {"layers": 3.5, "hidden_size": 8}, {"layers": []}, {"layers": [3]}, {"layers": [{"kind": "full", "layers": []}]},
        {"layers": [{"layers": "full(heads=1, head_dim=1)"}]}, {"layers": [{"kind": 3}]}, {"layers": [{"kinds": ["full"]}]},
        {"layers": [{"count": True, "kind": "none"}]}, {"layers": [{"count": 10**9, "kind": "none"}]}, {"layers": [{"kind": "none", "x": 1}]},
        {"layers": [{"layers": [{"kind": "none"}], "x": 1}]}, {"layers": "none()", "layer": 3}, {"layers": "none()", "dtype": "bf17"},
        {"layers": "none()", "name": ""}, {"layers": "none()", "hidden_size": -1}, {"layers": "none()", "parameters": "seven"},
        {"layers": "none()", "tie_word_embeddings": 3, "hidden_size": 8, "intermediate_size": 8, "vocab_size": 8},
        {"layers": "rwkv4(hidden_size=8)", "hidden_size": 8, "intermediate_size": 8, "vocab_size": 8},
        {"layers": "+".join(f"full(heads={heads}, head_dim=8)" for heads in range(1, 200))},
    ],
    ids=lambda given_: repr(given_)[:50],
)  # fmt: skip
def test_wrong_documents(given_: dict[str, Any]) -> None:
    """Odd values of every key, and more kinds than a plan can have."""
    with pytest.raises(ConfigError) as caught:
        load_model(given_)
    assert "layers" in given_
    assert caught.value.message


def test_nested_lists_are_bounded() -> None:
    """Nine patterns within one another."""
    nested: Any = [{"kind": "none"}]
    for _ in range(9):
        nested = [{"layers": nested}]
    with pytest.raises(WrittenError, match="nested more than 8"):
        read_layers(nested)
    assert len(f"{'none()+' * 100}none()") < MAX_TEXT


def test_weights_by_sizes() -> None:
    """Mixers of 18 Mamba-2 and 6 attention layers, an MLP and two norms on each of the 24, and both ends.

    Mamba-2: 2,048 x (4,096 + 4,352 + 64), convolution 4,352 x 5, 3 x 64, norm 4,096, output 4,096 x 2,048. Attention: 16 heads of 128
    and 4 of keys and values.
    """
    mamba = 2048 * (4096 + 4352 + 64) + 4352 * 5 + 3 * 64 + 4096 + 4096 * 2048
    attention = 2 * 2048 * 2048 + 2 * 2048 * 512
    sizes: Any = {"hidden_size": 2048, "intermediate_size": 8192, "vocab_size": 128_256}
    text = HYBRID.replace("sliding(", "sliding(heads=16, ")
    total = 18 * mamba + 6 * attention + 24 * (3 * 2048 * 8192 + 2 * 2048) + 2 * 128_256 * 2048 + 2048
    model = load_model({"layers": text, **sizes})
    assert model.parameters is not None
    assert (model.parameters.total, model.parameters.definition) == (total, "estimate")
    tied = load_model({"layers": text, **sizes, "tie_word_embeddings": True})
    assert tied.parameters is not None
    assert total - (tied.parameters.total or 0) == 128_256 * 2048
    assert plan(layers_of=text, seq=8, **sizes).memory.weights.bytes == 2 * total


def test_weights_by_their_number() -> None:
    """7.2 billion in bf16, with a width for activations that a note names, and of the file where it has one."""
    planned = plan(layers_of=HYBRID, parameters="7.2B", seq="32k", gpu="l4")
    assert planned.memory.weights.bytes == 14_400_000_000
    # (7.2e9 / (12 x 24)) ** 0.5 is exactly 5,000: the next multiple of 128 is 4,992.
    assert any("4,992" in note.message for note in planned.notes)
    assert load_model({"layers": HYBRID, "parameters": 7_200_000_000, "hidden_size": 4096}).hidden_size == 4096
    unknown = plan(layers_of=HYBRID, seq=8)
    assert unknown.memory.weights.bytes is None


def test_engines_go_by_their_rules() -> None:
    """One that has a rule for every kind plans it, and says that it needs a class; others refuse as they do for all models."""
    for engine in ("transformers", "vllm", "sglang", "tensorrt-llm"):
        assert plan(layers_of=HYBRID, parameters="7.2B", seq="8k", engine=engine, gpu="h100").cache.total_bytes > 0
    for engine, words in {"lmdeploy": "no rule for mamba2", "llamacpp": "names no class", "mlx": "no model file"}.items():
        with pytest.raises(UnsupportedError, match=words):
            plan(layers_of=HYBRID, seq="8k", engine=engine)
    planned = plan(layers_of=HYBRID, parameters="7.2B", seq="8k", engine="vllm", gpu="h100")
    assert verdict(planned) == "fits on 1 x h100-sxm5-80gb: vLLM will start, once it has a class for these layers"


def test_a_document_says_what_a_config_would() -> None:
    """``128k`` is 128 x 1,024 and ``bf16`` is ``bfloat16``, whichever of the two is written, for every engine that reads keys of its own."""
    people = {"dtype": "bf16", "state_dtype": "fp16", "max_position_embeddings": "128k", "parameters": "2B", "hidden_size": "2k"}
    config = {
        "dtype": "bfloat16", "state_dtype": "float16", "max_position_embeddings": 131_072, "parameters": 2 * 10**9,
        "hidden_size": 2048,
    }  # fmt: skip
    assert load_model({"layers": HYBRID, **people}).config == {"layers": HYBRID, **config}
    for engine in ("transformers", "vllm", "sglang", "tensorrt-llm"):
        written, planned = (
            plan({"layers": HYBRID, **said}, seq="32k", engine=engine, gpu="l4").to_dict() for said in (people, config)
        )
        assert written == planned
        assert "LONGER_CONTEXT" not in json.dumps(written)
    assert plan({"layers": HYBRID, **people}, seq="8k", engine="sglang").request.kv_dtype == "bf16"


@pytest.mark.parametrize("engine", ["vllm", "tensorrt-llm"])
def test_states_in_a_format_that_the_engine_does_not_read(engine: str) -> None:
    """It keeps them in the model's dtype, and says so, with the option that keeps them in twice the bytes: 64 x 64 x 128 numbers a layer."""
    model = {"layers": MAMBA_TEXT, "dtype": "bf16", "state_dtype": "fp32", "parameters": "1B"}
    planned = plan(model, seq="8k", engine=engine, gpu="h100")
    [said] = [note.message for note in planned.notes if note.code == "states-kept"]
    name, _, value = said.partition("--engine-option ")[2].split()[0].partition("=")
    changed = plan(model, seq="8k", engine=engine, gpu="h100", engine_options={name: value})
    assert (planned.request.state_dtype, changed.request.state_dtype) == ("bf16", "fp32")
    assert "states-kept" not in {note.code for note in changed.notes}
    # What engines keep in fp32 already, or read from the config, is no news.
    for other in ("transformers", "sglang", "reference"):
        assert "states-kept" not in {note.code for note in plan(model, seq="8k", engine=other).notes}


def test_the_option_and_others() -> None:
    """It stands for a model: not beside one, not beside heads, and a model that is written down has no heads to change."""
    with pytest.raises(UsageError, match="Qwen/Qwen3-8B has its own"):
        plan("Qwen/Qwen3-8B", layers_of=HYBRID, seq=8)
    with pytest.raises(UsageError, match="layers_of and heads both"):
        plan(layers_of=HYBRID, heads=8, seq=8)
    with pytest.raises(UsageError, match="no dimensions to change"):
        plan({"layers": HYBRID}, heads=8, seq=8)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A model in YAML."""
    path = tmp_path / "my-model.yaml"
    path.write_text(f"name: zephyros\ndtype: bf16\nmax_position_embeddings: 128k\nparameters: 2.3B\nlayers: {HYBRID}\n", "utf-8")
    return path


def test_a_file_works_everywhere(file: Path) -> None:
    """Python's functions take its path."""
    model = load_model(file)
    assert (model.id, model.model_type, model.max_position_embeddings) == ("zephyros", "written", 131_072)
    assert plan(file).cache.total_bytes == 50_801_664
    assert compare([str(file), "Qwen/Qwen3-8B"], seq="4k").variants[0].cache_total_bytes == 50_801_664
    assert {row["cache_total_bytes"] for row in sweep(str(file), seq="1k..4k").records()} == {50_801_664}
    assert "38218752" in json.dumps(explain(str(file), seq="4k").to_dict())
    assert "zephyros" in explore(str(file))


def test_a_check_file_takes_it(capsys: Capture, file: Path) -> None:
    """Beside the file, with a lock too; a change of its layers is noticed."""
    checks = file.with_name("kvplan.yaml")
    checks.write_text(f"schema_version: 1\nchecks:\n- {{model: {file.name}, seq: 32k, gpu: l4, max_cache: 60MiB}}\n", "utf-8")
    assert [one.status for one in check(str(checks)).checks] == ["pass"]
    assert run(capsys, "check", "--lock", str(checks))[0] == 0
    assert [one.status for one in check(str(checks)).checks] == ["pass"]
    file.write_text(file.read_text("utf-8").replace("18*", "17*"), "utf-8")
    code, out, _ = run(capsys, "check", str(checks))
    assert (code, "changed since the lock" in out) == (1, True)


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("checks: []\n", "is a check file", "kvplan check"),
        ("services: {a: 1}\n", "is a manifest of servers", "kvplan launch FILE"),
        ("- 1\n", "no mapping", "config.json"),
        ("layers: [\n", "my-model.yaml:", "config.json"),
        ("layers: &a none()\n", "anchor", "Write it out"),
        ("layers: full(heads=8)\n", "lacks head_dim", "It takes"),
        ("model_type: llama\nnum_hidden_layers: x\n", "num_hidden_layers", ""),
    ],
)
def test_other_files_in_yaml(file: Path, text: str, words: str, hint: str) -> None:
    """The message names the file, and the hint says what it should be."""
    file.write_text(text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        load_model(file)
    assert words in caught.value.message
    assert hint in caught.value.hint


def test_on_the_command_line(capsys: Capture, file: Path) -> None:
    """Exit 2 for an option, 3 for a file, and command lines in the answer keep the layers."""
    code, out, _ = run(capsys, "--layers-of", HYBRID, "--seq", "32k", "--json")
    assert (code, json.loads(out)["cache"]["total_bytes"]) == (0, 50_801_664)
    assert f"--layers-of '{HYBRID}'" in run(capsys, "--layers-of", HYBRID, "--seq", "32k")[1]
    assert run(capsys, "--layers-of", "full(", "--seq", "32k")[0] == 2
    served = ("--layers-of", HYBRID, "--parameters", "7B", "--seq", "8k", "--engine", "vllm", "--gpu", "h100")
    assert "vllm serve" not in run(capsys, *served)[1]
    code, _, said = run(capsys, *served, "--emit", "vllm")
    assert (code, "no command starts written-layers" in said) == (2, True)
    assert run(capsys, "compare", "--layers-of", HYBRID, "--dtype", "bf16,fp8", "--seq", "32k")[0] == 0
    file.write_text("layers: full(\n", "utf-8")
    assert run(capsys, str(file), "--seq", "32k")[0] == 3
    assert run(capsys, "nowhere.yaml")[0] == 3
    code, _, said = run(capsys, HYBRID, "--seq", "32k")
    assert (code, f"kvplan --layers-of '{HYBRID}'" in said) == (3, True)


def test_the_list_of_kinds(capsys: Capture) -> None:
    """Each with what it takes; words find kinds by their names and by what they keep."""
    code, out, _ = run(capsys, "models", "--kinds", "--json")
    listed = {row["kind"]: row for row in json.loads(out)["kinds"]}
    assert (code, set(listed)) == (0, set(KINDS))
    required = [row["name"] for row in listed["mamba2"]["parameters"] if row["required"]]
    assert required == ["num_heads", "head_dim", "d_state", "d_conv"]
    assert listed["latent_attention"]["names"][0] == "mla"
    assert run(capsys, "models", "--kinds", "encoder")[1].splitlines()[1].startswith("cross ")
    assert run(capsys, "models", "--kinds", "warp")[0] == 3
    assert run(capsys, "models", "--kinds", "--types")[0] == 2


def test_the_page_shows_the_file() -> None:
    """The file of the worked example is the one that the page prints, and gives the sum by hand."""
    text = (ROOT / "docs" / "zephyros.yaml").read_text("utf-8")
    assert f"```yaml\n{text}```" in (ROOT / "docs" / "unknown-models.md").read_text("utf-8")
    assert plan(ROOT / "docs" / "zephyros.yaml", seq="32k").cache.total_bytes == STATES + WINDOWS


def _offered(error: ConfigError) -> str:
    """The value of --layers-of that a hint offers."""
    found = re.search(r"--layers-of '([^']+)'", error.hint)
    assert found is not None, error.hint
    return found[1]


def test_an_unknown_config_is_offered_as_layers() -> None:
    """With the types of its layers and every number that it gives: those of the arithmetic by hand."""
    with pytest.raises(UnknownArchitectureError) as caught:
        load_model(ZEPHYROS)
    layers = _offered(caught.value)
    assert layers.startswith("6*(3*mamba2(heads=64, ")
    assert plan(layers_of=layers, seq="32k").cache.total_bytes == 50_801_664
    assert "--hidden-size 2048 --intermediate-size 8192 --vocab-size 128256" in caught.value.hint
    assert "--assume" not in caught.value.hint
    # Nor is a word told that the file does not have: it says mamba2.
    assert "linear_attention" not in caught.value.hint


def test_what_the_file_does_not_say_is_a_question() -> None:
    """Nobody guesses the width of a state."""
    unsaid = {key: value for key, value in ZEPHYROS.items() if key != "mamba_d_state"}
    with pytest.raises(UnknownArchitectureError) as caught:
        load_model(unsaid)
    with pytest.raises(UsageError, match="d_state is not filled in"):
        plan(layers_of=_offered(caught.value), seq=8)
    with pytest.raises(UnknownArchitectureError) as other:
        load_model(ZEPHYROS | {"layer_types": ["warp", "sliding_attention"] * 12})
    assert _offered(other.value) == "?*? + ?*sliding(heads=16, kv_heads=4, head_dim=128, window=1024)"


def test_no_type_that_ignores_the_types_of_layers_is_offered() -> None:
    """A known type whose file has a key more goes on as that type, never as plain attention, and no module is named."""
    hybrid = {
        **ZEPHYROS, "model_type": "granitemoehybrid", "architectures": ["GraniteMoeHybridForCausalLM"], "mamba_n_heads": 64,
        "mamba_d_head": 64, "shared_intermediate_size": 8192, "num_local_experts": 0,
        "layer_types": ["mamba", "mamba", "mamba", "attention"] * 6,
    }  # fmt: skip
    with pytest.raises(UnreadKeysError, match="type granitemoehybrid does not have: sliding_window") as caught:
        load_model(hybrid)
    assert "--assume granitemoehybrid" in caught.value.hint
    assert "gqa --" not in caught.value.hint
    assert "--assume gqa" not in caught.value.hint
    assert "states." not in caught.value.message + caught.value.hint
    # While a key is not read, no number of layers is offered as if it were known.
    assert _offered(caught.value).startswith("?*")
    assert load_model(hybrid, assume="granitemoehybrid").assumed
    # Keys that say which layers keep what are not left out with a word.
    with pytest.raises(UnreadKeysError) as layout:
        load_model(
            {
                "model_type": "llama",
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "hidden_size": 64,
                "swa_layer_pattern": [1, 0],
            }
        )
    assert layout.value.command is None
    assert "marked as assumed" not in layout.value.hint


def test_a_model_says_what_it_is() -> None:
    """In its repr, and in the notes of a plan."""
    model: ModelSpec = load_model({"layers": HYBRID})
    assert repr(model) == "<ModelSpec: config, written, python>"
    assert load_model({"layers": "none()", "name": "a\x1b[31m"}).id == r"a\x1b[31m"
    assert any(note.code == "written-layers" for note in plan(model, seq=8).notes)
