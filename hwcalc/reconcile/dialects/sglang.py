"""The start-up log of SGLang, 0.5.23 and releases near it.

"GB" is 2^30 bytes. Pools are printed at their physical size, with one page and one slot more than the counts beside them. Sources of the
wordings: SGLang ``model_executor/model_runner.py``, ``mem_cache/memory_pool.py``, ``pool_configurator.py`` and ``managers/scheduler.py``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from hwcalc.engines.memory import Section
from hwcalc.engines.sglang.deployment import SglangOccupancy
from hwcalc.formulas import Role
from hwcalc.model import Note
from hwcalc.reconcile.dialects.dialect import Dialect
from hwcalc.reconcile.facts import Facts, PrintedNumber, Range, Row, compared, number_after, spread

if TYPE_CHECKING:
    from hwcalc.engines.sglang.deployment import SglangOccupancy


_LONGEST: Final = 8192
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
_KEYWORDS: Final = {"tp_size": "tp", "pp_size": "pp", "context_length": "seq"}
_POOL: Final = ("tokens", "key_bytes", "latent_bytes")


class SglangLog(Dialect):
    """Reads a log line by line. ``facts`` is what the last start of the engine stated; ``starts`` counts the starts."""

    name = "sglang"
    title = "SGLang's start-up log"
    engine = "sglang"
    sought = (
        "KV Cache is allocated. dtype:",
        "max_total_num_tokens=",
        "Mamba Cache is allocated.",
        "Load weight end.",
        "Memory pool end.",
        "full_layer_tokens=",
        "DSV4 pool sizes:",
    )

    def feed(self, number: int, text: str) -> None:
        """Read one line."""
        text = text[:_LONGEST]
        if "server_args=ServerArgs(" in text:
            if any(name in self.facts for name in _POOL):
                self.facts.clear()
                self.starts += 1
            self._arguments(number, text)
            return
        for name, wording in _COUNTS:
            self._count(name, number_after(text, wording) if wording in text else None, number, text)
        if "DSV4 pool sizes:" in text:
            # DeepSeek-V4's pools have a line of their own.
            for name, wording in (("full_tokens", "full="), ("swa_tokens", "swa=")):
                self._count(name, number_after(text, wording) if wording in text else None, number, text)
        windows = self._of_windows(text)
        if "KV Cache is allocated" in text:
            self._count("swa_held" if windows else "held", number_after(text, "#tokens:"), number, text)
        for name, wording in _SIZES:
            printed = number_after(text, wording) if wording in text else None
            if printed is None:
                continue
            wide = name in ("key_bytes", "value_bytes", "latent_bytes")
            self.facts.add_bytes(f"swa_{name}" if windows and wide else name, printed, line=number, text=text)

    def _arguments(self, number: int, text: str) -> None:
        from hwcalc.engines.sglang.settings import ARGUMENTS, SWITCHES

        for found in _ARGUMENT.finditer(text[text.find("ServerArgs(") :]):
            name, value = found.group(1), found.group(3)
            if value != "None" and name in (*ARGUMENTS, *SWITCHES, *_KEYWORDS, "dp_size", "kv_cache_dtype"):
                self.facts.add(f"arg_{name}", value, line=number, text=text)

    def _of_windows(self, text: str) -> bool:
        """Whether a line is about the pool of windows: it has as many tokens as an earlier line has said."""
        stated, printed = self.facts.number("swa_tokens"), number_after(text, "#tokens:") if "#tokens:" in text else None
        return stated is not None and printed is not None and printed.value == stated != self.facts.number("full_tokens")

    def _count(self, name: str, printed: PrintedNumber | None, number: int, text: str) -> None:
        if printed is not None and printed.decimals == 0 and printed.digits >= 0:
            self.facts.add(name, printed.digits, line=number, text=text)

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

        own = occupancy
        rows: list[Row] = []

        def row(name: str, fact: str, predicted: Range | None, definition: str, meaning: str) -> None:
            rows.extend(compared(name, self.facts.last(fact), predicted, tolerance, definition=definition, meaning=meaning))

        weights = [part for part in occupancy.weights.value or () if part.section is Section.WEIGHTS]
        if weights:
            low, expected, high = (sum(getattr(part, end) for part in weights) for end in ("low", "expected", "high"))
            row(
                "weights",
                "weights_bytes",
                Range(low=low, expected=expected, high=high),
                "estimate",
                "weights of the fullest rank",
            )
        if own.deployment.compressed is None:
            _rows_of_pools(self.facts, own, row)
        tokens, slots = self.facts.number("tokens"), self.facts.number("slots")
        if tokens is not None:
            # The log may be that of another model, which has states.
            running = most_running(own.settings, int(tokens), int(slots) if slots is not None and own.deployment.slots else None)
            row("requests at once", "running", spread(running), "engine", "what so many tokens and slots allow")
        size = _budget(own)
        if size is None:
            message = (
                "The log does not say how many bytes the pools have: give them with --kv-memory, or name the GPU with --gpu."
            )
            return rows, [Note(code="budget-unknown", message=message)] if tokens is not None else []
        low, middle, high = (own.sizes(max(0, one)) for one in size)
        figures = (
            ("tokens", "tokens", "tokens"),
            ("window tokens", "swa_tokens", "swa_tokens"),
            ("state slots", "slots", "slots"),
        )
        for name, fact, attribute in figures:
            ends = [getattr(one, attribute) for one in (low, middle, high)]
            if None not in ends:
                row(name, fact, Range(low=min(ends), expected=ends[1], high=max(ends)), "engine", "pools of the planned budget")
        return rows, []

    def batch_shape(self, occupancy: SglangOccupancy) -> tuple[int, int]:
        """Tokens of one forward pass, and sequences."""
        return occupancy.settings.chunk, occupancy.request.replica_batch


def _rows_of_pools(facts: Facts, own: SglangOccupancy, row: object) -> None:
    """The physical size of each pool, by the tokens and slots that the log states beside it."""
    from hwcalc.engines.sglang.layout import SWA

    assert callable(row)
    layout, page, (stage, *_) = own.deployment.layout, own.settings.page_size, own.deployment.layout.stages
    for prefix, windows in (("", False), ("swa_", True)):
        tokens = facts.number(f"{prefix}held")
        if tokens is None:
            continue
        for name, role in (("key_bytes", Role.KEY), ("value_bytes", Role.VALUE), ("latent_bytes", Role.LATENT)):
            size = sum(
                group.count * sum(one.bytes for one in layout.rows[group.kind] if one.role is role)
                for group in own.plain_stack.groups
                if (layout.pools[group.kind] == SWA) is windows
            )
            if size and own.settings.pp == 1:
                words = name.removesuffix("_bytes")
                meaning = f"{int(tokens) + page:,} tokens x {size:,} B"
                row(
                    f"{'window ' if windows else ''}{words} pool",
                    f"{prefix}{name}",
                    spread((int(tokens) + page) * size),
                    "engine",
                    meaning,
                )
    slots = facts.number("slots")
    if slots is None or not stage.slot_bytes:
        return
    for place, name in enumerate(("conv", "state")):
        size = sum(group.count * layout.state_bytes.get(group.kind, (0, 0))[place] for group in own.plain_stack.groups)
        meaning = f"{int(slots) + 1:,} slots x {size:,} B"
        row(f"{name} pool", f"{name}_bytes", spread((int(slots) + 1) * size), "engine", meaning)


def _budget(own: SglangOccupancy) -> tuple[int, int, int] | None:
    """The planned budget: low, expected and high."""
    size = own.setup.hardware.kv_memory
    if size is not None:
        return size, size, size
    budget = own.budget if own.setup.hardware.gpu is not None else None
    return None if budget is None else (budget.low, budget.expected, budget.high)
