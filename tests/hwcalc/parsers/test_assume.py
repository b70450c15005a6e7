"""Models of an unknown type: which known types the error proposes, what ``--assume`` takes, and what it never drops in silence."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from hwcalc import load_model, plan
from hwcalc.errors import ConfigError, KvplanError, UnknownArchitectureError, UsageError
from hwcalc.model import LEFT_OUT, UNREAD_KEYS, ModelSpec
from hwcalc.parsers.config import Config
from hwcalc.parsers.known_types import family_of, known_types
from hwcalc.parsers.registry import find_language_model, known_families
from hwcalc.parsers.unknown import nearest
from hwcalc.profiles.catalog import built_in
from tests import paths
from tests.effort import sample
from tests.hwcalc.command import Capture, run

Json = dict[str, Any]
PLAIN: Final[Json] = {
    "model_type": "from_the_future", "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
    "hidden_size": 512, "intermediate_size": 1024, "vocab_size": 1000, "torch_dtype": "bfloat16",
}  # fmt: skip
MLA: Final[Json] = {
    **PLAIN, "model_type": "deepseek_v9", "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64, "n_routed_experts": 8, "first_k_dense_replace": 1,
    "moe_intermediate_size": 256, "num_experts_per_tok": 2, "n_shared_experts": 1,
}  # fmt: skip
STATES: Final[Json] = {
    **PLAIN, "mamba_n_heads": 8, "mamba_d_head": 128, "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_d_conv": 4, "mamba_expand": 2,
    "layer_types": ["mamba", "mamba", "attention", "mamba"],
}  # fmt: skip


def kinds(model: ModelSpec) -> str:
    """The kinds of its layers, as the list of types names them."""
    return family_of(model.stack.layers)


def unread(model: ModelSpec) -> str:
    """The warning about keys that were left out of account; empty without one."""
    return " ".join(note.message for note in model.warnings if note.code == UNREAD_KEYS)


def test_the_error_proposes_the_nearest_types_and_a_whole_command() -> None:
    """An MLA file with an indexer resembles DeepSeek-V3.2; the hint has a command that works."""
    with pytest.raises(UnknownArchitectureError) as error:
        load_model(MLA)
    assert "Nearest by its keys: deepseek_v32 (mla+indexer)" in error.value.hint
    assert "kvplan config --assume deepseek_v32" in error.value.hint
    assert "kvplan models --types" in error.value.hint
    with pytest.raises(UnknownArchitectureError, match="from_the_future") as error:
        load_model(PLAIN)
    assert "(gqa)" in error.value.hint


def test_the_proposal_names_the_file(tmp_path: Path) -> None:
    """A path with a space is quoted, so that the command can be pasted."""
    path = tmp_path / "a model" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(MLA))
    with pytest.raises(UnknownArchitectureError) as error:
        load_model(path)
    assert f"kvplan '{path}' --assume deepseek_v32" in error.value.hint or f"kvplan '{path.parent}' --assume" in error.value.hint


def test_a_type_is_read_with_all_its_layers() -> None:
    """MLA and indexer: (512 + 64) x 2 B and an indexer row of 128 + 4 B for each of 4 layers. Every number says assumed."""
    result = plan(MLA, seq=10, assume="deepseek_v32")
    assert result.cache.total_bytes == 10 * 4 * ((512 + 64) * 2 + 132)
    assert result.cache.definition == "assumed"
    assert result.memory.weights.definition == "assumed"
    assert result.model.parameters.definition == "assumed"
    assert not result.warnings
    assert any("read as deepseek_v32, since --assume says so" in note.message for note in result.notes)


@pytest.mark.parametrize(
    ("config", "assume", "family"),
    [
        (MLA, "mla+indexer", "mla+indexer"),
        (MLA, "indexer + MLA", "mla+indexer"),
        (MLA, "dsa+mla", "mla+indexer"),
        (STATES, "mamba2+gqa", "mamba2+gqa"),
        (STATES, "granitemoehybrid", "mamba2+gqa"),
        (PLAIN, "mqa", "gqa"),
        (PLAIN, "qwen3", "gqa"),
        (
            {**PLAIN, "sliding_window": 16, "layer_types": ["full_attention", "sliding_attention"] * 2},
            "gqa+sliding",
            "gqa+sliding",
        ),
    ],
)
def test_kinds_of_layers(config: Json, assume: str, family: str) -> None:
    """A combination of kinds stands for the nearest type with exactly these."""
    model = load_model(config, assume=assume)
    assert kinds(model) == family
    assert model.assumed
    assert not unread(model)


def test_a_document_of_several_parts() -> None:
    """The type may be that of the whole document; its language model's keys stand one level deeper."""
    config = {"model_type": "from_the_future", "text_config": {**PLAIN, "model_type": "from_the_future_text"}}
    for assume in ("qwen2_vl", "qwen2_vl_text", "gqa"):
        assert load_model(config, assume=assume).stack.layers == load_model(PLAIN, assume="gqa").stack.layers


@pytest.mark.parametrize(
    ("keys", "assume", "named"),
    [
        (MLA, "gqa", ("kv_lora_rank", "index_topk")),
        (MLA, "deepseek_v3", ("index_topk",)),
        ({**STATES, "layer_types": None}, "gqa", ("mamba_d_state", "mamba_n_heads")),
        ({**PLAIN, "num_kv_shared_layers": 2}, "llama", ("num_kv_shared_layers",)),
        ({**PLAIN, "num_kv_shared_layers": 2}, "gqa", ("num_kv_shared_layers",)),
        ({**PLAIN, "linear_num_value_heads": 32, "linear_key_head_dim": 128}, "qwen3", ("linear_num_value_heads",)),
        ({**PLAIN, "ssm_cfg": {"d_state": 64}}, "gqa", ("ssm_cfg",)),
        ({**PLAIN, "mixer": {"kv_lora_rank": 64}}, "gqa", ("mixer.kv_lora_rank",)),
    ],
)
def test_what_bears_on_memory_is_never_dropped_in_silence(keys: Json, assume: str, named: tuple[str, ...]) -> None:
    """Keys that change the cache and that the assumed type does not read: the plan names them in a warning and says assumed."""
    result = plan(keys, seq=8, assume=assume)
    warning = next(note.message for note in result.warnings if note.code == UNREAD_KEYS)
    assert all(name in warning for name in named)
    assert "left out of account" in warning
    assert result.cache.definition == "assumed"
    assert plan(keys, seq=8, assume=assume, weights="bf16").warnings == result.warnings


def test_a_warning_names_the_nearer_type() -> None:
    """Plain attention is not what a file with a latent keeps."""
    assert "--assume deepseek_v32" in unread(load_model(MLA, assume="gqa"))


def test_a_type_that_cannot_read_the_file_is_an_error() -> None:
    """A state-space model needs its own keys; defaults of the class are named in a note."""
    with pytest.raises(ConfigError):
        load_model({**PLAIN, "num_attention_heads": 7}, assume="llama")
    with pytest.raises(ConfigError, match="num_heads x head_dim") as error:
        load_model(PLAIN, assume="mamba2")
    assert "Nearest by its keys" in error.value.hint
    with pytest.raises(ConfigError, match="linear_attention"):
        load_model(STATES, assume="gqa")
    warnings = load_model(PLAIN, assume="deepseek_v3").warnings
    assert any("kv_lora_rank 512" in note.message for note in warnings if note.code == LEFT_OUT)


def test_an_assumption_that_is_not_needed() -> None:
    """A known type is read as what it is, a draft beside an unknown model too; a note says so."""
    model = load_model({**PLAIN, "model_type": "llama"}, assume="deepseek_v32")
    assert kinds(model) == "gqa"
    assert not model.assumed
    assert any(note.code == "assume-unused" for note in model.notes)


def test_a_known_type_with_keys_that_nobody_reads() -> None:
    """The other use of ``--assume``: its own type, or another one that reads them."""
    odd = {**PLAIN, "model_type": "llama", "kv_lora_rank": 512, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 64}
    assert kinds(load_model(odd, assume="gqa")) == "gqa"
    assert "kv_lora_rank" in unread(load_model(odd, assume="gqa"))
    assert kinds(load_model({**odd, "q_lora_rank": 64}, assume="deepseek_v3")) == "mla"


@pytest.mark.parametrize(
    ("assume", "hint"),
    [
        ("deepseek_v33", "Did you mean deepseek_v3"),
        ("mamba2+mla", "No known type has these layers together"),
        ("", "Allowed: gqa"),
        ("+", "Allowed: gqa"),
        ("x" * 10_000, "Allowed: gqa"),
        ("gqa+", "Allowed: gqa"),
    ],
)
def test_names_that_are_not_known(assume: str, hint: str) -> None:
    """The hint says what is allowed, and where the list is."""
    with pytest.raises(UsageError) as error:
        load_model(PLAIN, assume=assume)
    assert hint in error.value.hint
    assert "kvplan models --types" in error.value.hint
    assert len(error.value.message) < 200


@pytest.mark.parametrize("value", [None, 0, -1, 10**9, 1.5, "8", [], {}, True, float("nan"), 2**70])
@pytest.mark.parametrize("key", ["num_hidden_layers", "kv_lora_rank", "layer_types", "text_config", "index_topk", "hidden_size"])
def test_hostile_values(key: str, value: object) -> None:
    """Anything is a plan or one of our errors."""
    for assume in (None, "gqa", "deepseek_v32", "mamba2+gqa", "mla"):
        with suppress(KvplanError):
            assert load_model({**MLA, key: value}, assume=assume).stack


def _published() -> list[tuple[Mapping[str, Any], str, str]]:
    """The level of each catalog model that its family reads, its type, and its kinds of layers."""
    out = []
    for path in sorted(Path(built_in("models")).glob("*/*.json")):
        found = find_language_model(Config(json.loads(path.read_text(encoding="utf-8"))["config"]))
        assert found is not None
        family, config = found
        out.append((config.raw, config.model_type or "", family_of(family.read(config).layers)))
    return out


def test_published_models_resemble_their_own_family() -> None:
    """By its keys alone, with its type taken away, a published model is proposed a type with the same kinds of layers.

    Files whose ``sliding_window`` is null look like both families.
    """
    models = sample(_published(), 60)
    hits = sum(any(family in known_types()[name].families for name in nearest(raw)) for raw, _, family in models)
    first = sum(any(family in known_types()[name].families for name in nearest(raw, most=1)) for raw, _, family in models)
    assert hits >= 0.95 * len(models)
    assert first >= 0.9 * len(models)
    named = sum(model_type in nearest(raw, like=model_type) for raw, model_type, _ in models)
    assert named >= 0.75 * len(models)


def test_the_table_of_types_is_up_to_date() -> None:
    """``scripts/known_types.py`` writes it: each type of the index, but for the few that refuse every file or need parts."""
    done = subprocess.run(
        [sys.executable, "scripts/known_types.py", "--check"], cwd=paths.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"blt", "reformer", "xlnet"} >= set(known_families()) - set(known_types())


# --- what a newcomer pastes -------------------------------------------------------------------------------------------

LLAMA_LIKE: Final[Json] = {
    "model_type": "mylm", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "num_hidden_layers": 32, "vocab_size": 128256, "torch_dtype": "bfloat16",
}  # fmt: skip
DENSE_MLA: Final[Json] = {
    **LLAMA_LIKE, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"max_position_embeddings": 32_768},
        {"rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 5e5, "max_position_embeddings": 32_768, "head_dim": 128},
        {"model_type": None},
        {"model_type": "optimus", "max_position_embeddings": 32_768},
    ],
)
def test_llama_is_the_nearest_of_a_plain_file(more: Json) -> None:
    """A type that reads 8 key/value heads and the width of the MLP: 4 GiB for 32,768 tokens and not 16."""
    config = {**LLAMA_LIKE, **more}
    with pytest.raises(UnknownArchitectureError) as error:
        load_model(config)
    assert error.value.command is not None
    assert error.value.command[1]["assume"] == "llama"
    result = plan(config, seq="32k", assume="llama")
    assert result.cache.total_bytes == 2 * 32 * 8 * 128 * 2 * 32_768
    assert not result.warnings


def test_people_have_models_of_the_nearest_types() -> None:
    """Text decoders with published models come first, also for a file that says very little."""
    few = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    assert all(known_types()[name].published and "cross" not in "".join(known_types()[name].families) for name in nearest(few))


@pytest.mark.parametrize("assume", ["opt", "gpt2", "gpt_neo", "gpt_bigcode"])
def test_a_type_that_passes_over_heads_says_so(assume: str) -> None:
    """OPT has no key/value heads of its own, and its MLP has another key: both are named, and weights are not counted."""
    result = plan({**LLAMA_LIKE, "max_position_embeddings": 65_536}, seq="32k", assume=assume)
    warning = next(note.message for note in result.warnings if note.code == UNREAD_KEYS)
    assert "num_key_value_heads" in warning
    assert "--assume llama" in warning
    assert assume == "gpt_neo" or result.memory.weights.bytes is None


def test_a_window_is_never_dropped_in_silence() -> None:
    """Qwen uses a window only where its file says so; a file of another type that says that its window is off loses nothing."""
    windowed = {**LLAMA_LIKE, "sliding_window": 128}
    assert kinds(load_model(windowed, assume="mistral")) == "sliding"
    for assume in ("qwen2", "exaone"):
        assert "sliding_window" in unread(load_model(windowed, assume=assume))
    assert not unread(load_model({**windowed, "use_sliding_window": False}, assume="qwen2"))


def test_experts_of_a_class_are_no_experts_of_a_file() -> None:
    """A dense MLA file has no experts: the 256 of DeepSeek-V3 are named, and its weights are not counted."""
    result = plan(DENSE_MLA, seq=8, assume="deepseek_v3")
    warning = next(note.message for note in result.warnings if note.code == LEFT_OUT)
    assert "n_routed_experts 256" in warning
    assert "Weights are not counted" in warning
    assert result.model.parameters.total is None
    assert result.memory.weights.bytes is None
    assert result.cache.total_bytes == 8 * 32 * (512 + 64) * 2
    hybrid = {**LLAMA_LIKE, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 256,
              "attn_layer_period": 8, "attn_layer_offset": 4}  # fmt: skip
    assert load_model(hybrid, assume="jamba").parameters is None
    assert load_model({**hybrid, "num_experts": 1}, assume="jamba").parameters is None


def test_the_longest_sequence_of_an_assumed_class_says_nothing() -> None:
    """OPT was trained with 2,048 tokens; a file that does not say its own maximum has none."""
    model = load_model(LLAMA_LIKE, assume="opt")
    assert model.max_position_embeddings is None
    assert load_model({**LLAMA_LIKE, "max_position_embeddings": 99}, assume="opt").max_position_embeddings == 99


def test_kinds_that_the_file_does_not_place() -> None:
    """No key says which layers are attention: an error with the keys that would, not a stack of one kind."""
    config = {key: value for key, value in STATES.items() if key != "layer_types"}
    with pytest.raises(ConfigError, match=r"does not say which layers keep what.*layer_types") as error:
        load_model(config, assume="mamba2+gqa")
    assert error.value.exit_code == 3
    assert "kvplan config --assume" in error.value.hint


HYBRID: Final[Json] = {
    **PLAIN, "model_type": "zephyros", "num_hidden_layers": 24, "head_dim": 64, "sliding_window": 1024, "max_position_embeddings": 131_072,
    "layer_types": ["mamba2", "mamba2", "mamba2", "sliding_attention"] * 6, "mamba_n_heads": 64, "mamba_d_head": 64,
    "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2,
}  # fmt: skip
"""18 of 24 layers keep states of Mamba-2, the others windows: no known type has the two together."""


def test_no_type_is_proposed_that_passes_over_the_layers(capsys: Capture, tmp_path: Path) -> None:
    """phi4flash reads the file with 8 layers of full attention and no state at all: it is not offered, and nor is plain attention.

    Whoever names it gets it, with a warning that names ``layer_types``.
    """
    path = tmp_path / "config.json"
    path.write_text(json.dumps(HYBRID))
    status, _, err = run(capsys, str(path), "--seq", "32k")
    assert status == 3
    assert "--assume" not in err
    assert "layer_types" in err
    assert "layer_types" in unread(load_model(HYBRID, assume="phi4flash"))
    assert "phi4flash" not in nearest(HYBRID)


def test_what_is_proposed_follows_the_layers() -> None:
    """Published configs under an unknown name: a command that the error offers leaves no key out of account that places layers."""
    proposed = 0
    for path in sorted(Path(built_in("models")).glob("*/*.json"))[::25]:
        config = {**json.loads(path.read_text())["config"], "model_type": "from_the_future", "architectures": ["FromTheFuture"]}
        try:
            load_model(config)
        except ConfigError as caught:
            error = caught
        else:
            # A part of the document has a known type.
            continue
        if error.command is not None:
            proposed += 1
            told = unread(load_model(config, assume=error.command[1]["assume"]))
            assert "layer_types" not in told, (path, error.hint)
            assert "pattern" not in told, (path, error.hint)
    assert proposed > 10


def test_an_error_of_the_file_is_named_at_once(capsys: Capture, tmp_path: Path) -> None:
    """Two layer types for 24 layers: no type reads that, so that no command is offered that would fail."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA_LIKE, "num_hidden_layers": 24, "layer_types": ["full_attention", "sliding_attention"]}))
    status, _, err = run(capsys, str(path), "--seq", "1k")
    assert status == 3
    assert "layer_types, which is 2 layers long, and num_hidden_layers 24 disagree" in err
    assert "a mylm" not in err
    assert "--assume" not in err
    status, _, err = run(capsys, str(path), "--seq", "1k", "--assume", "gqa")
    assert status == 3
    assert f"{path}: layer_types is 2 items long" in err
    assert "--assume" not in err


def test_what_is_missing_is_missing_for_plain_attention(capsys: Capture, tmp_path: Path) -> None:
    """Nobody knows what a config of this type needs."""
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "zephyros", "hidden_size": 4}')
    assert "num_hidden_layers is missing: plain attention needs it." in run(capsys, str(path))[2]


@pytest.mark.parametrize("command", [(), ("explain",), ("recommend",)])
def test_the_command_keeps_what_was_typed(capsys: Capture, tmp_path: Path, command: tuple[str, ...]) -> None:
    """The hint is pasted: lengths and hardware are in it, and it gives an answer."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_LIKE))
    words = (*command, str(path), "--seq", "32k", *(() if command else ("--engine", "vllm", "--gpu", "h100-sxm5-80gb")))
    _, _, err = run(capsys, *words)
    line = next(part for part in err.split(": ") if part.startswith("kvplan ")).split("; as plain")[0]
    assert line == " ".join(("kvplan", *words, "--assume llama"))
    assert run(capsys, *line.split()[1:])[0] == 0
    assert "--vocab-size 128256\n" in err, "a full stop there would be read as a part of the number"


def test_a_number_as_text(capsys: Capture, tmp_path: Path) -> None:
    """The quotes are shown, and the file is named."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA_LIKE, "model_type": "llama", "num_hidden_layers": "32"}))
    _, _, err = run(capsys, str(path), "--seq", "1k")
    assert f'{path}: num_hidden_layers is "32", but must be a whole number' in err


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"model_type": "llama", "num_hidden_layers": 32}, ("hidden_size 4096", "num_attention_heads 32")),
        (
            {"model_type": "qwen3", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "head_dim": 128},
            ("num_key_value_heads 32",),
        ),
    ],
)
def test_forgotten_dimensions_are_a_warning(capsys: Capture, tmp_path: Path, config: Json, named: tuple[str, ...]) -> None:
    """The number is what transformers would build; whoever forgot a key reads so in the shortest answer too."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    _, out, _ = run(capsys, str(path), "--seq", "1k", "--brief")
    assert "The config leaves out" in out
    assert all(name in " ".join(out.split()) for name in named)
    assert plan(path, seq=1).cache.definition == "exact"


def test_published_files_leave_out_what_they_may() -> None:
    """Models of the catalog rely on the defaults of their classes: a note says so, never a warning."""
    for path in sorted(Path(built_in("models")).glob("*/*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        assert all(note.code != LEFT_OUT for note in load_model(document["id"], offline=True).warnings), path.stem


def test_a_head_that_the_class_ties_is_said() -> None:
    """Youtu ties its head, which this file does not say. With one of its own it has 32,000 x 2,048 parameters more, as the written layers have."""
    config = {
        "model_type": "of_ones_own", "num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16,
        "kv_lora_rank": 384, "q_lora_rank": None, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
        "intermediate_size": 8192, "vocab_size": 32_000,
    }  # fmt: skip
    silent, said = load_model(config, assume="youtu"), load_model(config | {"tie_word_embeddings": False}, assume="youtu")
    assert any("tie_word_embeddings true" in note.message for note in silent.warnings)
    assert not any("tie_word_embeddings" in note.message for note in said.warnings)
    assert silent.counted is not None
    assert said.counted is not None
    assert said.counted.total - silent.counted.total == 32_000 * 2_048
