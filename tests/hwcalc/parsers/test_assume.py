"""Models of an unknown type: which known types the error proposes, what ``--assume`` takes, and what it never drops in silence."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from hwcalc import load_model, plan
from hwcalc.errors import ConfigError, UnknownArchitectureError, UsageError
from hwcalc.model import LEFT_OUT, UNREAD_KEYS, ModelSpec
from hwcalc.parsers.known_types import family_of, known_types
from hwcalc.parsers.registry import known_families
from hwcalc.profiles.catalog import built_in
from tests import paths
from tests.effort import sample
from tests.hwcalc.command import Capture, run

Json = dict[str, Any]
PLAIN: Final[Json] = {
    "model_type": "from_the_future", "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
    "hidden_size": 512, "intermediate_size": 1024, "vocab_size": 1000, "torch_dtype": "bfloat16",
}  # fmt: skip
LATENT: Final[Json] = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
MLA: Final[Json] = {
    **PLAIN, **LATENT, "model_type": "deepseek_v9", "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64, "n_routed_experts": 8,
    "first_k_dense_replace": 1, "moe_intermediate_size": 256, "num_experts_per_tok": 2, "n_shared_experts": 1,
}  # fmt: skip
STATES: Final[Json] = {
    **PLAIN, "mamba_n_heads": 8, "mamba_d_head": 128, "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_d_conv": 4, "mamba_expand": 2,
    "layer_types": ["mamba", "mamba", "attention", "mamba"],
}  # fmt: skip
HYBRID: Final[Json] = {**STATES, "sliding_window": 1024, "layer_types": ["mamba2", "mamba2", "mamba2", "sliding_attention"]}
"""No known type has states and windows together."""


def kinds(model: ModelSpec) -> str:
    """The kinds of its layers, as the list of types names them."""
    return family_of(model.stack.layers)


def warned(model: ModelSpec, code: str = UNREAD_KEYS) -> str:
    """The warnings about keys that were left out of account; empty without one."""
    return " ".join(note.message for note in model.warnings if note.code == code)


@pytest.mark.parametrize("command", ["", "explain", "recommend"])
@pytest.mark.parametrize(
    ("config", "named"), [(MLA, "deepseek_v32 (mla+indexer)"), (PLAIN | {"model_type": None}, "llama (gqa)")]
)
def test_the_error_proposes_a_whole_command(config: Json, named: str, command: str, capsys: Capture, tmp_path: Path) -> None:
    """For the nearest type, with what was typed, also for a path with a space: it gives an answer."""
    path = tmp_path / "a config.json"
    path.write_text(json.dumps(config))
    _, _, said = run(capsys, *command.split(), str(path), "--seq", "1k")
    line = next(part for part in said.split(": ") if part.startswith("kvplan ")).partition(";")[0]

    assert f"Nearest by its keys: {named}" in said
    assert shlex.split(line) == ["kvplan", *command.split(), str(path), "--seq", "1k", "--assume", named.partition(" ")[0]]
    assert run(capsys, *shlex.split(line)[1:])[0] == 0


def test_a_type_is_read_with_all_its_layers() -> None:
    """MLA and indexer: (512 + 64) x 2 B and an indexer row of 128 + 4 B for each of 4 layers. Every number says assumed."""
    result = plan(MLA, seq=10, assume="deepseek_v32")
    assert result.cache.total_bytes == 10 * 4 * ((512 + 64) * 2 + 132)
    assert {"assumed"} == {result.cache.definition, result.memory.weights.definition, result.model.parameters.definition}
    assert any("read as deepseek_v32, since --assume says so" in note.message for note in result.notes)


@pytest.mark.parametrize(
    ("config", "assume", "family"),
    [
        (MLA, "indexer + MLA", "mla+indexer"), (MLA, "dsa+mla", "mla+indexer"), (STATES, "mamba2+gqa", "mamba2+gqa"),
        (STATES, "granitemoehybrid", "mamba2+gqa"), (PLAIN, "mqa", "gqa"), (PLAIN, "qwen3", "gqa"), ({"text_config": PLAIN}, "qwen2_vl", "gqa"),
        ({**PLAIN, "sliding_window": 16, "layer_types": ["full_attention", "sliding_attention"] * 2}, "gqa+sliding", "gqa+sliding"),
        ({**PLAIN, "sliding_window": 128}, "mistral", "sliding"),
    ],
)  # fmt: skip
def test_kinds_of_layers(config: Json, assume: str, family: str) -> None:
    """A combination of kinds stands for the nearest type with exactly these."""
    model = load_model(config, assume=assume)
    assert kinds(model) == family
    assert model.assumed
    assert not warned(model)


@pytest.mark.parametrize(
    ("config", "assume", "named"),
    [
        (MLA, "gqa", "kv_lora_rank index_topk"), (MLA, "deepseek_v3", "index_topk"),
        ({**STATES, "layer_types": None}, "gqa", "mamba_d_state mamba_n_heads"), ({**PLAIN, "num_kv_shared_layers": 2}, "llama", "num_kv_shared_layers"),
        ({**PLAIN, "ssm_cfg": {"d_state": 64}}, "gqa", "ssm_cfg.d_state"), ({**PLAIN, "mixer": {"kv_lora_rank": 64}}, "gqa", "mixer.kv_lora_rank"),
        ({**PLAIN, "sliding_window": 128}, "qwen2", "sliding_window"), (HYBRID, "phi4flash", "layer_types"),
        ({**PLAIN, "linear_num_value_heads": 32}, "qwen3", "linear_num_value_heads"),
        # OPT has no key/value heads of its own.
        (PLAIN, "opt", "num_key_value_heads"),
        # Numbers and words of which nobody knows what they mean.
        ({**PLAIN, "memory_width": 384, "d_rope": 64}, "llama", "memory_width d_rope"), ({**PLAIN, "mixing": "mla"}, "gqa", "mixing"),
    ],
)  # fmt: skip
def test_what_may_bear_on_memory_is_never_dropped_in_silence(config: Json, assume: str, named: str) -> None:
    """Keys that the assumed type does not read: the plan names them in a warning and says assumed, and such a type is not proposed."""
    result = plan(config, seq=8, assume=assume)
    warning = next(note.message for note in result.warnings if note.code == UNREAD_KEYS)
    assert all(name in warning for name in named.split())
    assert "left out of account" in warning
    assert result.cache.definition == "assumed"
    with pytest.raises(UnknownArchitectureError) as caught:
        load_model(config)
    assert caught.value.command is None or caught.value.command[1]["assume"] != assume
    assert "as plain attention" not in caught.value.hint or config is PLAIN


@pytest.mark.parametrize(
    ("config", "assume", "message"),
    [
        ({**PLAIN, "num_attention_heads": 7}, "llama", "num_key_value_heads"), (PLAIN, "mamba2", "head_dim 64, expand 2 of its class do not go with the file: num_heads is 128"), (STATES, "gqa", "linear_attention"),
        (HYBRID, "mamba2+gqa", "no known type with these layers reads"), (STATES | {"layer_types": None}, "mamba2+gqa", "does not say which layers keep what"),
        # The class's own heads and widths, beside numbers under names that no type has.
        ({"num_hidden_layers": 4, "n_query_heads": 16, "n_kv": 4, "width": 64}, "llama", "does not read n_query_heads 16, n_kv 4"),
        ({key: value for key, value in PLAIN.items() if key != "num_key_value_heads"} | {"n_kv": 4}, "llama", "does not read n_kv 4"),
        # A latent, its rotary key and states of other names than those of the class that has them.
        *((PLAIN | {"latent_width": 384, "rotary_width": 64}, assume, "latent_width 384, rotary_width 64 of config") for assume in ("mla", "minicpm3", "deepseek_v3")),
        ({**PLAIN, **LATENT, "qk_rope_head_dim": None, "rotary_width": 64}, "deepseek_v3", "qk_rope_head_dim is missing"),
        ({key: value for key, value in (PLAIN | LATENT).items() if key != "qk_rope_head_dim"} | {"rotary_width": 64}, "deepseek_v3", "does not read rotary_width 64"),
        ({key: value for key, value in STATES.items() if key != "mamba_d_state"} | {"state_width": 64}, "granitemoehybrid", "does not read state_width 64"),
        ({key: value for key, value in STATES.items() if key != "mamba_n_groups"} | {"state_groups": 4}, "mamba2+gqa", "reads state_groups 4 of"),
        ({"num_attention_heads": 4}, "llama", "finds no number of layers"), ({"hidden_size": 4}, "gqa", "num_hidden_layers is missing"),
        ({**PLAIN, "layer_types": ["full_attention", "sliding_attention"]}, "gqa", "layer_types is 2 items long"),
    ],
)  # fmt: skip
def test_no_number_is_made_of_class_defaults(config: Json, assume: str, message: str) -> None:
    """A type that cannot read the file, or that would answer with numbers of its class, is an error."""
    with pytest.raises(ConfigError, match=message) as error:
        load_model(config, assume=assume)
    assert error.value.exit_code == 3


def test_a_faulty_quantisation_is_named_at_once() -> None:
    """No command is offered that would end at it."""
    with pytest.raises(ConfigError, match=r"quantization_config is .*, but must be an object") as error:
        load_model({**PLAIN, "quantization_config": ["zeph"]})
    assert error.value.command is None


def test_a_known_type_is_read_as_what_it_is() -> None:
    """Where nothing is unread a note says that nothing was assumed; otherwise it is read as it says."""
    model = load_model({**PLAIN, "model_type": "llama"}, assume="deepseek_v32")
    assert kinds(model) == "gqa"
    assert any(note.code == "assume-unused" for note in model.notes)
    odd = {**PLAIN, **LATENT, "model_type": "llama"}
    assert "kv_lora_rank" in warned(load_model(odd, assume="gqa"))
    assert kinds(load_model(odd, assume="deepseek_v3")) == "mla"


@pytest.mark.parametrize(
    ("assume", "hint"),
    [
        ("deepseek_v33", "Did you mean deepseek_v3"),
        ("mamba2+mla", "No known type has these layers together"),
        ("gqa+", "Allowed: gqa"),
    ],
)
def test_names_that_are_not_known(assume: str, hint: str) -> None:
    """The hint says what is allowed, and where the list is."""
    with pytest.raises(UsageError) as error:
        load_model(PLAIN, assume=assume)
    assert hint in error.value.hint
    assert "kvplan models --types" in error.value.hint


def test_what_is_proposed_reads_the_whole_file() -> None:
    """Published configs under an unknown name: most are proposed a type, which has the kinds of their own family and warns of nothing unread."""
    proposed, alike, files = 0, 0, sample(sorted(Path(built_in("models")).glob("*/*.json")), 60)
    for path in files:
        own = json.loads(path.read_text())["config"]
        config = {**own, "model_type": "from_the_future", "architectures": ["FromTheFuture"]}
        try:
            load_model(config)
        except ConfigError as error:
            command = error.command
        else:
            # A part of the document has a known type.
            continue
        if command is not None:
            name = command[1]["assume"]
            proposed += 1
            assert not warned(load_model(config, assume=name)), (path, name)
            # A file may leave out windows that only its own class knows.
            alike += kinds(load_model(own)) == kinds(load_model(config, assume=name))
    assert proposed > len(files) / 2
    assert alike >= 0.95 * proposed


def test_the_table_of_types_is_up_to_date() -> None:
    """``scripts/known_types.py`` writes it: each type of the index, but for the few that refuse every file or need parts."""
    words = [sys.executable, "scripts/known_types.py", "--check"]
    done = subprocess.run(words, cwd=paths.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"blt", "reformer", "xlnet"} >= set(known_families()) - set(known_types())


def test_experts_and_heads_of_a_class_are_not_those_of_a_file() -> None:
    """The 256 experts of DeepSeek-V3, Youtu's tied head and OPT's longest sequence are named, or say nothing."""
    latent = {**PLAIN, **LATENT, "q_lora_rank": None}
    result = plan(latent, seq=8, assume="deepseek_v3")
    assert "n_routed_experts 256" in warned(load_model(latent, assume="deepseek_v3"), LEFT_OUT)
    assert result.memory.weights.bytes is None
    assert result.cache.total_bytes == 8 * 4 * (512 + 64) * 2
    silent, said = (load_model(latent | tied, assume="youtu") for tied in ({}, {"tie_word_embeddings": False}))
    assert "tie_word_embeddings true" in warned(silent, LEFT_OUT)
    assert not warned(said, LEFT_OUT)
    assert said.parameters.total - silent.parameters.total == 1000 * 512, "a head of its own"  # type: ignore[union-attr, operator]
    assert [load_model(PLAIN | keys, assume="opt").max_position_embeddings for keys in ({}, {"max_seq_len": 99})] == [None, 99]
