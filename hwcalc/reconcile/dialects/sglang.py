"""The start-up log of SGLang, and what a running server says.

Its arguments tell the release: each one came with some argument, and a start prints them all. "GB" is 2^30 bytes. Pools are printed at
their physical size, with one page and one slot more than the counts beside them. Sources of the wordings: SGLang
``model_executor/model_runner.py``, ``mem_cache/memory_pool.py``, ``pool_configurator.py`` and ``managers/scheduler.py``.

A server answers ``/server_info`` (older releases: ``/get_server_info``; ``entrypoints/http_server.py``, ``managers/scheduler.py``
get_internal_state), and ``/metrics`` where it was started with ``--enable-metrics`` (``observability/metrics_collector.py``). The first has
its API keys in it: only what is named here is taken.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.engines.memory import Section
from hwcalc.engines.sglang.engine import SglangOccupancy
from hwcalc.formulas import Role
from hwcalc.model import Note
from hwcalc.reconcile.facts import Dialect, Facts, Row, add_device, compared, named_budget, number_after, number_at, spread, total
from hwcalc.units import MIB

_COUNTS: Final = (
    ("tokens", "max_total_num_tokens="), ("running", "max_running_requests="), ("context", "context_len="),
    ("chunk", "chunked_prefill_size="), ("full_tokens", "full_layer_tokens="), ("swa_tokens", "swa_layer_tokens="),
    ("slots", "max_mamba_cache_size:"),
)  # fmt: skip
_SIZES: Final = (
    ("conv_bytes", "conv_state size:"), ("state_bytes", "ssm_state size:"),
    ("key_bytes", " K size:"), ("value_bytes", " V size:"), ("latent_bytes", "KV size:"),
)  # fmt: skip
_ARGUMENT: Final = re.compile(r"\b([a-z_]{4,40})(?:=|': )('?)([A-Za-z0-9_.:/@+-]{1,300})\2[,)}]", re.ASCII)
"""An argument of ``ServerArgs(tp_size=1, ...)``, and since 0.5.19 of ``{'tp_size': 1, ...}``."""
_ARGUMENTS: Final = ("server_args=ServerArgs(", "server_args={")
_RANK: Final = re.compile(r"\[(?:[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8} )?([A-Z]{2,3}[0-9]{1,4}(?: [A-Z]{2,3}[0-9]{1,4}){0,4})\]")
_CLASS: Final = re.compile(r"\btype=([A-Za-z0-9_]{1,80})")
_FORMAT: Final = re.compile(r"\bquant=([A-Za-z0-9_-]{1,40})")
_V4_COUNTS: Final = (("full_tokens", "full="), ("swa_tokens", "swa="))
_KEYWORDS: Final = {"tp_size": "tp", "pp_size": "pp", "context_length": "seq"}
_MORE: Final = (
    "dp_size", "kv_cache_dtype", "model_path", "quantization", "attention_backend", "device", "speculative_algorithm",
    "speculative_num_draft_tokens",
)  # fmt: skip
_POOL: Final = ("tokens", "key_bytes", "latent_bytes")
_POOLS: Final = ("key_bytes", "value_bytes", "latent_bytes", "conv_bytes", "state_bytes")
_MOST_GB: Final = 10_000
"""No GPU has more."""


def _older_dtype(facts: Facts, named_version: str | None) -> str | None:
    """The KV dtype that the log names, where the planned release has another word for it: a log that does not say its release."""
    from hwcalc.engines.sglang.rules import NEWEST, resolve, rules_of
    from hwcalc.engines.sglang.settings import OLD_SPELLINGS

    named, release = facts.word("arg_kv_cache_dtype"), resolve(named_version or facts.word("version") or NEWEST)
    return named if named in OLD_SPELLINGS and named not in rules_of(release).kv_dtypes else None


def _without_scales(facts: Facts) -> bool:
    """True if the log is of a release that prints the sizes of four bits without their scales."""
    from hwcalc.engines.sglang.settings import OLD_SPELLINGS

    return facts.word("arg_kv_cache_dtype") in OLD_SPELLINGS


class SglangLog(Dialect):
    """Reads a log line by line.

    A draft is loaded and gets its pools by lines of the same form as the model's, later or between them: only the model's count.
    """

    name = "sglang"
    engine = "sglang"
    states_version = True
    longest = 16_384
    sought = (
        "KV Cache is allocated. dtype:",
        "max_total_num_tokens=",
        "Mamba Cache is allocated.",
        "Load weight end.",
        "Memory pool end.",
        "full_layer_tokens=",
        "DSV4 pool sizes:",
    )
    endpoints = ("/server_info", "/get_server_info", "/metrics")
    metrics = "sglang:"
    gauges = MappingProxyType({
        "sglang:num_running_reqs": "running_requests", "sglang:num_queue_reqs": "waiting_requests", "sglang:token_usage": "usage_share",
        "sglang:num_used_tokens": "used_tokens", "sglang:max_total_num_tokens": "tokens", "sglang:context_len": "context",
    })  # fmt: skip
    pool_of = "dp_rank"
    limit = ("running", "max_running_requests")

    def __init__(self) -> None:
        super().__init__()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._loaded: dict[str | None, str] = {}
        """The class of the model that each process loaded first."""
        self._pools: dict[str | None, list[int]] = {}
        """The tokens of the pools that each process made."""
        self._done: set[str | None] = set()
        """Processes that have made all of the model's pools."""

    def restart(self) -> None:
        """As :meth:`Dialect.restart`."""
        super().restart()
        self._begin_anew()

    def read(self, text: str) -> None:
        """Add the facts that one line states."""
        facts = self.facts
        if any(words in text for words in _ARGUMENTS):
            if any(name in facts for name in _POOL):
                self.restart()
            self._arguments(text[text.find("server_args=") + len("server_args=") :])
            return
        if "device_name=" in text:
            add_device(facts, text)
        if "Load weight " in text:
            self._load(text)
        # DeepSeek-V4's pools have a line of their own.
        for name, wording in (*_COUNTS, *(_V4_COUNTS if "DSV4 pool sizes:" in text else ())):
            facts.add_count(name, number_after(text, wording), least=0)
        if "Memory pool end" in text:
            self._done.add(_rank(text))
        if "KV Cache is allocated" in text or "Cache is allocated." in text:
            self._pool(text)

    def answered(self, path: str, document: Any) -> None:
        """Add the arguments, the version, and what each replica's scheduler states of its memory."""
        from hwcalc.engines.sglang.rules import ARGUMENTS_SINCE

        facts = self.facts
        if not isinstance(document, dict) or "internal_states" not in document:
            return
        self._release(next((release for release, name in ARGUMENTS_SINCE.items() if name in document), None))
        facts.add_release(str(document.get("version", "")))
        for name, value in document.items():
            if isinstance(value, str | int | float):
                self._argument(name, str(value))
        facts.add_whole("tokens", document.get("max_total_num_tokens"), "tokens")
        states = document["internal_states"]
        states = [state for state in states if isinstance(state, dict)] if isinstance(states, list) else []
        for number, state in enumerate(states):
            facts.add_whole("running", state.get("effective_max_running_requests_per_dp"))
            match state.get("memory_usage"):
                case {**sizes}:
                    rank = f"{self.pool_of} {number}" if len(states) > 1 else None
                    for fact, key in (("weights_bytes", "weight"), ("kv_bytes", "kvcache")):
                        printed = number_at(f"{sizes.get(key)} GB", 0)
                        if printed is not None and 0 < printed.value < _MOST_GB:
                            facts.add_bytes(fact, printed, rank=rank)
                    facts.add_whole("tokens", sizes.get("token_capacity"), "tokens", rank=rank)

    def _arguments(self, text: str) -> None:
        from hwcalc.engines.sglang.rules import ARGUMENTS_SINCE

        self._release(next((release for release, name in ARGUMENTS_SINCE.items() if re.search(rf"\b{name}\b", text)), None))
        for found in _ARGUMENT.finditer(text):
            self._argument(found.group(1), found.group(3))

    def _release(self, release: str | None) -> None:
        if release is not None:
            self.facts.add("version", release)

    def _argument(self, name: str, value: str) -> None:
        from hwcalc.engines.sglang.settings import ARGUMENTS, SWITCHES

        if value != "None" and name in (*ARGUMENTS, *SWITCHES, *_KEYWORDS, *_MORE):
            self.facts.add(f"arg_{name}", value)
            if name in ("model_path", "quantization"):
                self.facts.add(name.removesuffix("_path"), value)

    def _load(self, text: str) -> None:
        """The memory that is free before and after loading, and what the weights take."""
        rank, facts = _rank(text), self.facts
        begins = "Load weight begin" in text
        named = _CLASS.search(text)
        kind = "" if named is None else named[1]
        first = self._loaded.get(rank)
        if first is not None and (begins or kind != first):
            return
        free = number_after(text, "avail mem=")
        if begins:
            facts.add_bytes("begin_bytes", free, rank=rank)
        elif "Load weight end" in text:
            self._loaded[rank] = kind
            facts.add_bytes("end_bytes", free, rank=rank)
            facts.add_bytes("weights_bytes", number_after(text, "mem usage="), rank=rank)
            stored = _FORMAT.search(text)
            if stored is not None and stored[1].lower() not in ("none", "unquant"):
                facts.add("quantization", stored[1].lower())

    def _pool(self, text: str) -> None:
        """The size of a pool, with its tokens. The pool of windows has as many as an earlier line has said."""
        facts, rank = self.facts, _rank(text)
        printed = number_after(text, "#tokens:")
        if printed is not None:
            tokens, made = int(printed.value), self._pools.setdefault(rank, [])
            halves = facts.number("swa_tokens") == facts.number("full_tokens") == tokens and len(made) == 1
            if rank in self._done or (tokens in made and not halves):
                return  # a draft's pool, which has as many tokens as the model's
            made.append(tokens)
        windows = printed is not None and printed.value == facts.number("swa_tokens") != facts.number("full_tokens")
        facts.add_count("swa_held" if windows else "held", printed, least=0)
        for name, wording in _SIZES:
            wide = name in ("key_bytes", "value_bytes", "latent_bytes")
            facts.add_bytes(f"swa_{name}" if windows and wide else name, number_after(text, wording))

    def inputs(self) -> tuple[dict[str, object], dict[str, str]]:
        """The keywords of a plan and the engine options that the log states."""
        from hwcalc.engines.sglang.settings import ARGUMENTS, ATTENTION_BACKENDS, MAX_LENGTH, OLD_SPELLINGS, SWITCHES

        stated: dict[str, object] = {}
        for argument, keyword in _KEYWORDS.items():
            word = self.facts.word(f"arg_{argument}")
            if word is not None and word.isdecimal():
                stated[keyword] = int(word)
        context = self.facts.number("context")
        if context is not None:
            stated["seq"] = int(context)
        dtype = self.facts.word("arg_kv_cache_dtype")
        if dtype is not None and dtype != "auto":
            stated["dtype"] = dtype if _older_dtype(self.facts, self.named_version) is None else OLD_SPELLINGS[dtype]
        options = {name: word for name in ARGUMENTS if (word := self.facts.word(f"arg_{name}")) is not None}
        named = self.facts.word(f"arg_{MAX_LENGTH}")
        if named is not None and named.isdecimal():
            options[MAX_LENGTH] = named
        options |= {name: "true" for name in SWITCHES if self.facts.word(f"arg_{name}") == "True"}
        kernel = self.facts.word("arg_attention_backend")
        if kernel in ATTENTION_BACKENDS:
            options["attention_backend"] = kernel
        replicas = self.facts.word("arg_dp_size")
        if replicas is not None and replicas.isdecimal() and int(replicas) > 1:
            stated["dp"] = int(replicas)
            tp = stated.get("tp")
            if "enable_dp_attention" in options and isinstance(tp, int):
                # Its ranks are those of all replicas together.
                stated["tp"] = max(1, tp // int(replicas))
        return stated, options

    def compare(self, occupancy: SglangOccupancy, tolerance: float) -> tuple[list[Row], list[Note]]:
        """A row for every figure that the log and the plan have, and notes about what could not be compared."""
        from hwcalc.engines.sglang.pools import most_running

        facts, device = self.facts, self.facts.word("arg_device") or "cuda"
        weights = total(part for part in occupancy.weights.value or () if part.section is Section.WEIGHTS)
        meaning = "weights of the fullest rank, and what loading allocates beside them"
        if weights is not None:
            # The log's figure is what the device has less.
            weights = replace(weights, high=weights.high + _BESIDE_MIB * MIB)
        rows = compared("weights", facts.largest("weights_bytes"), weights, tolerance, "estimate", meaning)
        notes: list[Note] = []
        older = _older_dtype(self.facts, self.named_version)
        if older is not None:
            message = f"KV dtype {older}: the word of releases before 0.5.16, of which the log is not known to be; counted as {occupancy.settings.kv_dtype}."
            notes.append(Note(code="older-name", message=message))
        own = device == "cuda"
        if not own:
            message = (
                f"The log is of SGLang on {device}, a port with rules of its own: its pools are compared where they are alike, and its "
                "budget is not."
            )
            notes.append(Note(code="other-port", message=message))
        if occupancy.deployment.compressed is None and (own or not _is_unlike(occupancy)):
            rows += _rows_of_pools(facts, occupancy, tolerance)
        tokens, slots = facts.number("tokens"), facts.number("slots")
        if tokens is not None:
            # The log may be that of another model, which has states.
            held = int(slots) if slots is not None and occupancy.deployment.slots else None
            running, meaning = most_running(occupancy.settings, int(tokens), held), "what so many tokens and slots allow"
            rows += compared("requests at once", facts.last("running"), running, tolerance, "engine", meaning)
        if not own:
            return rows, notes
        found = _budget(facts, occupancy)
        if found is None:
            return rows, [*notes, self.without_budget] if tokens is not None else notes
        ends, meaning, definition = found
        pools = [occupancy.sizes(max(0, end)) for end in ends]
        for name, counted in (("tokens", "tokens"), ("window tokens", "swa_tokens"), ("state slots", "slots")):
            counts = [getattr(pool, counted) for pool in pools]
            if None not in counts:
                rows += compared(name, facts.last(counted), spread(*counts), tolerance, definition, meaning)
        return rows, notes

    def batch_shape(self, occupancy: SglangOccupancy) -> tuple[int, int]:
        """Tokens of one forward pass, and sequences."""
        return occupancy.settings.chunk, occupancy.request.replica_batch


def _rank(text: str) -> str | None:
    """The process that wrote a line, such as ``DP1 TP1`` in ``[2026-01-04 00:36:42 DP1 TP1]``."""
    found = _RANK.search(text, 0, 200)
    return None if found is None else found[1]


def _is_unlike(occupancy: SglangOccupancy) -> bool:
    """True if ports keep this model otherwise: indexers and states have other tensors there."""
    from hwcalc.engines.sglang.settings import is_sparse_latent

    return is_sparse_latent(occupancy.model) or occupancy.deployment.slots > 0


def _budget(facts: Facts, occupancy: SglangOccupancy) -> tuple[list[int], str, str] | None:
    """The bytes of the pools, with the least and the most where they are not exact; what they follow from, and how sure they are.

    In order of preference: the user's, those of the log's lines about loading, the sizes of the log's pools, those of the named GPU.
    """
    size = occupancy.setup.hardware.kv_memory
    if size is not None:
        return [size], "pools of the given bytes", "engine"
    loaded = _budget_of_loading(facts, occupancy)
    if loaded is not None:
        return loaded, "what loading leaves free, less the share that stays free", "engine"
    printed = [fact for prefix in ("", "swa_") for name in _POOLS if (fact := facts.last(f"{prefix}{name}")) is not None]
    if not printed and not occupancy.deployment.slots:
        # A server states keys and values together, and no states.
        printed = [*facts.ranks("kv_bytes")[:1]]
    plain = occupancy.deployment.compressed is None and occupancy.settings.pp == 1
    if printed and plain and not _without_scales(facts):
        least, most = (sum(int(getattr(fact, end) or 0) for fact in printed) for end in ("low", "high"))
        stage, page = occupancy.deployment.layout.stages[0], occupancy.settings.page_size
        # Each pool has a page or a slot more than its tokens and slots; what a budget leaves over is less than these.
        padding = page * (stage.token_bytes + stage.swa_bytes) + stage.slot_bytes
        return [(least + most - padding) // 2, least - 2 * padding, most + padding], "the pools that it states", "engine"
    if (budget := named_budget(occupancy)) is not None:
        return [budget.expected, budget.low, budget.high], "pools of the planned budget", "estimate"
    return None


def _budget_of_loading(facts: Facts, occupancy: SglangOccupancy) -> list[int] | None:
    """The bytes that are free after loading, less the share of those before that stays free. Both are the least of all processes."""
    begin, end, share = facts.smallest("begin_bytes"), facts.smallest("end_bytes"), occupancy.settings.fraction
    if begin is None or end is None or share is None or "arg_mem_fraction_static" not in facts:
        return None
    sizes = []
    for first, second in (("value", "value"), ("high", "low"), ("low", "high")):
        before, after = (int(getattr(fact, name) or 0) for fact, name in ((begin, first), (end, second)))
        sizes.append(after - round(before * (1 - share)))
    return [sizes[0], sizes[1] - _BETWEEN_MIB * MIB, sizes[2]]


_BETWEEN_MIB: Final = 100
"""The most that is taken between loading and sizing the pools: 20 to 100 MiB in public logs, and 100 MB for embeddings of images."""
_BESIDE_MIB: Final = 512
"""The most that a device has less than the weights after loading: blocks of the allocator, kernels, 0.1 to 0.5 GiB in public logs."""


def _rows_of_pools(facts: Facts, occupancy: SglangOccupancy, tolerance: float) -> list[Row]:
    """The physical size of each pool, by the tokens and slots that the log states beside it."""
    from hwcalc.engines.sglang.layout import SWA

    rows: list[Row] = []
    groups, page = occupancy.deployment.plain_stack.groups, occupancy.settings.page_size
    layout = occupancy.deployment.layout
    indexed = sum(group.count * sum(row.bytes for row in layout.rows[group.kind] if row.role is Role.INDEX) for group in groups)
    unscaled = _without_scales(facts)
    for prefix, word in (("", ""), ("swa_", "window ")) if occupancy.settings.pp == 1 else ():
        tokens = facts.number(f"{prefix}held")
        for name, role in (("key", Role.KEY), ("value", Role.VALUE), ("latent", Role.LATENT)):
            size = sum(
                group.count * sum(row.bytes for row in layout.rows[group.kind] if row.role is role)
                for group in groups
                if (layout.pools[group.kind] == SWA) is bool(prefix)
            )
            if size and tokens is not None:
                if unscaled:
                    # Older releases print the numbers without their scales, which are a ninth.
                    size = size * 8 // 9
                held = int(tokens) + page
                fact, meaning = facts.last(f"{prefix}{name}_bytes"), f"{held:,} tokens x {size:,} B"
                # Whether the keys of indexers are counted depends on the release.
                predicted = spread(held * size, held * (size + indexed if role is Role.LATENT else size))
                rows += compared(f"{word}{name} pool", fact, predicted, tolerance, "engine", meaning)
    slots = facts.number("slots")
    if slots is not None and layout.stages[0].slot_bytes:
        for place, name in enumerate(("conv", "state")):
            size = sum(group.count * layout.state_bytes.get(group.kind, (0, 0))[place] for group in groups)
            held = int(slots) + 1
            fact, meaning = facts.last(f"{name}_bytes"), f"{held:,} slots x {size:,} B"
            rows += compared(f"{name} pool", fact, held * size, tolerance, "engine", meaning)
    return rows
