"""Configs of architectures that nobody knows: what their published names say is written down, and everything else is a question mark."""

from __future__ import annotations

import json
import random
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from hwcalc import load_model, plan
from hwcalc.errors import ConfigError, KvplanError, UnknownArchitectureError, UnreadKeysError
from hwcalc.formulas import Layer
from hwcalc.parsers.sketch import UNKNOWN, sketched
from hwcalc.parsers.written import read_layers
from hwcalc.profiles.catalog import built_in
from hwcalc.report.text import filled, with_commands
from tests.effort import cases, sample
from tests.hwcalc.command import Capture, run

Json = dict[str, Any]
N: Final = 32_768
"""Tokens of each plan below."""
ATTENTION: Final[Json] = {
    "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128, "hidden_size": 2048,
}  # fmt: skip
KV: Final = 2 * 4 * 128 * 2
"""Bytes of a token of such a layer: keys and values of four heads of 128 numbers in bf16."""
SSM: Final[Json] = {"mamba_n_heads": 64, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4}
MAMBA2: Final = 64 * 64 * 128 * 4 + 3 * (64 * 64 + 2 * 128) * 2
"""Bytes of a layer of Mamba-2: a state of 64 x 128 fp32 numbers a head, and three inputs of the convolution over x, B and C."""
NEMOTRON: Final[Json] = {"mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 1, "conv_kernel": 4}
DELTA: Final[Json] = {
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
}  # fmt: skip
GDN: Final = 32 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 32 * 128) * 2
LATENT: Final[Json] = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
MLA: Final[Json] = {"num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16, **LATENT}
SIZES: Final[Json] = {"intermediate_size": 8192, "vocab_size": 32_000, "max_position_embeddings": 131_072, "dtype": "bfloat16"}
LAYERS: Final = ["mamba2", "mamba2", "mamba2", "sliding_attention"] * 6
ZEPHYROS: Final[Json] = {**ATTENTION, **SSM, "sliding_window": 1024, "layer_types": LAYERS}

CONFIGS: Final[Mapping[str, tuple[Json, int]]] = {
    # 18 x (64 x 64 x 128 x 4 + 3 x 4,352 x 2) + 6 x 2 x 1,024 x 4 x 128 x 2 bytes.
    "types for each layer": (ZEPHYROS, 50_801_664),
    "an inner width that its heads fill": (ZEPHYROS | {"mamba_expand": 2}, 50_801_664),
    "short names": (ATTENTION | SSM | {"layers_block_type": ["mamba", "gqa"] * 12}, 12 * MAMBA2 + 12 * N * KV),
    "letters": (ATTENTION | NEMOTRON | {"hybrid_override_pattern": "M-ME*E-M" * 3}, 9 * MAMBA2 + 3 * N * KV),
    "period and offset": (
        ATTENTION | {"mamba_dt_rank": 128, "mamba_expand": 2, "mamba_d_state": 16, "mamba_d_conv": 4, "attn_layer_period": 8, "attn_layer_offset": 4},
        21 * (4096 * 16 * 4 + 3 * 4096 * 2) + 3 * N * KV,
    ),
    "an interval": (ATTENTION | DELTA | {"full_attention_interval": 4}, 18 * GDN + 6 * N * KV),
    "a pattern of windows": (ATTENTION | {"num_hidden_layers": 26, "sliding_window": 512, "sliding_window_pattern": 6}, 22 * 512 * KV + 4 * N * KV),
    "a unit that repeats": (
        ATTENTION | {"lru_width": 2560, "conv1d_width": 4, "attention_window_size": 2048, "block_types": ["recurrent", "recurrent", "swa"]},
        16 * (2560 * 4 + 3 * 2560 * 2) + 8 * 2048 * KV,
    ),
    "a latent": (MLA, 24 * N * (512 + 64) * 2),
    "a latent with an indexer": (MLA | {"index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048}, 24 * N * ((512 + 64) * 2 + 132)),
    "a latent beside states": (MLA | SSM | {"layer_types": ["mamba", "mamba", "mamba", "attention"] * 6}, 18 * MAMBA2 + 6 * N * (512 + 64) * 2),
    "other published names": ({"n_layer": 24, "n_embd": 2048, "n_head": 16, "n_head_kv": 4, "kv_channels": 128}, 24 * N * KV),
    "values narrower than keys": (ATTENTION | {"v_head_dim": 64}, 24 * N * 4 * (128 + 64) * 2),
    "a language model within another": ({"text_config": ATTENTION, "vision_config": {"num_heads": 16}, "image_token_id": 9}, 24 * N * KV),
}  # fmt: skip
"""A config that says all by published names, and the bytes of one sequence of N tokens."""


def refused(config: Json) -> UnknownArchitectureError:
    """The error for this config of an unknown type."""
    with pytest.raises(UnknownArchitectureError) as caught:
        load_model({"model_type": "of_ones_own", **config})
    return caught.value


def layers_of(config: Json) -> str:
    """The layers that it writes down."""
    written = refused(config).written
    return "" if written is None else written[1]["layers_of"]


@pytest.mark.parametrize("name", CONFIGS)
def test_published_names_are_written_down(name: str) -> None:
    """Every number is in the file, and so in the layers: the plan of what is offered has the bytes of the calculation."""
    config, total = CONFIGS[name]
    layers = layers_of(config)

    assert UNKNOWN not in layers
    assert total == plan(layers_of=layers, seq=N).cache.total_bytes


OF_WEIGHTS: Final = "hidden_size n_embd qk_nope_head_dim index_topk mamba_dt_rank text_config vision_config image_token_id"
BEARING: Final = [(name, key) for name, (config, _) in CONFIGS.items() for key in config if key not in OF_WEIGHTS.split()]


@pytest.mark.parametrize(("name", "key"), BEARING)
def test_a_name_of_ones_own_is_a_question_mark(name: str, key: str) -> None:
    """Whatever name is changed, the number is listed with its value, and the command is not complete."""
    config = dict(CONFIGS[name][0])
    value = config.pop(key)
    error = refused(config | {"zeta": value})

    assert UNKNOWN in layers_of(config | {"zeta": value})
    assert "that kvplan does not read: " in error.hint
    assert "zeta " in error.hint
    assert "without what is not read" in error.hint
    assert error.command is None


@pytest.mark.parametrize(
    "keys",
    [
        # Latents in words of one's own, as numbers, in objects, and as a word alone.
        {"memory_width": 384}, {"d_rope": 64}, {"k_rope": 64}, {"attn_head_dim": 64}, {"attention": {"latent": 384}}, {"a": {"b": {"c": {"d": 1}}}},
        {"ranks": [384] * 24}, {"attention_type": "mla"}, {"mixer": "mla"}, {"kv_share": 0.5}, {"rank": "384"}, {"n_shared_kv": 1},
        {"pattern": "LLLG"}, {"kinds": ["attn", "skip"] * 12}, {"kinds": "attn,skip"}, {"use_shared_kv": True}, {"cache_values": False},
        {"share_layers": "alternate"}, {"share_attention": True}, {"is_encoder_decoder": True},
        # Formats of the cache or of states.
        {"precision": "fp32"}, {"kv_dtype": "int8"}, {"mamba_ssm_dtype": "bfloat16"},
    ],
)  # fmt: skip
def test_what_is_not_read_leaves_the_layers_open(keys: Json) -> None:
    """Beside attention that is whole: each may change what layers keep, so that its name is told and their number is not."""
    error = refused(ATTENTION | keys)

    assert UNKNOWN in layers_of(ATTENTION | keys)
    assert "that kvplan does not read: " in error.hint
    assert error.command is None
    assert " --assume" not in error.hint.replace(": --assume mla reads kv_lora_rank and qk_rope_head_dim.", "")


def test_a_latent_of_ones_own_words_is_read_by_published_ones(capsys: Capture, tmp_path: Path) -> None:
    """The error says what may be done. With the names that it gives, or the kind written down, a latent of 384 + 64 numbers is planned."""
    own, path = {"num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 4}, tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "of_ones_own", **own, "lat_rank": 384, "rot_dim": 64}), "utf-8")
    said = run(capsys, "explain", str(path), "--seq", "32k")[2]
    reads = re.search(r"--assume (\w+) reads (\w+) and (\w+)\.", said)

    assert reads is not None
    assert "may change the cache" in said
    assert "kvplan models --kinds" in said
    kind, rank, rope = reads.groups()
    path.write_text(json.dumps({"model_type": "of_ones_own", **own, rank: 384, rope: 64}), "utf-8")
    assert 24 * N * (384 + 64) * 2 == plan(path, seq=N, assume=kind, dtype="bf16").cache.total_bytes
    written = plan(layers_of=f"24*{kind}(rank=384, rope=64)", seq=N, dtype="bf16")
    assert 24 * N * (384 + 64) * 2 == written.cache.total_bytes


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        # As many heads of keys as of queries, and the width of a head, are nobody's to say.
        ({"num_hidden_layers": 24, "num_attention_heads": 16, "hidden_size": 2048}, "24*gqa(heads=16, kv_heads=?, head_dim=?)"),
        ({key: value for key, value in ZEPHYROS.items() if key != "mamba_n_groups"},
         "6*(3*mamba2(heads=64, head_dim=64, d_state=128, groups=?, conv=4) + sliding(heads=16, kv_heads=4, head_dim=128, window=1024))"),
        # Windows and states that no key places.
        (ATTENTION | {"sliding_window": 512}, "?*sliding(heads=16, kv_heads=4, head_dim=128, window=512) + ?*gqa(heads=16, kv_heads=4, head_dim=128)"),
        (ATTENTION | SSM, "?*mamba2(heads=64, head_dim=64, d_state=128, groups=1, conv=4) + ?*gqa(heads=16, kv_heads=4, head_dim=128)"),
        (ATTENTION | {"sliding_window": 512, "layer_types": ["full_attention"] * 24}, "?*?"),
        (ATTENTION | {"sliding_window": 512, "use_sliding_window": False}, "24*gqa(heads=16, kv_heads=4, head_dim=128)"),
        # Numbers that the file itself switches off.
        (MLA | {"use_mla": False, "head_dim": 128}, "?*gqa(heads=16, kv_heads=16, head_dim=128, v_head_dim=128)"),
        # A word that nobody knows, and one for several kinds of states.
        (ATTENTION | {"layer_types": ["warp", "full"] * 12}, "12*(? + gqa(heads=16, kv_heads=4, head_dim=128))"),
        (ATTENTION | {"layer_types": ["linear_attention", "full"] * 12}, "12*(? + gqa(heads=16, kv_heads=4, head_dim=128))"),
        (ATTENTION | SSM | DELTA | {"layer_types": ["linear_attention"] * 24}, "?*?"),
        # A name that may be meant for either kind of layers.
        (ATTENTION | {"layer_types": ["mamba2", "full"] * 12}, "12*(mamba2(heads=?, head_dim=?, d_state=?, groups=?, conv=?) + gqa(heads=16, kv_heads=4, head_dim=?))"),
        ({"num_hidden_layers": 24}, "24*?"),
        ({"depth": 24}, "?*?"),
        ({"hidden_size": 24}, ""),
    ],
)  # fmt: skip
def test_what_the_file_does_not_say_is_a_question_mark(config: Json, layers: str) -> None:
    """Nobody guesses."""
    assert layers_of(config) == layers


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"head_size": 64}, "head_dim=? (head_dim 128 and head_size 64 disagree)"),
        ({"n_layers": 32}, "num_hidden_layers 24 and n_layers 32 disagree"),
        ({"layer_types": ["full"] * 20}, "layer_types, which is 20 layers long, and num_hidden_layers 24 disagree"),
        ({"layer_types": ["full"] * 24, "sliding_window_pattern": 2, "sliding_window": 8}, "layer_types and sliding_window_pattern disagree"),
        ({"num_hidden_layers": 10**5}, "100,000 layers are more than 1,000"),
        ({"head_dim": 1.5}, "head_dim=? (head_dim is 1.5)"),
        # An inner width of 4 x 2,048 is not 64 heads of 64.
        (ZEPHYROS | {"mamba_expand": 4}, "heads=? (mamba_n_heads x mamba_d_head 4096 and mamba_expand x hidden_size 8192 disagree)"),
        (ZEPHYROS | {"expand": 4}, "heads=? (mamba_n_heads x mamba_d_head 4096 and expand x hidden_size 8192 disagree)"),
        (ZEPHYROS | {"mamba_expand": 1.5}, "heads=? (mamba_expand is 1.5)"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_together_is_named(keys: Json, said: str) -> None:
    """Both keys, and a question mark in place of what they disagree about."""
    assert said in refused(ATTENTION | keys).hint
    assert UNKNOWN in layers_of(ATTENTION | keys)


def _elements(layers: Sequence[Layer]) -> int:
    """The numbers that the layers keep of N tokens."""
    tensors = (tensor for layer in layers for kind in layer for tensor in kind.tensors())
    return sum(tensor.elements_per_position * tensor.span.positions(N, 1_500) for tensor in tensors)


def _renamed(config: Mapping[str, Any], chance: random.Random, share: float) -> Json:
    """The config of another type, with names of one's own for a share of its keys."""
    syllables = "ze ta qu kv head dim n rank mem size width latent layer".split()  # noqa: SIM905
    changed: Json = {}
    for key, value in config.items():
        inner = _renamed(value, chance, share) if isinstance(value, dict) else value
        other = "_".join(chance.choices(syllables, k=3)) if chance.random() < share and key != "architectures" else key
        changed[other] = inner
    return changed | {"model_type": "of_ones_own", "architectures": ["OfOnesOwn"]}


def test_no_complete_command_is_wrong() -> None:
    """Published models under an unknown name, with some of their keys renamed: what is complete keeps what their own family reads."""
    chance, complete = random.Random(0), 0  # noqa: S311
    files = sample(sorted(Path(built_in("models")).glob("*/*.json")), 100)
    for path in files:
        document = json.loads(path.read_text("utf-8"))["config"]
        for share in (0, *[0.05] * cases(2, 10)):
            with suppress(ConfigError):
                load_model(config := _renamed(document, chance, share))
                continue
            layers = layers_of(config)
            if layers and UNKNOWN not in layers:
                complete += share == 0
                assert _elements(load_model(document).stack.layers) == _elements(read_layers(layers)), (path, config)
    assert complete > len(files) / 5


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (ATTENTION | {"wide": 8}, ["? x gqa: heads=16", "head_dim=128 (head_dim), of 24 layers\n"]),
        (ZEPHYROS | {"wide": 8}, ["? x mamba2: ", "(mamba_d_conv), 18 of 24 layers, by layer_types\n", "? x sliding: ", "6 of 24 layers, by layer_types\n"]),
        (ATTENTION | {"n_layers": 32}, ["? x gqa: heads=16", "head_dim=128 (head_dim)\n"]),
        (ZEPHYROS, ["18 x mamba2: ", "(mamba_d_conv), by layer_types\n", "6 x sliding: "]),
    ],
)  # fmt: skip
def test_the_numbers_of_layers_are_those_of_the_command(config: Json, said: list[str]) -> None:
    """Where the command leaves them open, so does what is said of each kind; the command has a line of its own."""
    error = refused(config)

    assert all(part in error.hint for part in said), error.hint
    assert error.written is not None
    assert error.written[0] in error.hint.splitlines()
    assert error.written[0] == filled(with_commands(error.written[0]), 80), "whole, however narrow the terminal is"


@pytest.mark.parametrize("command", ["A", "recommend A", "compare A B", "sweep A", "diff A B"])
@pytest.mark.parametrize("typed", ["--dtype fp8", "--layers 48 --head-dim 64"])
def test_every_command_runs(capsys: Capture, tmp_path: Path, command: str, typed: str) -> None:
    """Whatever was typed, each command of the hint has it, and gives an answer when it is pasted."""
    typed = f"--seq 4k --engine vllm --gpu l4 {'' if command == 'diff A B' else typed}"
    paths = {"A": str(tmp_path / "a.json"), "B": str(tmp_path / "b.json")}
    for path in paths.values():
        Path(path).write_text(json.dumps({"model_type": "of_ones_own", **ATTENTION, **SIZES}), "utf-8")
    status, _, said = run(capsys, *(paths.get(word, word) for word in command.split()), *typed.split())
    commands = [part.partition(";")[0] for part in re.split(r":\s", said) if "layers-of" in part or f"{paths['A']} " in part]

    assert status == 3
    assert commands
    for line in commands:
        words = shlex.split(line.splitlines()[0])
        assert {("--seq", "4k"), ("--gpu", "l4"), ("--engine", "vllm")} <= set(pairwise(words)), line
        assert run(capsys, *words[1:])[0] == 0, line


def test_a_question_mark_is_filled_in(capsys: Capture, tmp_path: Path) -> None:
    """Pasted as it is the command says what to put there; with numbers in place of the marks, or with what was typed, it runs."""
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "own", "num_layers": 24, "n_heads": 16, "n_kv": 4, "per_head_width": 128}', "utf-8")
    line = run(capsys, str(path), "--seq", "32k")[2].partition("kvplan models --kinds):\n")[2].splitlines()[0]

    assert line.endswith("--layers-of '?*gqa(heads=16, kv_heads=?, head_dim=?)'")
    for mark, number in (("?*", "24*"), ("kv_heads=?", "kv_heads=4"), ("head_dim=?", "head_dim=128")):
        status, _, said = run(capsys, *shlex.split(line)[1:])
        assert status == 2
        assert "not filled in" in said
        assert "in place of the question mark" in said
        line = line.replace(mark, number)
    status, out, _ = run(capsys, *shlex.split(line)[1:])
    assert status == 0
    assert f"{24 * N * KV:,} B" in out
    with pytest.raises(UnknownArchitectureError, match=r"24\*gqa\(heads=16, kv_heads=2, head_dim=128\)"):
        plan({"model_type": "of_ones_own", **ATTENTION, "num_key_value_heads": None}, seq=N, kv_heads=2)


def test_length_format_and_sizes_are_the_files() -> None:
    """What bears on the numbers beside the layers; weights are those of three sizes where these are all."""

    def options(**keys: Any) -> Json:
        found = sketched(ATTENTION | SIZES | keys)
        assert found is not None
        return dict(found.options)

    sizes = {"hidden_size": "2048", "intermediate_size": "8192", "vocab_size": "32000"}
    rest = {"layers_of": "24*gqa(heads=16, kv_heads=4, head_dim=128)", "seq": "128k", "dtype": "bf16"}
    assert options() == rest | sizes
    assert options(dtype="float32") == rest | sizes | {"dtype": "fp32", "weights": "fp32"}
    for keys in ({"tie_word_embeddings": True}, {"num_experts": 8}, {"quantization_config": {"bits": 4}}):
        assert options(**keys) == rest, keys
    # A question mark of the layers says nothing of the sizes; a number that is not read may be a second width.
    assert options(head_dim=None).items() >= sizes.items()
    assert options(sliding_window=8).items() >= sizes.items()
    assert not options(wide=8).keys() & sizes.keys()
    assert "and the sizes for weights are left out" in refused(ATTENTION | SIZES | {"wide": 8}).hint
    hint = refused(ATTENTION | SIZES).hint
    assert "24 x gqa: heads=16 (num_attention_heads), kv_heads=4 (num_key_value_heads), head_dim=128 (head_dim)" in hint
    assert "made for 131,072 tokens (max_position_embeddings)" in hint
    assert "the longest sequence is not in the file" in refused(ATTENTION).hint


def test_a_known_type_with_layers_of_another() -> None:
    """Types of layers that a known type does not read: what is written down follows them, and not the type."""
    with pytest.raises(UnreadKeysError, match="layer_types") as caught:
        load_model({"model_type": "orion", **ZEPHYROS, "intermediate_size": 8192, "vocab_size": 1000})
    assert caught.value.written is not None
    assert plan(layers_of=caught.value.written[1]["layers_of"], seq=N).cache.total_bytes == 50_801_664
    assert caught.value.command is None


VALUES: Final[tuple[object, ...]] = (None, 0, -1, 10**9, 1.5, "8", "MM*", [], [1] * 24, ["a"] * 24, [{}] * 24, {}, {"a": {"b": 1}}, True, float("nan"), 2**70)  # fmt: skip
OTHERS: Final = "hybrid_override_pattern block_types sliding_window_pattern attn_layer_offset text_config use_mla"


@pytest.mark.parametrize("value", VALUES)
def test_hostile_values(value: object) -> None:
    """Anything is layers, or nothing, and with an assumption a plan or an error of ours."""
    for key in (*ZEPHYROS, *OTHERS.split()):
        found = sketched({**ZEPHYROS, key: value})
        assert found is None or not found.complete or len(read_layers(found.options["layers_of"])) == 24
        for assume in ("gqa", "deepseek_v3", "mamba2+gqa"):
            with suppress(KvplanError):
                assert load_model({**ZEPHYROS, **LATENT, key: value}, assume=assume).stack


def test_a_file_of_many_keys_is_refused_at_once() -> None:
    """A hundred thousand numbers, of which the first few are named."""
    config = {"model_type": "of_ones_own", **ATTENTION, **{f"k{number}": number for number in range(1, 100_000)}}
    start = time.process_time()
    with pytest.raises(KvplanError, match=r"numbers that kvplan does not read: k1 1, k2 2, .*, \.\.\."):
        load_model(config)
    assert time.process_time() - start < 5
