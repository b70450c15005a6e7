"""The start-up log of SGLang, 0.5.23 and releases near it.

"GB" is 2^30 bytes. Pools are printed at their physical size, with one page and one slot more than the counts beside them. Sources of the
wordings: SGLang ``model_executor/model_runner.py``, ``mem_cache/memory_pool.py``, ``pool_configurator.py`` and ``managers/scheduler.py``.
"""

from __future__ import annotations

import re
from typing import Final

from hwcalc.engines.memory import Section
from hwcalc.engines.sglang.engine import SglangOccupancy
from hwcalc.formulas import Role
from hwcalc.model import Note
from hwcalc.reconcile.facts import Dialect, Facts, Row, compared, named_budget, number_after, spread, total

_COUNTS: Final = (
    ("tokens", "max_total_num_tokens="), ("running", "max_running_requests="), ("context", "context_len="),
    ("chunk", "chunked_prefill_size="), ("full_tokens", "full_layer_tokens="), ("swa_tokens", "swa_layer_tokens="),
    ("slots", "max_mamba_cache_size:"),
)  # fmt: skip
_SIZES: Final = (
    ("weights_bytes", "mem usage="), ("conv_bytes", "conv_state size:"), ("state_bytes", "ssm_state size:"),
    ("key_bytes", "K size:"), ("value_bytes", "V size:"), ("latent_bytes", "KV size:"),
)  # fmt: skip
_ARGUMENT: Final = re.compile(r"\b([a-z_]{4,40})=('?)([A-Za-z0-9_.:/-]{1,120})\2[,)]", re.ASCII)
_V4_COUNTS: Final = (("full_tokens", "full="), ("swa_tokens", "swa="))
_KEYWORDS: Final = {"tp_size": "tp", "pp_size": "pp", "context_length": "seq"}
_POOL: Final = ("tokens", "key_bytes", "latent_bytes")


class SglangLog(Dialect):
    """Reads a log line by line."""

    name = "sglang"
    engine = "sglang"
    longest = 8192
    sought = (
        "KV Cache is allocated. dtype:",
        "max_total_num_tokens=",
        "Mamba Cache is allocated.",
        "Load weight end.",
        "Memory pool end.",
        "full_layer_tokens=",
        "DSV4 pool sizes:",
    )

    def read(self, text: str) -> None:
        """Add the facts that one line states."""
        from hwcalc.engines.sglang.settings import ARGUMENTS, SWITCHES

        facts = self.facts
        if "server_args=ServerArgs(" in text:
            if any(name in facts for name in _POOL):
                self.restart()
            for found in _ARGUMENT.finditer(text[text.find("ServerArgs(") :]):
                name, value = found.group(1), found.group(3)
                if value != "None" and name in (*ARGUMENTS, *SWITCHES, *_KEYWORDS, "dp_size", "kv_cache_dtype"):
                    facts.add(f"arg_{name}", value)
            return
        # DeepSeek-V4's pools have a line of their own.
        for name, wording in (*_COUNTS, *(_V4_COUNTS if "DSV4 pool sizes:" in text else ())):
            facts.add_count(name, number_after(text, wording), least=0)
        # The pool of windows has as many tokens as an earlier line has said.
        printed = number_after(text, "#tokens:")
        windows = printed is not None and printed.value == facts.number("swa_tokens") != facts.number("full_tokens")
        if "KV Cache is allocated" in text:
            facts.add_count("swa_held" if windows else "held", printed, least=0)
        for name, wording in _SIZES:
            wide = name in ("key_bytes", "value_bytes", "latent_bytes")
            facts.add_bytes(f"swa_{name}" if windows and wide else name, number_after(text, wording))

    def inputs(self) -> tuple[dict[str, object], dict[str, str]]:
        """The keywords of a plan and the engine options that the log states."""
        from hwcalc.engines.sglang.settings import ARGUMENTS, SWITCHES

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
            stated["dtype"] = dtype
        options = {name: word for name in ARGUMENTS if (word := self.facts.word(f"arg_{name}")) is not None}
        options |= {name: "true" for name in SWITCHES if self.facts.word(f"arg_{name}") == "True"}
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

        facts = self.facts
        weights = total(part for part in occupancy.weights.value or () if part.section is Section.WEIGHTS)
        meaning = "weights of the fullest rank"
        rows = compared("weights", facts.last("weights_bytes"), weights, tolerance, "estimate", meaning)
        if occupancy.deployment.compressed is None:
            rows += _rows_of_pools(facts, occupancy, tolerance)
        tokens, slots = facts.number("tokens"), facts.number("slots")
        if tokens is not None:
            # The log may be that of another model, which has states.
            held = int(slots) if slots is not None and occupancy.deployment.slots else None
            running, meaning = most_running(occupancy.settings, int(tokens), held), "what so many tokens and slots allow"
            rows += compared("requests at once", facts.last("running"), running, tolerance, "engine", meaning)
        size = occupancy.setup.hardware.kv_memory
        ends = None if size is None else [size]
        if size is None and (budget := named_budget(occupancy)) is not None:
            ends = [budget.expected, budget.low, budget.high]
        if ends is None:
            message = (
                "The log does not say how many bytes the pools have: give them with --kv-memory, or name the GPU with --gpu."
            )
            return rows, [Note(code="budget-unknown", message=message)] if tokens is not None else []
        pools = [occupancy.sizes(max(0, end)) for end in ends]
        for name, counted in (("tokens", "tokens"), ("window tokens", "swa_tokens"), ("state slots", "slots")):
            counts = [getattr(one, counted) for one in pools]
            if None not in counts:
                predicted, meaning = spread(*counts), "pools of the planned budget"
                rows += compared(name, facts.last(counted), predicted, tolerance, "engine", meaning)
        return rows, []

    def batch_shape(self, occupancy: SglangOccupancy) -> tuple[int, int]:
        """Tokens of one forward pass, and sequences."""
        return occupancy.settings.chunk, occupancy.request.replica_batch


def _rows_of_pools(facts: Facts, occupancy: SglangOccupancy, tolerance: float) -> list[Row]:
    """The physical size of each pool, by the tokens and slots that the log states beside it."""
    from hwcalc.engines.sglang.layout import SWA

    rows: list[Row] = []
    groups, page = occupancy.deployment.plain_stack.groups, occupancy.settings.page_size
    layout = occupancy.deployment.layout
    for prefix, word in (("", ""), ("swa_", "window ")) if occupancy.settings.pp == 1 else ():
        tokens = facts.number(f"{prefix}held")
        for name, role in (("key", Role.KEY), ("value", Role.VALUE), ("latent", Role.LATENT)):
            size = sum(
                group.count * sum(one.bytes for one in layout.rows[group.kind] if one.role is role)
                for group in groups
                if (layout.pools[group.kind] == SWA) is bool(prefix)
            )
            if size and tokens is not None:
                held = int(tokens) + page
                fact, meaning = facts.last(f"{prefix}{name}_bytes"), f"{held:,} tokens x {size:,} B"
                rows += compared(f"{word}{name} pool", fact, held * size, tolerance, "engine", meaning)
    slots = facts.number("slots")
    if slots is not None and layout.stages[0].slot_bytes:
        for place, name in enumerate(("conv", "state")):
            size = sum(group.count * layout.state_bytes.get(group.kind, (0, 0))[place] for group in groups)
            held = int(slots) + 1
            fact, meaning = facts.last(f"{name}_bytes"), f"{held:,} slots x {size:,} B"
            rows += compared(f"{name} pool", fact, held * size, tolerance, "engine", meaning)
    return rows
