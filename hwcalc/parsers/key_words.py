"""The numbers of a file whose type is unknown, found by the words of their keys.

``ssm_heads``, ``mamba_n_heads``, ``num_ssm_heads`` and ``{"ssm": {"nHeads": ...}}`` all say how many heads the states have: the order of the
words, their number and what stands for "number of" make no difference. One table (:data:`_PHRASES`) says by which words a parameter is known, and
:data:`SUBJECTS` by which words a key says what kind of layer it is about. Nothing is planned from these numbers: they are proposed to somebody who knows the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple

from hwcalc.formulas import MAX_DIMENSION
from hwcalc.formulas.states import StateKind
from hwcalc.text import brief, by_word

ALIASES: Mapping[str, Sequence[str]] = {
    key: names.split()
    for key, names in {
        "hidden_size": "n_embd d_model dim model_dim",
        "num_hidden_layers": "num_layers n_layer n_layers num_transformer_layers num_decoder_layers",
        "num_attention_heads": "n_head n_heads num_heads num_query_heads",
        "num_key_value_heads": "num_kv_heads n_kv_heads kv_n_heads n_head_kv multi_query_group_num num_attention_groups",
        "head_dim": "attention_head_dim kv_channels d_kv head_size",
        "intermediate_size": "n_inner d_ff ffn_hidden_size ffn_dim",
        "vocab_size": "padded_vocab_size",
        "max_position_embeddings": "n_positions max_seq_len max_sequence_length seq_length model_max_length max_position_embedding "
        "max_context_length context_length training_seqlen ctx_len max_length",
        "sliding_window": "sliding_window_size attention_window_size window_size",
    }.items()
}
"""Other names of facts, in files of models whose code lives with the model. They must not contradict the class's own aliases."""

Words = frozenset[str]

_PHRASES: Final[Mapping[str, str]] = {
    "num_hidden_layers": "layer|hidden layer|depth|block",
    "num_attention_heads": "head|query head",
    "num_key_value_heads": "kv head|kv|key value head|kv group|query group|attention group|multi query group|key value",
    "head_dim": "head SIZE|d head|query head SIZE|qk head SIZE",
    "v_head_dim": "value head SIZE|d value",
    "hidden_size": "hidden SIZE|hidden|d model|model SIZE|embedding SIZE|embedding|SIZE|d hidden|d embedding|residual SIZE",
    "intermediate_size": "intermediate SIZE|ffn SIZE|ffn hidden SIZE|d ffn|mlp SIZE|mlp hidden SIZE|inner|ffn|ffn intermediate SIZE|mlp",
    "vocab_size": "vocab SIZE|vocab|padded vocab SIZE",
    "max_position_embeddings": "max position embedding|max position|position|max sequence length|sequence length|sequence|max length|context|"
    "context length|max context|max context length|max sequence|training sequence length|context SIZE|context window|max tokens|"
    "training context|training context length|training length|context tokens|max context tokens|max sequence tokens|max input length|"
    "max input tokens|supported context|max supported context|max supported tokens|max training length|max training context",
    "window": "window|window SIZE|window length|d window",
    "chunk": "chunk|chunk SIZE|chunk length",
    "sink": "sink|sink SIZE|sink token",
    "kv_lora_rank": "kv lora rank|kv rank|kv latent rank|kv latent SIZE|kv latent|latent SIZE|latent rank|latent|d latent|kv lora SIZE|d kv latent|d c|d c kv",
    "qk_rope_head_dim": "qk rope head SIZE|rope head SIZE|rope SIZE|qk rope SIZE|d rope|rope key SIZE|key rope SIZE|rope|d r",
    "qk_nope_head_dim": "qk nope head SIZE|nope head SIZE|nope SIZE|qk nope SIZE|d nope|nope",
    "num_heads": "head",
    "d_state": "state SIZE|state|d state",
    "n_groups": "group",
    "d_conv": "d conv|conv|conv kernel|conv kernel SIZE|conv size|conv width|conv length|conv tap|kernel|kernel SIZE|kernel length|conv l cache",
    "d_inner": "d inner|inner SIZE|inner|intermediate SIZE",
    "num_key_heads": "key head|head", "num_value_heads": "value head|head",
    "key_head_dim": "key head SIZE|key SIZE|d key|head SIZE|d head", "value_head_dim": "value head SIZE|value SIZE|d value|head SIZE|d head",
    "qk_head_dim": "qk head SIZE|qk SIZE|key head SIZE|head SIZE", "lru_width": "SIZE", "channels": "channel|dim",
    "index_n_heads": "head", "index_head_dim": "head SIZE|d head", "index_topk": "topk|top k",
    "expand": "expand|expand factor",
}  # fmt: skip
"""The words by which a parameter is known, those of one phrase with blanks between. SIZE is any word for a width."""
# Exceptions: a key that also has one of these words has not borne on the cache in any config seen.
_HARMLESS: Final = (
    r"use_cache|expert|_token_i(d|nde)|token_index|cache_implementation|attn_implementation|attn_impl$|dropout|logit|initializer|"
    r"_init|init_|_std$|norm|bias$|scale|scaling|rope|rotary|softmax|tie_|_dtype$|quant|pruned_heads|cross_entropy|vision|image|"
    r"video|audio|_eps$|epsilon|_fusion|_act$|activation|clip|temperature|loss|^mlp_|_mlp_|^mtp_|_mtp_|chunk_size_feed_forward|"
    r"for_llm_compressor|^compression_config$|classif|output_hidden_states|^ignore_index$"
)
_SIZE: Final = ("dim", "size", "width")
SUBJECTS: Final[Mapping[str, str]] = {
    "mamba1": "mamba ssm mamba1 s6", "mamba2": "mamba ssm mamba2 ssd", "gated_delta_net": "linear gdn delta deltanet gated net", "kimi_delta_attention": "linear kda kimi delta",
    "lightning_attention": "linear lightning", "gated_linear_attention": "linear gla gated", "real_gated_lru": "lru rglru rg", "rwkv_matrix": "rwkv wkv",
    "matrix_lstm": "mlstm xlstm", "short_convolution": "conv shortconv", "sliding_attention": "sliding swa local", "chunked_attention": "chunked",
    "sink_attention": "sliding swa sink", "full_attention": "full global softmax", "latent_attention": "mla", "sparse_indexer": "index indexer dsa", "cross_attention": "cross",
}  # fmt: skip
"""The words by which a key says that it is about a kind of layer."""
_OF_STATES: Final = frozenset({"recurrent", "rnn", "state"})
_FILLERS: Final = frozenset(
    [
        "attention",
        "self",
        "model",
        "text",
        "decoder",
        "language",
        "llm",
        "transformer",
        "mixer",
        "backbone",
        "causal",
        "short",
        "gqa",
        "mha",
        "mqa",
    ]
)
"""Words that change nothing."""
_OF_LAYERS: Final = frozenset({"layer", "block"})
"""Words that change nothing where layers are not what is counted."""
_SPELLED: Final = frozenset({"pattern", "layout", "cycle", "period", "unit", "schedule", "repeat", "type", "kind"})
"""Words of keys whose text may have a letter for each layer."""
_COUNTING: Final = frozenset(
    [
        "n",
        "nb",
        "num",
        "number",
        "count",
        "total",
        "of",
        "per",
        "in",
        "the",
        "each",
        "cfg",
        "config",
        "param",
        "parameter",
        "args",
        "kwargs",
        "setting",
        "opt",
        "option",
    ]
)
"""Words that are passed over wherever they stand."""
_SAME: Final[Mapping[str, str]] = by_word(
    {
        "attention": "attn att selfattention", "size": "sz", "dim": "dimension dims", "width": "wide", "query": "q", "key": "k", "value": "v",
        "kv": "keyvalue kvs", "layer": "lyr", "embedding": "embd embed emb embeds", "context": "ctx", "sequence": "seq", "length": "len",
        "max": "maximum longest", "position": "pos", "vocab": "vocabulary", "conv": "convolution conv1d shortconv", "ffn": "ff feedforward mlpff",
        "expand": "expansion", "training": "train trained pretrain pretraining pretrained", "intermediate": "inter", "state": "statespace", "window": "windowed win",
    }
)  # fmt: skip
_JOINED: Final = r"(?:n|d|num|kv|q|head|vocab|ffn|seq|ctx|conv|state)"
_BEHIND: Final = r"(?:heads?|layers?|groups?|state|conv|inner|model|dim|size|len|embd|ff|kernel|ctx|vocab)"
"""Words that are written as one: nheads, headdim, dmodel."""
_DEEPEST: Final = 3
_MOST: Final = 2_000


@lru_cache(maxsize=4096)
def words_of(key: str) -> Words:
    """The words of a key, without what only says that it counts.

    >>> words_of("num_query_heads") == words_of("nQHeads") == frozenset({"query", "head"})
    True
    """
    found: list[str] = []
    for part in re.findall(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*|\d+", key[:200].replace("conv1d", "conv")):
        word = part.lower()
        found += joined.groups() if (joined := re.fullmatch(f"({_JOINED})({_BEHIND})", word)) else (word,)
    single = (word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word for word in found)
    same = (_SAME.get(word, word) for word in single)
    both = [word for word in same if word not in _COUNTING]
    text = " ".join(both).replace("feed forward", "ffn").replace("key value", "kv").replace("state space", "ssm")
    return frozenset(text.split())


_CONTAINERS: Final = frozenset(["dim", "size", "shape", "arch", "architecture", "network", "hparam", "hyper", "model"])
"""Words of objects that only hold the numbers of a model."""


def _words_of_path(path: str) -> Words:
    """The words of a dotted key."""
    outer, _, key = path.rpartition(".")
    return words_of(key) | (words_of(outer) - _CONTAINERS) if outer else words_of(path)


@lru_cache(maxsize=1)
def _phrases() -> Mapping[str, tuple[Words, ...]]:
    found = {}
    for field, text in _PHRASES.items():
        phrases = [phrase.replace("SIZE", size) for phrase in text.split("|") for size in (_SIZE if "SIZE" in phrase else ("",))]
        found[field] = tuple(dict.fromkeys(words_of(phrase) for phrase in phrases))
    return found


def harmless(path: str) -> bool:
    """True if a key is about something that never bears on the cache, such as an image tower or a rotary embedding.

    >>> harmless("vision_config.num_heads"), harmless("num_heads")
    (True, False)
    """
    return re.search(_HARMLESS, path) is not None


class Found(NamedTuple):
    """A value of a file, and the key that has it. Lists have a value for each layer."""

    value: Any
    key: str


class Entry(NamedTuple):
    """A number of a file, or a list of one for each layer, with the words of its key."""

    key: str
    words: Words
    value: Any


def entries(raw: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """The values of a file by dotted key, those of nested objects too, but for parts that are no part of the language model."""
    level: list[tuple[str, Any]] = [(str(key), value) for key, value in islice(raw.items(), _MOST)]
    for _ in range(_DEEPEST):
        inner = []
        for path, value in level:
            if not isinstance(value, Mapping):
                yield path, value
            elif not harmless(path):
                inner += [(f"{path}.{key}", item) for key, item in islice(value.items(), _MOST)]
        level = inner[:_MOST]


def number_in(key: str, value: object) -> object:
    """A value, as a whole number where it is one in other clothes: ``131072.0``, ``"128k"`` or ``"131,072 tokens"``.

    Digits of a key about layers may stand for a layer each.

    >>> number_in("context", "128k"), number_in("ctx", 4096.0), number_in("expand", 1.5), number_in("layer_pattern", "0011")
    (131072, 4096, 1.5, '0011')
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    text = (
        re.fullmatch(r"(\d{1,3}(?:[ ,_]\d{3})+|\d{1,12})\s?([kKmM]?)(?:\s?tok(?:en)?s?)?", value.strip())
        if isinstance(value, str)
        else None
    )
    if text is None or words_of(key) & (_OF_LAYERS | _SPELLED):
        return value
    return int(re.sub(r"\D", "", text[1])) * {"": 1, "k": 1024, "m": 1024**2}[text[2].lower()]


def is_number(value: object) -> bool:
    """True for a whole number that may be a dimension."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_DIMENSION


class Keys:
    """The numbers of a file, found by the words of their keys."""

    def __init__(self, raw: Mapping[Any, Any], *, prefer: str = "") -> None:
        self.raw = raw
        self._prefer = prefer
        self.used: set[str] = set()
        """The keys that something was read from."""
        self.entries = tuple(
            Entry(key, _words_of_path(key), value)
            for key, said in entries(raw)
            for value in (number_in(key, said),)
            if is_number(value) or (isinstance(value, float) and 0 < value < MAX_DIMENSION) or isinstance(value, (list, tuple))
        )

    def find(self, field: str, kind: str = "", *, bare: bool = True) -> Found | None:
        """The value of a field; ``None`` if no key gives it. The value is ``None`` if several give it and disagree.

        ``kind`` is the kind of layer, whose own keys come first; without ``bare`` others do not count.
        """
        ranked: dict[int, list[Entry]] = {}
        for entry in self.entries:
            rank = match(entry.key, entry.words, field, kind)
            if rank is not None and (bare or rank == 0):
                ranked.setdefault(rank, []).append(entry)
        if not ranked:
            return None
        best = ranked[min(ranked)]
        best = [entry for entry in best if self._prefer and self._prefer in entry.words] or best
        if any(entry.value != best[0].value for entry in best):
            other = next(entry for entry in best if entry.value != best[0].value)
            said = (f"{entry.key} {brief(str(entry.value), 30)}" for entry in (best[0], other))
            return Found(None, f"{' and '.join(said)} disagree")
        return Found(best[0].value, best[0].key)

    def take(self, field: str, kind: str = "", *, bare: bool = True) -> Found | None:
        """The same, for a value that is used: its keys count as read, and those that say the same."""
        found = self.find(field, kind, bare=bare)
        if found is not None:
            # Keys that disagree are named where their number is missing.
            same = (entry for entry in self.entries if found.value in (None, entry.value))
            self.used.update(entry.key for entry in same if match(entry.key, entry.words, field, kind) is not None)
        return found

    def number(self, field: str, kind: str = "", *, bare: bool = True) -> Found | None:
        """The same for a whole number alone."""
        found = self.take(field, kind, bare=bare)
        return found if found is not None and is_number(found.value) else None

    def named(self, subjects: Iterable[str]) -> bool:
        """True if a key is about one of these subjects and gives a parameter of such layers."""
        wanted = frozenset(subjects)
        return any(wanted & entry.words and len(entry.words) > 1 and is_number(entry.value) for entry in self.entries)


@lru_cache(maxsize=16_384)
def match(key: str, words: Words, field: str, kind: str) -> int | None:
    """How well a key gives a field of a kind of layer: 0 if it names the kind, 1 if it is the field's name, 2 by other words; ``None`` if not at all."""
    own = frozenset(SUBJECTS.get(kind, "").split())
    state = kind in _STATES
    others = own | _FILLERS | (_OF_STATES if state else frozenset())
    others |= frozenset() if field in ("num_hidden_layers", "hidden_size") else _OF_LAYERS
    matched = any(phrase <= words and words - phrase <= others for phrase in _phrases().get(field, (words_of(field),)))
    # Beside a latent the width of values is that of a head: there is no other.
    matched = matched or (field == "v_head_dim" and kind == "latent_attention" and bool(words in _phrases()["value_head_dim"]))
    named = matched and bool(own & words)
    if named:
        return 0
    if field in _OF_ITS_KIND and words != {"d", "inner"}:
        return 0 if key == field else None
    if key == field:
        return 1
    return 2 if matched or key in ALIASES.get(_CANONICAL.get(field, field), ()) else None


_OF_ITS_KIND: Final = frozenset({"lru_width", "channels", "index_n_heads", "index_head_dim", "index_topk", "d_inner"})
"""Fields whose words alone would be those of anything."""
_CANONICAL: Final[Mapping[str, str]] = {"window": "sliding_window"}
_STATES: Final = frozenset(kind.name for kind in StateKind.__subclasses__())


@lru_cache(maxsize=4096)
def meanings(key: str) -> frozenset[tuple[str, str]]:
    """What a key may say, as pairs of a kind of layer (empty for attention and the whole model) and a field."""
    words, found = words_of(key), set[tuple[str, str]]()
    for field in (
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "hidden_size",
        "vocab_size",
        "kv_lora_rank",
    ):
        if match(key, words, field, "") is not None:
            found.add(("", field))
    if match(key, words, "window", "sliding_attention") is not None:
        found.add(("sliding_attention", "window"))
    for kind in ("mamba2", "mamba1", "gated_delta_net", "kimi_delta_attention"):
        for field in (
            "num_heads",
            "head_dim",
            "d_state",
            "d_conv",
            "n_groups",
            "num_key_heads",
            "num_value_heads",
            "key_head_dim",
            "value_head_dim",
        ):
            if match(key, words, field, kind) == 0:
                found.add((kind, field))
    return frozenset(found)


def meant(raw: Mapping[Any, Any], key: str) -> Found | None:
    """The number of a file under a key that says the same as ``key`` in other words; ``None`` if there is none."""
    wanted = meanings(key)
    for other, value in raw.items():
        if other != key and is_number(value) and wanted & meanings(str(other)):
            return Found(value, str(other))
    return None
