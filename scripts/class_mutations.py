"""Compare kvplan with the model classes of transformers on configs that are changed at random.

Each config is the class's own, with few layers and one to four changes: patterns of layers, windows and chunks, ties of the embeddings,
heads and their widths, ranks of latents, widths of states, shared layers, experts, biases. transformers builds the model on the meta
device: its parameters are counted, and its cache is that of a prompt and one more token. kvplan reads the same config twice, as it was
written and as the class writes it out. A config that transformers refuses is passed over; one that kvplan refuses is counted as refused.

    python scripts/class_mutations.py                    # 5,000 configs that transformers builds, of all types
    python scripts/class_mutations.py --count 300 --seed 7
    python scripts/class_mutations.py --type qwen3_next  # of these types alone
    python scripts/class_mutations.py --each             # each type once, as its class's own defaults make it

Exit 1 if an answer differs. Types of :data:`APART` differ for the reason that stands there, and are told apart.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from hwcalc import load_model, plan  # noqa: E402
from hwcalc.errors import KvplanError  # noqa: E402
from scripts.live_classes import built, config_class, few_layers, generating, language_level, language_path, parameters  # noqa: E402

TOKENS: Final = 40
"""A prompt and one token more: longer than most windows, so that they close."""

APART: Final[Mapping[str, str]] = {
    "t5": "the class ties the embeddings, and a checkpoint with a head of its own is loaded untied all the same",
    "mt5": "as t5",
    "umt5": "as t5",
    "longt5": "as t5",
    "cohere_asr": "the class fills an encoder's config in from defaults of its own where keys are left out; files have all keys",
    "deepseek_v2": "with biases and 0 shared experts the class keeps the bias of an empty expert",
    "ovis2": "the class's head has the document's hidden_size and vocab_size, which in files are those of the language model",
    "inkling_mm_model": "the class rounds the padded vocabulary otherwise than the published files",
    "inkling2": "5.24 leaves out the rows of the head that pad the vocabulary, which files have and 5.23 built",
    "inkling2_text": "as inkling2",
    "mistral_large4": "5.24 keeps the factors of rotary frequencies as a parameter, a buffer before",
    "mistral_large4_text": "as mistral_large4",
}
"""Types whose parameters differ from the class's, on purpose."""

_COUNTERS: Final = frozenset({"cumulative_length", "indexer_cumulative_length", "_sliding_window_tensor"})
_BIASES: Final = re.compile(r"(^use_|_)(bias|qk_norm|conv_bias)$|^(attention_bias|mlp_bias|use_bias|qkv_bias|use_qk_norm)$")
_WIDTHS: Final = re.compile(
    r"^(intermediate_size|moe_intermediate_size|shared_expert_intermediate_size|shared_intermediate_size|vocab_size|ffn_dim|n_inner)$"
)
_EXPERTS: Final = re.compile(r"^(num_experts|num_local_experts|n_routed_experts|moe_num_experts)$")
_RANKS: Final = re.compile(r"^(q_lora_rank|kv_lora_rank|index_head_dim|qk_nope_head_dim|v_head_dim|adapter_rank)$")
_STATES: Final = re.compile(
    r"^(state_size|ssm_state_size|mamba_d_state|mamba_d_conv|conv_kernel|conv_L_cache|linear_conv_kernel_dim|linear_key_head_dim|"
    r"linear_value_head_dim|mamba_n_groups|n_groups|mamba_ngroups)$"
)
_COUNTS: Final = re.compile(r"^(first_k_dense_replace|num_dense_layers|n_shared_experts|num_shared_experts|max_window_layers)$")
_PERIODS: Final = re.compile(
    r"^(sliding_window_pattern|no_rope_layer_interval|global_attn_every_n_layers|decoder_sparse_step|interleave_moe_layer_step|"
    r"attn_layer_period|expert_layer_period|full_attention_interval)$"
)

Change = Callable[[random.Random, Any], Any]


def changes(config: Any) -> dict[str, Change]:
    """For each key of a built config that may be changed, how its new value is drawn."""
    out: dict[str, Change] = {}
    heads = vars(config).get("num_attention_heads")
    divisors = [n for n in range(1, heads + 1) if heads % n == 0] if isinstance(heads, int) else []
    for key in vars(config):
        if _BIASES.search(key):
            out[key] = lambda draw, _: draw.random() < 0.5
        elif _WIDTHS.match(key):
            out[key] = lambda draw, old: None if old is None else draw.randrange(8, 80) * 16
        elif _EXPERTS.match(key):
            out[key] = lambda draw, old: old and draw.choice((4, 8, 12, 16))
        elif _RANKS.match(key):
            out[key] = lambda draw, _: draw.choice((16, 32, 48, 64, 96))
        elif _STATES.match(key):
            out[key] = lambda draw, old: draw.choice((1, 2, 4, 8)) if (old or 8) < 16 else draw.choice((8, 16, 32, 64))
        elif _COUNTS.match(key):
            out[key] = lambda draw, _: draw.randrange(5)
        elif _PERIODS.match(key):
            out[key] = lambda draw, _: draw.randrange(1, 5)
        elif key in ("sliding_window", "attention_chunk_size"):
            out[key] = lambda draw, _: draw.choice((None, 4, 8, 16, 39, 64))
        elif key == "use_sliding_window":
            out[key] = lambda draw, _: draw.random() < 0.7
        elif key == "num_kv_shared_layers":
            out[key] = lambda draw, _: draw.randrange(4)
        elif key == "num_key_value_heads" and divisors:
            out[key] = lambda draw, _: draw.choice((None, *divisors))
        elif key == "head_dim":
            out[key] = lambda draw, _: draw.choice((None, 16, 32, 64, 128))
        elif key in ("layer_types", "layers_block_type", "mlp_layer_types"):
            out[key] = _pattern
        elif key == "num_hidden_layers":
            out[key] = lambda draw, _: draw.randrange(1, 9)
    return out


def _pattern(draw: random.Random, old: Any) -> Any:
    """As many layers, each of a type that the class's own pattern has, or that most classes have."""
    if not isinstance(old, (list, tuple)) or not old:
        return None
    known = sorted(set(old)) + (["full_attention", "sliding_attention"] if "full_attention" in old else [])
    return None if draw.random() < 0.1 else [draw.choice(known) for _ in old]


def mutated(model_type: str, draw: random.Random) -> dict[str, Any]:
    """A document of this type with random changes."""
    cls = config_class(model_type)
    path, document = language_path(cls), few_layers(cls)
    level = language_level(document, path)
    try:
        config = cls(**copy.deepcopy(document))
        for key in path:
            config = getattr(config, key)
    except Exception:
        return document
    options = changes(config)
    for key in draw.sample(sorted(options), min(len(options), draw.randrange(1, 5))):
        level[key] = options[key](draw, vars(config).get(key))
    count = level.get("num_hidden_layers")
    for key in ("layer_types", "layers_block_type", "mlp_layer_types"):
        if isinstance(level.get(key), list) and isinstance(count, int):
            level[key] = [level[key][i % len(level[key])] for i in range(count)]
    for place in (document, level):
        if draw.random() < 0.25:
            place["tie_word_embeddings"] = draw.random() < 0.5
    return document


def cache_bytes(thing: Any, seen: set[int]) -> int:
    """Bytes of every tensor that a cache holds, each once, counters left out."""
    import torch

    if id(thing) in seen:
        return 0
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        return int(thing.numel() * thing.element_size())
    if isinstance(thing, Mapping):
        return sum(cache_bytes(value, seen) for key, value in thing.items() if key not in _COUNTERS)
    if isinstance(thing, (list, tuple)):
        return sum(cache_bytes(value, seen) for value in thing)
    return cache_bytes(vars(thing), seen) if type(thing).__module__.startswith("transformers.") else 0


def measured_cache(model: Any) -> int | None:
    """Bytes of the cache after a prompt and a token; ``None`` where the class does not run on token ids on the meta device."""
    import torch

    def ids(count: int) -> Any:
        return torch.zeros(1, count, dtype=torch.long, device="meta")

    if model.config.is_encoder_decoder:
        return None
    try:
        with torch.no_grad():
            first = model(input_ids=ids(TOKENS - 1), use_cache=True)
            model(input_ids=ids(1), use_cache=True, cache=first.cache)
    except Exception:
        return None
    return cache_bytes(first.cache, set()) or None


def planned(document: Mapping[str, Any], *, cache: bool) -> tuple[int | None, int | None]:
    """Parameters and bytes of the cache by kvplan; ``None`` where nobody counts them, or where it is not asked for."""
    counted = load_model(dict(document)).counted
    total = None if counted is None else counted.total
    if not cache:
        return total, None
    answer = plan(dict(document), seq=TOKENS, dtype="bf16", engine="transformers")
    return total, answer.cache.total_bytes


def differences(model_type: str, document: Mapping[str, Any]) -> Iterator[str]:
    """The differences between kvplan and the class: none if they agree. ``refused`` is an answer of kvplan's too.

    Raises what the classes raise where they cannot build the model.
    """
    model = built(model_type, copy.deepcopy(dict(document)))
    size, cache = parameters(model), measured_cache(model)
    named = {"model_type": model_type, "architectures": [generating()[model_type]]}
    whole = {**json.loads(model.config.to_json_string(use_diff=False)), **named}
    for words, read in (("as written", {**named, **document}), ("written out", whole)):
        try:
            total, planned_cache = planned(read, cache=cache is not None)
        except KvplanError as error:
            yield f"refused {words}: {error.message[:160]}"
            continue
        except Exception as error:
            yield f"fault {words}: {type(error).__name__}: {str(error)[:160]}"
            continue
        if total is not None and total != size and model_type not in APART:
            yield f"parameters {words}: {size:,} built, {total:,} planned"
        if planned_cache is not None and planned_cache != cache:
            yield f"cache {words}: {cache:,} measured, {planned_cache:,} planned"


def main(words: list[str] | None = None) -> int:
    """Change, build, compare, and print each difference."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=5_000, help="configs that transformers builds (default: 5,000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--type", action="append", help="a model type (default: all that generate text)")
    parser.add_argument("--refusals", action="store_true", help="print what kvplan refuses too")
    parser.add_argument("--each", action="store_true", help="each type once, with few layers and no other change")
    asked = parser.parse_args(words)
    warnings.simplefilter("ignore")
    types, draw = asked.type or sorted(generating()), random.Random(asked.seed)  # noqa: S311
    found: Counter[str] = Counter()
    impossible = set(types)
    tries, asked.count = 0, len(types) if asked.each else asked.count
    while found["built"] < asked.count and tries < (len(types) if asked.each else 5 * asked.count + len(types)):
        model_type = types[tries % len(types)]
        tries += 1
        try:
            document = few_layers(config_class(model_type)) if asked.each else mutated(model_type, draw)
            notes = list(differences(model_type, document))
        except Exception:  # the class refuses this config
            found["impossible"] += 1
            continue
        impossible.discard(model_type)
        found["built"] += 1
        wrong = [note for note in notes if not note.startswith("refused")]
        found["different" if wrong else "refused" if notes else "equal"] += 1
        for note in notes if asked.refusals else wrong:
            print(f"{model_type}: {note}\n    {json.dumps(document)}", flush=True)
    print(", ".join(f"{count:,} {name}" for name, count in found.items()))
    print(f"never built: {', '.join(sorted(impossible)) or 'none'}")
    return int(found["different"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
