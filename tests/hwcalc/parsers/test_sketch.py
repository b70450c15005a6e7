"""Configs of architectures that nobody knows: the layers that the error writes down, and the bytes that they take, each by hand."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from hwcalc import load_model, plan
from hwcalc.errors import ConfigError, UnknownArchitectureError, UnreadKeysError
from hwcalc.formulas import Layer, NoCache
from hwcalc.model import RawModel
from hwcalc.parsers.key_words import words_of
from hwcalc.parsers.sketch import UNKNOWN, Sketch, sketched
from hwcalc.parsers.unknown import language_config
from hwcalc.parsers.written import read_layers
from hwcalc.profiles.catalog import built_in
from tests.effort import sample
from tests.hwcalc.command import Capture, run

Json = dict[str, Any]
N: Final = 8_192
"""Tokens of each plan below."""
ATTENTION: Final[Json] = {
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "hidden_size": 2048,
}
KV: Final = 2 * 4 * 128 * 2
"""Bytes of a token of such a layer: keys and values of four heads of 128 numbers in bf16."""
SSM: Final[Json] = {"ssm_heads": 64, "ssm_head_dim": 64, "ssm_state": 128, "ssm_groups": 1, "ssm_conv": 4}
MAMBA2: Final = 64 * 64 * 128 * 4 + 3 * (64 * 64 + 2 * 128) * 2
"""Bytes of a layer of Mamba-2: a state of 64 x 128 fp32 numbers a head, and three inputs of the convolution over x, B and C."""
DELTA: Final[Json] = {
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
}  # fmt: skip
GDN: Final = 32 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 32 * 128) * 2
LATENT: Final[Json] = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}

CONFIGS: Final[Mapping[str, tuple[Json, int]]] = {
    # Layers listed by their types. The kind of a state is settled by its parameters, whatever the file calls it.
    "mamba-2 by its heads": (ATTENTION | SSM | {"sliding_window": 1024, "layer_types": ["ssm", "ssm", "ssm", "sliding_attention"] * 6}, 18 * MAMBA2 + 6 * 1024 * KV),
    "mamba-2 by prefixes": (
        ATTENTION | {"mamba_n_heads": 64, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4, "layer_types": ["mamba", "attention"] * 12},
        12 * MAMBA2 + 12 * N * KV,
    ),
    "mamba-2 by its expansion": (
        ATTENTION | {"ssm_expand": 2, "ssm_headdim": 64, "ssm_d_state": 128, "ssm_ngroups": 1, "ssm_conv_kernel": 4, "block_types": ["ssm", "attn"] * 12},
        12 * MAMBA2 + 12 * N * KV,
    ),
    "mamba-1": (
        ATTENTION | {"mamba_expand": 2, "mamba_d_state": 16, "mamba_d_conv": 4, "layers_block_type": ["mamba"] * 20 + ["attention"] * 4},
        20 * (4096 * 16 * 4 + 3 * 4096 * 2) + 4 * N * KV,
    ),
    "a nested object": (
        ATTENTION | {"ssm": {"heads": 64, "head_dim": 64, "state": 128, "groups": 1, "conv_kernel": 4}, "layer_mixers": ["ssm", "global"] * 12},
        12 * MAMBA2 + 12 * N * KV,
    ),
    "gated delta net every fourth full": (ATTENTION | DELTA | {"full_attention_interval": 4}, 18 * GDN + 6 * N * KV),
    "delta net in other words": (
        ATTENTION | {"gdn_key_heads": 16, "gdn_value_heads": 32, "gdn_key_dim": 128, "gdn_value_dim": 128, "gdn_conv_size": 4, "layer_types": ["gdn", "full"] * 12},
        12 * GDN + 12 * N * KV,
    ),
    "kimi delta in numbered layers": (
        ATTENTION | LATENT | {"linear_attn_config": {"num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4, "full_attn_layers": [4, 8, 12, 16, 20, 24],
                                                     "kda_layers": [i for i in range(1, 25) if i % 4]}},
        18 * (32 * 128 * 128 * 4 + 3 * 3 * 32 * 128 * 2) + 6 * N * (512 + 64) * 2,
    ),
    "lightning by codes and a table": (
        ATTENTION | {"lightning_heads": 16, "lightning_head_dim": 128, "layer_codes": [0, 0, 0, 1] * 6, "code_names": {"0": "lightning", "1": "attention"}},
        18 * 16 * 128 * 128 * 4 + 6 * N * KV,
    ),
    "rg-lru in a pattern": (
        ATTENTION | {"num_hidden_layers": 26, "lru_width": 2560, "conv1d_width": 4, "attention_window_size": 2048, "block_pattern": ["recurrent", "recurrent", "local_attention"]},
        18 * (2560 * 4 + 3 * 2560 * 2) + 8 * 2048 * KV,
    ),
    "a pattern of letters": (ATTENTION | SSM | {"hybrid_pattern": "MMM*" * 6}, 18 * MAMBA2 + 6 * N * KV),
    "letters with feed-forward layers": (ATTENTION | SSM | {"hybrid_override_pattern": "M-M-M-*-" * 3}, 9 * MAMBA2 + 3 * N * KV),
    "sliding five in six": (ATTENTION | {"sliding_window": 512, "sliding_window_pattern": 6}, 20 * 512 * KV + 4 * N * KV),
    "every third global": (ATTENTION | {"local_window": 256, "global_attn_every_n_layers": 3}, 8 * N * KV + 16 * 256 * KV),
    "sliding by yes and no": (ATTENTION | {"sliding_window": 512, "is_sliding_layer": [True, True, False] * 8}, 16 * 512 * KV + 8 * N * KV),
    "windows with heads of their own": (
        ATTENTION | {"sliding_window": 512, "swa_num_key_value_heads": 8, "swa_head_dim": 64, "layer_types": ["swa", "full"] * 12},
        12 * 512 * 2 * 8 * 64 * 2 + 12 * N * KV,
    ),
    "a window a layer": (ATTENTION | {"window_sizes": [512, None] * 12, "layer_types": ["sliding", "full"] * 12}, 12 * 512 * KV + 12 * N * KV),
    "heads by layer": ({"num_layers": 4, "dim": 1024, "n_heads": 16, "n_kv_heads_per_layer": [2, 4, 4, 8], "head_dim": 64}, N * 2 * (2 + 4 + 4 + 8) * 64 * 2),
    "two kinds at once": (ATTENTION | SSM | {"layer_types": ["ssm+attention"] * 24}, 24 * (MAMBA2 + N * KV)),
    "letters that settle each other": (
        ATTENTION | {"swa_window": 2048, "mamba": {"d_state": 16, "d_conv": 4, "expand": 2}, "layer_pattern": "MS"}, 12 * (4096 * 16 * 4 + 3 * 4096 * 2) + 12 * 2048 * KV,
    ),
    "cross attention in some layers": (ATTENTION | {"cross_attention_layers": [3, 8, 13, 18]}, 20 * N * KV + 4 * 100 * KV),
    "latents with an indexer": (LATENT | {"num_layers": 24, "num_heads": 64, "index_head_dim": 128, "index_n_heads": 32}, 24 * N * ((512 + 64) * 2 + 132)),
    "gated linear attention": ({"num_layers": 24, "d_model": 2048, "gla_heads": 4, "gla_key_dim": 256, "gla_value_dim": 512}, 24 * 4 * 256 * 512 * 4),
    "mlstm": ({"num_blocks": 24, "embedding_dim": 2048, "mlstm_heads": 4, "mlstm_qk_head_dim": 256, "mlstm_v_head_dim": 512}, 24 * 4 * (256 * 512 + 256 + 1) * 4),
    "linear attention by heads": (ATTENTION | {"full_attn_every": 3, "linear_heads": 16, "linear_head_dim": 128, "linear_conv_size": 4}, 16 * (16 * 128 * 128 * 4 + 3 * 3 * 16 * 128 * 2) + 8 * N * KV),
    "an object for all sizes": ({"sizes": {"layers": 12, "heads": 12, "kv": 2, "head": {"width": 64}}}, 12 * N * 2 * 2 * 64 * 2),
    "chunked": (ATTENTION | {"attention_chunk_size": 4096, "layer_types": ["chunked_attention", "full_attention"] * 12}, 12 * 4096 * KV + 12 * N * KV),
    "mla": (ATTENTION | LATENT, 24 * N * (512 + 64) * 2),
    "mla in other words": (
        {"n_layers": 24, "d_model": 2048, "n_heads": 16, "kv_latent_dim": 384, "rope_head_dim": 64, "nope_head_dim": 64, "d_value": 64}, 24 * N * (384 + 64) * 2,
    ),
    # As the paper of DeepSeek-V2 calls the widths of the latent and of the rotary key.
    "mla as in the paper": ({"n_layers": 24, "d_model": 2048, "n_heads": 16, "d_c": 384, "d_r": 64}, 24 * N * (384 + 64) * 2),
    "mla in an object": ({"num_layers": 24, "d_model": 2048, "attention": {"type": "mla", "heads": 16, "latent": 384, "rope": 64, "nope": 128}}, 24 * N * (384 + 64) * 2),
    "mla beside states": (ATTENTION | LATENT | SSM | {"layer_types": ["ssm", "ssm", "ssm", "mla"] * 6}, 18 * MAMBA2 + 6 * N * (512 + 64) * 2),
    "the last layers share": (ATTENTION | {"num_kv_shared_layers": 8}, 16 * N * KV),
    "cross attention in a decoder": ({"is_encoder_decoder": True, "decoder_layers": 6, "encoder_layers": 12, "decoder_attention_heads": 8, "d_model": 512}, 6 * (N + 100) * 2 * 512 * 2),
    "numbers of layers by kind": (ATTENTION | SSM | {"num_ssm_layers": 18, "num_attention_layers": 6}, 18 * MAMBA2 + 6 * N * KV),
    "places of attention": (ATTENTION | SSM | {"attn_layer_idx": [3, 7, 11]}, 21 * MAMBA2 + 3 * N * KV),
    "period and offset": (ATTENTION | SSM | {"attn_layer_period": 8, "attn_layer_offset": 4}, 21 * MAMBA2 + 3 * N * KV),
    "an object a layer": (
        ATTENTION | SSM | {"layer_configs": [{"type": "ssm"}, {"type": "attention", "kv_heads": 2}] * 12}, 12 * MAMBA2 + 12 * N * KV // 2,
    ),
    "states alone": ({"n_layer": 24, "d_model": 1024, "state_size": 16, "conv_kernel": 4, "expand": 2}, 24 * (2048 * 16 * 4 + 3 * 2048 * 2)),
    "rwkv": ({"num_layers": 12, "hidden_size": 768, "rwkv_heads": 12, "rwkv_head_dim": 64}, 12 * (12 * 64 * 64 * 4 + 2 * 768 * 2)),
    "short convolutions": (ATTENTION | {"conv_channels": 2048, "conv_L_cache": 3, "layer_types": ["conv", "full_attention"] * 12}, 12 * 2 * 2048 * 2 + 12 * N * KV),
    # Plain attention under names of one's own.
    "odd names": ({"depth": 24, "d_model": 2048, "n_query_heads": 16, "n_kv": 4, "per_head_width": 64, "vocab": 50_000}, 24 * N * 2 * 4 * 64 * 2),
    "other odd names": ({"num_layers": 24, "hidden": 1024, "num_q_heads": 16, "kv_heads": 4, "head_size": 64}, 24 * N * 2 * 4 * 64 * 2),
    "gpt's and others'": ({"n_layer": 24, "n_embd": 1024, "n_query_heads": 16, "n_kv": 4, "head_dim": 64}, 24 * N * 2 * 4 * 64 * 2),
    "capitals": ({"nLayers": 24, "dModel": 1024, "nHeads": 16, "nKvHeads": 4}, 24 * N * 2 * 4 * 64 * 2),
    "an object for attention": ({"n_blocks": 24, "dim": 1024, "attention": {"heads": 16, "kv_heads": 4, "head_dim": 64}}, 24 * N * 2 * 4 * 64 * 2),
    "values narrower than keys": ({"layers": 24, "q_heads": 16, "kv_heads": 4, "head_width": 64, "value_head_width": 32}, 24 * N * 4 * (64 + 32) * 2),
    "multi-query": ({"num_layers": 24, "num_heads": 16, "hidden_size": 1024, "multi_query": True}, 24 * N * 2 * 64 * 2),
    "a text model within another": ({"text_config": {"depth": 24, "n_query_heads": 16, "n_kv": 4, "per_head_width": 64}}, 24 * N * 2 * 4 * 64 * 2),
}  # fmt: skip
"""A config, and the bytes of one sequence of N tokens."""


def written(config: Json) -> Mapping[str, str]:
    """The options that the error for this config of an unknown type proposes."""
    with pytest.raises(UnknownArchitectureError) as caught:
        load_model({"model_type": "of_ones_own", **config})
    assert caught.value.written is not None, caught.value.hint
    return caught.value.written[1]


@pytest.mark.parametrize("name", CONFIGS)
def test_what_the_file_describes_is_written_down(name: str) -> None:
    """Every number is in the file, and so in the layers: the plan of what is proposed has the bytes of the calculation."""
    config, total = CONFIGS[name]
    layers = written(config)["layers_of"]

    assert UNKNOWN not in layers
    assert total == plan(layers_of=layers, seq=N, encoder_seq=100 if "cross" in layers else None).cache.total_bytes


@pytest.mark.parametrize(
    "typed", [(), ("--seq", "4k", "--dtype", "fp8"), ("--kv-heads", "2"), ("--layers", "48", "--head-dim", "64")]
)
@pytest.mark.parametrize("name", sample(CONFIGS, 16))
def test_every_command_runs(capsys: Capture, tmp_path: Path, name: str, typed: tuple[str, ...]) -> None:
    """Whatever was typed, each command of the hint gives an answer when it is pasted."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "of_ones_own", **CONFIGS[name][0]}), "utf-8")
    status, _, said = run(capsys, str(path), *typed)
    commands = [part.partition(";")[0].strip() for part in said.split(": ") if part.startswith(("kvplan -", f"kvplan {path}"))]

    assert status == 3
    assert commands
    for line in commands:
        if UNKNOWN in line:
            continue
        words = shlex.split(line.splitlines()[0])
        assert run(capsys, *words[1:])[0] == 0, line
        assert ("4k" in words) == ("4k" in typed), line


@pytest.mark.parametrize(
    "config",
    [
        ATTENTION | {"local_window": 1024, "local_to_global_ratio": 5},
        ATTENTION | {"bottleneck": 384, "pos_key": 64},
        ATTENTION | {"compressed_kv_size": 384, "decoupled_rope_size": 64},
        ATTENTION | {"attention_kind": "mla"},
        ATTENTION
        | {"sliding_window": 128, "attention_sink_size": 4, "layer_types": ["sliding_attention", "full_attention"] * 12},
        CONFIGS["heads by layer"][0],
        CONFIGS["numbers of layers by kind"][0],
        CONFIGS["an object a layer"][0],
    ],
)
def test_no_type_is_proposed_that_reads_other_layers(config: Json) -> None:
    """Windows, states and heads of each layer are what the file describes: neither a type without them nor plain attention is proposed."""
    with pytest.raises(UnknownArchitectureError) as caught:
        load_model({"model_type": "of_ones_own", **config})
    assert caught.value.command is None
    assert "--assume" not in caught.value.hint


def test_what_was_typed_changes_the_layers() -> None:
    """What-if on a file that nobody knows: its layers have the number in place of the one that the file has, under a key of its own."""
    with pytest.raises(UnknownArchitectureError) as caught:
        plan({"model_type": "of_ones_own", **CONFIGS["odd names"][0]}, seq=N, kv_heads=2)
    assert caught.value.written is not None
    assert caught.value.written[1]["layers_of"] == "24*gqa(heads=16, kv_heads=2, head_dim=64)"


def test_length_and_format_are_the_files() -> None:
    """What bears on the numbers beside the layers: 64k tokens in fp16. Weights are those of three sizes where these are all."""
    sizes = {"hidden_size": 2048, "ffn_dim": 8192, "vocab": 50_000}
    options = written(ATTENTION | sizes | {"ctx_len": 65_536, "torch_dtype": "float16"})
    assert (options["seq"], options["dtype"]) == ("64k", "fp16")
    # What a command line cannot say is said beside it, whatever was typed for --seq.
    described = sketched({"ctx_len": 65_536, **ATTENTION})
    assert described is not None
    assert any(
        "made for 65,536 tokens (ctx_len)" in line and "max_position_embeddings: 65536" in line for line in described.lines
    )
    assert (options["hidden_size"], options["intermediate_size"], options["vocab_size"]) == ("2048", "8192", "50000")
    assert "weights" not in options
    assert written(ATTENTION | sizes | {"dtype": "float32"})["weights"] == "fp32"
    assert "hidden_size" not in written(ATTENTION | sizes | {"tie_word_embeddings": True})
    assert "hidden_size" not in written(ATTENTION | sizes | {"num_experts": 8})
    assert written(CONFIGS["odd names"][0])["seq"] == "32k", "a command without a length does not run"


SIZES: Final[Json] = {"d_ff": 8192, "vocab": 32_000, "context": 131_072, "dtype": "bfloat16"}


def test_sizes_only_where_weights_follow(capsys: Capture, tmp_path: Path) -> None:
    """Layers that read the cache of others have no usual matrices: with the sizes the command would fail."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "of_ones_own", **ATTENTION, **SIZES, "kv_shared_layers": 8}), "utf-8")
    _, _, said = run(capsys, str(path), "--seq", "32k")
    line = said.partition("To plan them: ")[2].splitlines()[0]

    assert "8 x shared: shares another layer's cache" in said
    assert line == "kvplan --seq 32k --dtype bf16 --layers-of '16*gqa(heads=16, kv_heads=4, head_dim=128) + 8*shared()'"
    status, out, _ = run(capsys, *shlex.split(line)[1:])
    assert status == 0
    assert f"{16 * 32_768 * KV:,} B" in out
    status, _, said = run(capsys, *shlex.split(line)[1:], "--hidden-size", "8", "--intermediate-size", "8", "--vocab-size", "8")
    assert status == 2
    assert "the weights of layers of the kind shared do not follow from sizes alone" in said


@pytest.mark.parametrize(
    ("command", "typed", "pasted"),
    [
        ("compare A B", "--seq 32k --engine vllm --gpu l4", "compare"),
        ("compare B A", "--seq 32k,64k --engine vllm,sglang --gpu l4,l40s", "compare"),
        ("sweep A", "--seq 32k --engine vllm --gpu l4", "compare"),
        ("diff A B", "--seq 32k --engine vllm --gpu l4", ""),
        ("plot A", "--seq 32k --gpu l4", ""),
        ("recommend A", "--seq 32k --engine vllm --gpu l4", "recommend"),
    ],
)
def test_what_was_typed_is_in_the_command_of_every_other(
    capsys: Capture, tmp_path: Path, command: str, typed: str, pasted: str
) -> None:
    """Length, engine and accelerators are not the file's, and the command gives an answer."""
    paths = {"A": tmp_path / "a.json", "B": tmp_path / "b.json"}
    for path in paths.values():
        path.write_text(json.dumps({"model_type": "of_ones_own", **CONFIGS["odd names"][0], **SIZES}), "utf-8")
    status, _, said = run(capsys, *(str(paths.get(word, word)) for word in command.split()), *typed.split())
    words = shlex.split(said.partition("To plan them: ")[2].splitlines()[0])

    assert status == 3
    pairs = set(pairwise(words))
    assert all(pair in pairs for pair in zip(typed.split()[::2], typed.split()[1::2], strict=True)), words
    assert words[1] == (pasted or "--seq")
    assert run(capsys, *words[1:])[0] == 0


def test_a_type_of_one_of_several_models(capsys: Capture, tmp_path: Path) -> None:
    """A type is proposed for the model that is not known, and not for the other."""
    path, other = tmp_path / "mla.json", tmp_path / "other.json"
    path.write_text(json.dumps({"model_type": "of_ones_own", **ATTENTION, **LATENT, "num_key_value_heads": 16}), "utf-8")
    other.write_text(json.dumps({"model_type": "of_ones_own", **CONFIGS["odd names"][0]}), "utf-8")
    _, _, said = run(capsys, "compare", str(path), str(other), "--seq", "32k")
    line = said.partition("marked as assumed: ")[2].partition(";")[0]

    assert line.startswith(f"kvplan compare {path} --seq 32k --assume ")
    assert run(capsys, *shlex.split(line)[1:])[0] == 0


@pytest.mark.parametrize("width", [20, 80, 200])
def test_a_terminal_keeps_lines_and_commands(tmp_path: Path, width: int) -> None:
    """On a terminal too each line begins where it does in a pipe, and the command is one that can be pasted."""
    termios = pytest.importorskip("termios")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "of_ones_own", **CONFIGS["odd names"][0], **SIZES}), "utf-8")
    words = [sys.executable, "-m", "hwcalc", str(path), "--seq", "32k"]
    piped = subprocess.run(words, capture_output=True, text=True, check=False).stderr
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, width))
    with os.fdopen(ours, encoding="utf-8", newline="") as terminal:
        subprocess.run(words, stdout=subprocess.DEVNULL, stderr=theirs, check=False)
        os.close(theirs)
        shown = ""
        with suppress(OSError):  # Linux says so at the end.
            while piece := terminal.readline():
                shown += piece.replace("\r\n", "\n")

    command = piped.partition("To plan them: ")[2].splitlines()[0]
    assert command.startswith("kvplan --seq 32k")
    assert any(line.endswith(command) for line in shown.splitlines())
    assert shown.split() == piped.split()
    starts = [line for line in shown.splitlines() if not line.startswith("  ")]
    assert [line.split()[0] for line in starts] == [line.split()[0] for line in piped.splitlines() if not line.startswith("  ")]


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        # Nobody says which layers have the window, or are states.
        ({"depth": 24, "n_heads": 8, "head_dim": 64, "local_window": 512}, "?*sliding(heads=8, kv_heads=8, head_dim=64, window=512) + ?*gqa(heads=8, kv_heads=8, head_dim=64)"),
        ({"depth": 24, "n_heads": 8, "head_dim": 64} | SSM, "?*mamba2(heads=64, head_dim=64, d_state=128, groups=1, conv=4) + ?*gqa(heads=8, kv_heads=8, head_dim=64)"),
        # A width, a window, a kind that are not there.
        ({"depth": 24, "n_heads": 8}, "24*gqa(heads=8, kv_heads=8, head_dim=?)"),
        ({"depth": 4, "n_heads": 8, "head_dim": 64, "layer_types": ["swa", "full"] * 2}, "2*(sliding(heads=8, kv_heads=8, head_dim=64, window=?) + gqa(heads=8, kv_heads=8, head_dim=64))"),
        ({"depth": 4, "n_heads": 8, "head_dim": 64, "layer_types": ["warp", "full"] * 2}, "2*(? + gqa(heads=8, kv_heads=8, head_dim=64))"),
        # A state without heads and without an inner width may be of either Mamba.
        ({"depth": 2, "n_heads": 8, "head_dim": 64, "ssm_state": 16, "layer_types": ["ssm", "full"]}, "? + gqa(heads=8, kv_heads=?, head_dim=64)"),
        # Codes without a table.
        ({"depth": 4, "n_heads": 8, "head_dim": 64, "layer_codes": [0, 1] * 2}, "4*?"),
        # A latent and a window together.
        ({"depth": 4, "sliding_window": 64} | LATENT, "4*mla(rank=512, rope=64, nope=128, v_head_dim=128)"),
        # A word for MLA without its numbers, and numbers that may be those of a latent.
        ({"depth": 4, "q_heads": 8, "squeeze_rank": 64, "attention_kind": "mla"}, "4*mla(heads=8, rank=?, rope=?)"),
        ({"depth": 4, "q_heads": 8, "head_dim": 64, "dkv": 384, "dr": 64}, "4*gqa(heads=8, kv_heads=?, head_dim=64)"),
        ({"depth": 4, "q_heads": 8, "use_mla": False, "head_dim": 64}, "4*gqa(heads=8, kv_heads=8, head_dim=64)"),
        ({"depth": 4, "q_heads": 8, "q_lora_rank": 64, "head_dim": 64}, "4*gqa(heads=8, kv_heads=8, head_dim=64)"),
        ({"depth": 4, "q_heads": 8, "bottleneck": 64, "head_dim": 64}, "4*?"),
        ({"depth": 4, "q_heads": 8, "compressed_kv_size": 64, "head_dim": 64, "layer_types": ["swa", "full"] * 2}, "4*?"),
        # A window of attention that no layer is said to have, in an object too.
        ({"depth": 4, "layer_types": ["ssm", "attention"] * 2, "attention_config": {"heads": 8, "head_dim": 64, "sliding_window": 64}} | SSM, "2*(mamba2(heads=64, head_dim=64, d_state=128, groups=1, conv=4) + ?)"),
        # Two keys that disagree.
        ({"depth": 4, "n_heads": 8, "head_dim": 64, "head_width": 32}, None),
        ({"depth": 4, "n_heads": 8, "per_head_width": 64, "width_of_head": 32}, "4*gqa(heads=8, kv_heads=8, head_dim=?)"),
        ({"depth": 4, "n_heads": 8, "per_head_width": 64, "head_size": 32}, "4*gqa(heads=8, kv_heads=8, head_dim=?)"),
        ({"depth": 24, "num_layers": 32, "n_heads": 8, "head_dim": 64}, "?*gqa(heads=8, kv_heads=8, head_dim=64)"),
        # 26 layers in periods of six: 4 or 5 of them are global, by where a period begins.
        (
            {"depth": 26, "n_heads": 8, "head_dim": 64, "window": 512, "sliding_window": 512, "global_every": 6},
            "4*(5*sliding(heads=8, kv_heads=8, head_dim=64, window=512) + gqa(heads=8, kv_heads=8, head_dim=64)) + ? + sliding(heads=8, kv_heads=8, head_dim=64, window=512)",
        ),
        ({"depth": 24}, "24*?"),
        # A list that is too short, and a ratio that no rule reads.
        ({"depth": 24, "n_heads": 8, "head_dim": 64, "layer_types": ["full_attention"] * 23}, "?*gqa(heads=8, kv_heads=8, head_dim=64)"),
    ],
)  # fmt: skip
def test_what_the_file_does_not_say_is_a_question_mark(config: Json, layers: str | None) -> None:
    """Nobody guesses; an exact name counts before other words for the same."""
    assert written(config)["layers_of"] == layers or (layers is None and "head_dim=64" in written(config)["layers_of"])


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"depth": 24, "num_layers": 32, "n_heads": 8, "head_dim": 64}, "depth 24 and num_layers 32 disagree"),
        ({"depth": 4, "n_heads": 8, "per_head_width": 128, "head_size": 64}, "head_dim=? (per_head_width 128 and head_size 64 disagree)"),
        (ATTENTION | SSM | {"num_hidden_layers": 28, "pattern": "MMM*" * 6}, "pattern, which is 24 layers long, and num_hidden_layers 28 disagree"),
        (ATTENTION | SSM | {"num_hidden_layers": 20, "pattern": "MMM*" * 6}, "pattern, which is 24 layers long, and num_hidden_layers 20 disagree"),
    ],
)  # fmt: skip
def test_keys_that_disagree_are_named(config: Json, said: str) -> None:
    """Both of them, and a question mark in place of what they disagree about."""
    with pytest.raises(UnknownArchitectureError) as caught:
        load_model({"model_type": "of_ones_own", **config})
    assert said in caught.value.hint
    assert "not read" not in caught.value.hint
    assert caught.value.written is not None
    assert UNKNOWN in caught.value.written[1]["layers_of"]


def test_the_hint_says_where_each_number_is_from() -> None:
    """The names of the keys, and those that bear on the cache by their names and were not read."""
    with pytest.raises(UnknownArchitectureError) as caught:
        load_model({"model_type": "of_ones_own", **CONFIGS["odd names"][0], "cla_share_factor": 2})
    assert "24 x gqa: heads=16 (n_query_heads), kv_heads=4 (n_kv), head_dim=64 (per_head_width)" in caught.value.hint
    assert "not read: cla_share_factor" in caught.value.hint
    with pytest.raises(UnknownArchitectureError) as caught:
        load_model(
            {"model_type": "of_ones_own", **CONFIGS["odd names"][0], "d_zeta": 384, "zeta": {"blocks": 3}, "eos_token_id": 7}
        )
    assert "numbers whose meaning kvplan does not know: d_zeta 384, zeta.blocks 3\n" in caught.value.hint
    with pytest.raises(UnknownArchitectureError, match="of_ones_own") as caught:
        load_model({"model_type": "of_ones_own", "L": 12})
    assert "by hand: kvplan help layers" in caught.value.hint


@pytest.mark.parametrize("name", ["odd names", "other odd names", "gpt's and others'", "capitals", "an object for attention"])
@pytest.mark.parametrize("assume", ["llama", "bloom", "gpt_neox", "gqa", "qwen3", "mamba2"])
def test_no_number_is_made_of_class_defaults(name: str, assume: str) -> None:
    """A type that does not read the file's layers, heads and widths would answer with its class's own: it is refused, with the layers."""
    config = {"model_type": "of_ones_own", **CONFIGS[name][0]}
    with pytest.raises(ConfigError) as caught:
        load_model(config, assume=assume)
    assert caught.value.exit_code == 3
    assert caught.value.written is not None
    with pytest.raises(UnknownArchitectureError) as unknown:
        load_model(config)
    assert unknown.value.command is None, "no type is proposed that does not read the sizes"


def test_a_type_needs_the_number_of_layers() -> None:
    """Nothing of the file would be left."""
    with pytest.raises(ConfigError, match="finds no number of layers"):
        load_model({"model_type": "of_ones_own", "L": 12, "num_attention_heads": 4}, assume="llama")


def test_a_missing_key_names_the_one_that_is_there() -> None:
    """``depth`` may be the number of layers; a file of a known type too is told so."""
    with pytest.raises(ConfigError, match="num_hidden_layers is missing") as caught:
        load_model({"model_type": "of_ones_own", **CONFIGS["odd names"][0]}, assume="gqa")
    assert "The file has depth 24" in caught.value.hint


@pytest.mark.parametrize("assume", ["mamba2+gqa", "mamba2+sliding", "mamba1+gqa"])
def test_kinds_follow_the_types_of_layers(assume: str) -> None:
    """No type with these kinds reads ``layer_types``: an error that writes the layers down, where Falcon-H1 would keep 3.9 times as much."""
    config = {"model_type": "of_ones_own", **CONFIGS["mamba-2 by its heads"][0]}
    with pytest.raises(ConfigError, match="no known type with these layers reads") as caught:
        load_model(config, assume=assume)
    assert caught.value.written is not None
    assert plan(layers_of=caught.value.written[1]["layers_of"], seq=N).cache.total_bytes == CONFIGS["mamba-2 by its heads"][1]


def test_a_known_type_with_layers_of_another() -> None:
    """Types of layers that a known type does not read: what is written down follows them, and not the type."""
    with pytest.raises(UnreadKeysError, match="layer_types") as caught:
        load_model({"model_type": "orion", **CONFIGS["mamba-2 by its heads"][0], "intermediate_size": 8192, "vocab_size": 1000})
    assert caught.value.written is not None
    assert "3*mamba2(" in caught.value.written[1]["layers_of"]
    assert caught.value.command is None


def test_words_of_keys() -> None:
    """Order, number, prefixes and what counts make no difference."""
    for alike in (
        "num_ssm_heads ssm_heads ssm_n_heads nSsmHeads ssm.num_head ssm_nheads",
        "head_dim dim_per_head headdim HeadDim",
        "n_kv num_kv kv_count",
    ):
        assert len({words_of(key) for key in alike.split()}) == 1, alike
    assert words_of("conv_dim") != words_of("conv_kernel")


def _elements(layers: Sequence[Layer]) -> int:
    """The numbers that the layers keep of 32,768 tokens."""
    tensors = (tensor for layer in layers for kind in layer for tensor in kind.tensors())
    return sum(tensor.elements_per_position * tensor.span.positions(32_768, 1_500) for tensor in tensors)


def test_published_models_describe_their_layers() -> None:
    """Under an unknown name, by their keys alone: what is complete has the bytes that their own family reads, and most are complete.

    Encoders keep nothing, which no key of theirs says.
    """
    complete = number = 0
    for path in sorted(Path(built_in("models")).glob("*/*.json"))[::3]:
        document = json.loads(path.read_text("utf-8"))
        sketch = sketched(language_config(RawModel(id="x", config=document["config"], source="python")).raw)
        number += 1
        if sketch is None or not sketch.complete:
            continue
        complete += 1
        own, described = load_model(document["config"]).stack.layers, read_layers(sketch.options["layers_of"])
        if not all(isinstance(kind, NoCache) for layer in own for kind in layer):
            assert _elements(own) == _elements(described), path
    assert complete > 0.75 * number


@pytest.mark.parametrize(
    "value",
    [
        None,
        0,
        -1,
        10**9,
        1.5,
        "8",
        "MM*",
        [],
        [1] * 24,
        ["a"] * 24,
        [{}] * 24,
        [{"type": "ssm"}] * 24,
        {},
        {"a": {"b": 1}},
        True,
        float("nan"),
        2**70,
    ],
)
def test_hostile_values(value: object) -> None:
    """Anything is layers, or nothing."""
    config = ATTENTION | SSM | {"layer_types": ["ssm", "attention"] * 12}
    for key in (
        *config,
        "layer_pattern",
        "attn_every",
        "attn_layers",
        "num_ssm_layers",
        "sliding_window",
        "text_config",
        "num_kv_shared_layers",
    ):
        found = sketched({**config, key: value})
        assert found is None or isinstance(found, Sketch)


@pytest.mark.parametrize(
    ("keys", "options"),
    [
        ({"context": "128k"}, {"seq": "128k"}),
        ({"context_window": "64K tokens"}, {"seq": "64k"}),
        ({"train_ctx": 65_536.0}, {"seq": "64k"}),
        ({"max_tokens_supported": "131,072"}, {"seq": "128k"}),
        ({"kv_dtype": "fp8"}, {"dtype": "fp8"}),
        ({"kv_cache": {"dtype": "float8_e4m3fn"}}, {"dtype": "fp8_e4m3"}),
        ({"torch_dtype": "float16", "cache_dtype": "int8"}, {"dtype": "int8"}),
        ({"torch_dtype": "float16", "kv_cache_dtype": "auto"}, {"dtype": "fp16"}),
    ],
)
def test_length_and_format_are_read_in_other_words(keys: Json, options: dict[str, str]) -> None:
    """Both change the bytes of the command that is offered: a length in text, and a format of the cache that is not the model's."""
    sketch = sketched(ATTENTION | keys)

    assert sketch is not None
    assert sketch.complete
    assert {name: sketch.options[name] for name in options} == options


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, "the longest sequence is not in the file, or kvplan does not know its key: 32k stands for it"),
        ({"context": "128k", "max_seq_len": 4096}, "context 131072 and max_seq_len 4096 disagree: 32k stands for it"),
        ({"kv_dtype": "turbo3"}, "not read: kv_dtype"),
        ({"v_dtype": "fp8"}, "not read: v_dtype"),
        ({"precision": "fp32"}, "not read: precision"),
        (SSM | {"ssm_state_dtype": "bfloat16", "layer_types": ["ssm", "attention"] * 12}, "not read: ssm_state_dtype"),
        ({"prompt_budget": "16k"}, "numbers whose meaning kvplan does not know: prompt_budget 16384"),
    ],
)
def test_what_changes_bytes_and_is_not_read_is_named(keys: Json, said: str) -> None:
    """Nothing that may change the offered command's bytes is passed over in silence."""
    sketch = sketched(ATTENTION | keys)

    assert sketch is not None
    assert said in sketch.lines


def test_beside_a_latent_the_width_of_values_is_read() -> None:
    """``value_dim`` of MLA is that of a head, of which there is one; it bears on the weights."""
    sketch = sketched(
        {"num_hidden_layers": 4, "hidden_size": 2048, "n_heads": 16} | LATENT | {"v_head_dim": None, "value_dim": 192}
    )

    assert sketch is not None
    assert sketch.options["layers_of"] == "4*mla(heads=16, rank=512, rope=64, nope=128, v_head_dim=192)"
