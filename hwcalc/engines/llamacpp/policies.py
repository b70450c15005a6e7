"""Cache policies in llama.cpp, what sequences share, and what can be set so that it takes less memory of a GPU.

A context has its cells from the start, so that nothing is freed; fewer cells is what a policy can give. Context shift (``--context-shift``,
``--keep``) is a form of sinks and a window: when the cells are full, half of the tokens behind the first ``n_keep`` go at once, and the keys of
the rest are turned back. Source: llama.cpp 0c1e57098, tools/server/server-context.cpp (``pre_decode``) and src/llama-kv-cache*.cpp
(``get_can_shift``).

What sequences share are cells of one buffer, where all sequences use it. A cell may belong to several of them. A sequence with a buffer of its
own gets a copy of the cells (src/llama-kv-cache.cpp ``seq_cp``). llama-server copies a prompt for the completions of one request (``n_cmpl``,
tools/server/server-context.cpp ``copy_state_to``), and nothing between requests; llama-batched-bench and llama-parallel copy a common prompt to
all (``-pps``).

Formats of weights are other files, or the one that ``llama-quantize`` makes. Experts in host memory cost least of
what lies there: of each token's work they are the smallest part.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from hwcalc.engines.devices import Cost, Saving, host_holds
from hwcalc.engines.llamacpp.settings import Settings, rounded_up
from hwcalc.engines.options import is_on
from hwcalc.engines.stored import Support
from hwcalc.engines.subjects import WholePrompts
from hwcalc.policies.base import Effect
from hwcalc.units import GIB

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.llamacpp.occupancy import LlamacppOccupancy
    from hwcalc.engines.policies import Evicted
    from hwcalc.policies.base import Chosen

_TURNED: Final = frozenset({"qwen2vl", "paddleocr", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe", "qwen4exp", "qwen3tts"})
"""Architectures with several positions a token (``LLAMA_ROPE_TYPE_MROPE`` and ``_IMROPE``, src/llama-model.cpp)."""
_LAYERWISE: Final = "step35"
"""Its layers turn keys by unlike widths."""


def unshifted(occupancy: LlamacppOccupancy) -> str | None:
    """The reason why context shift does not do what the policy of the request does; ``None`` if it does, in its own form."""
    asked, prompt, read = occupancy.setup.policy, occupancy.load.prompt_tokens, occupancy.hparams
    assert asked is not None
    chosen, plain, cuts_prompts = asked.chosen, occupancy.plain_settings, occupancy.cuts_prompts
    budget = chosen.get("budget")
    if not chosen.policy.by_place or budget is None:
        needs = "this one would take scores of the keys, cells given back one by one, and a context of fewer cells"
        if {one.policy.effect for one in chosen.whole} & {Effect.MASKS, Effect.ZEROES, Effect.READS_LESS}:
            needs = "this one would free nothing"
        return f"only context shift drops tokens, as streamingllm:budget=N,n_sink=N does; {needs}"
    if prompt >= rounded_up(budget) and not cuts_prompts:
        return f"llama-server refuses a prompt of {prompt:,} tokens in {rounded_up(budget):,} cells; context shift begins when text is generated"
    if read.arch in _TURNED:
        return f"{read.arch} has several positions a token, and its context cannot shift"
    if read.arch == _LAYERWISE or read.architecture.memory == "compressed":
        return f"the context of {read.arch} cannot shift"
    if any(read.is_swa) and plain.cells_swa != plain.n_ctx_seq:
        way_out = "" if cuts_prompts else ". Use: --engine-option swa_full=true"
        return f"layers with a window have fewer cells, and such a context cannot shift{way_out}"
    return None


class LlamacppPolicies(WholePrompts):
    """A context has all its cells from the start; context shift is all that frees any."""

    occupancy: LlamacppOccupancy

    def support(self, chosen: Chosen) -> Support:
        return support(self.occupancy, chosen)

    def holding(self, counts: Mapping[int, int]) -> LlamacppOccupancy:
        """The same occupancy, whatever tokens it keeps."""
        return self.occupancy

    def scored_at_once(self) -> tuple[int, int]:
        """The number of prompts in one batch of ``n_ubatch``, and the number of rows of scores.

        In one buffer for all sequences, each token has scores of the cells of all of them.
        """
        occupancy = self.occupancy
        settings, batch = occupancy.settings, occupancy.request.replica_batch
        prompt = max(1, occupancy.load.prompt_tokens - self.ahead)
        rows = min(settings.n_ubatch, batch * prompt) * (batch if settings.kv_unified else 1)
        return min(batch, 1 + (settings.n_ubatch - 1) // prompt), rows


def support(occupancy: LlamacppOccupancy, chosen: Chosen) -> Support:
    """The support of a policy: whether the engine has it, and how."""
    if occupancy.unshifted is not None:
        return Support(offered=False, how=f"{occupancy.engine.label}: {occupancy.unshifted}")
    # A context that is longer than its text is of no use.
    cells, sinks = min(rounded_up(chosen["budget"]), rounded_up(occupancy.tokens)), chosen["n_sink"]
    context = cells * occupancy.request.replica_batch
    words, flags = occupancy.shift_words(cells, sinks)
    drops = f"when {cells:,} cells are full, half of the tokens behind the first {sinks:,} go, and no memory is freed"
    return Support(offered=True, how=f"context shift ({words}): {drops}", options={"n_ctx": f"{context}"}, flags=flags)


def context_tokens(occupancy: Occupancy, evicted: Evicted, plain: Settings, *, shifted: bool) -> int:
    """``n_ctx`` for sequences of which a policy drops tokens: room for the most that lie in any layer, and for prompts before they are cut.

    With one buffer for all sequences not every one needs room for its prompt at once.
    """
    asked, prompt, batch = occupancy.setup.policy, occupancy.load.prompt_tokens, occupancy.request.replica_batch
    assert asked is not None
    most = max(evicted.most.values(), default=occupancy.tokens)
    if shifted:
        return min(int(rounded_up(asked.chosen["budget"])) * batch, plain.n_ctx_asked)
    whole = max(0, prompt - most)
    at_once = min(batch, 1 + (plain.n_batch - 1) // max(1, prompt)) if plain.kv_unified else batch
    return min(most * batch + whole * at_once, plain.n_ctx_asked)


def sharing_support(occupancy: Occupancy) -> Support:
    """The support of sharing: whether sequences share cells, and by which program."""
    request = occupancy.request
    if request.setup.options.get("kv_unified", "false").lower() not in ("true", "1", "on", "yes"):
        how = "each sequence has a buffer of its own, and a copy of what it begins with; it takes --engine-option kv_unified=true"
        return Support(offered=False, how=how)
    if "n_ctx" in request.setup.options:
        return Support(offered=False, how="cells are shared in the one buffer of all sequences, which is as large as n_ctx says")
    if request.setup.policy is not None:
        return Support(offered=False, how="a context shift moves cells of one sequence, and shared ones cannot move")
    if request.load.sharing.prefix and request.setup.options.get("defaults", "server") == "server":
        how = "llama-server shares no prefix between requests; llama-batched-bench and llama-parallel do: --engine-option defaults=api"
        return Support(offered=False, how=how)
    return Support(
        offered=True,
        how="a cell of the one buffer belongs to all sequences that begin with its tokens, and n_ctx is as much smaller",
    )


_FORMATS: Final = (
    (Cost.WEIGHTS, "q8_0"),
    (Cost.WEIGHTS, "q6_k"),
    (Cost.WEIGHTS, "q5_k_m"),
    (Cost.WEIGHTS, "q4_k_m"),
    (Cost.FEW_BITS, "iq4_xs"),
    (Cost.FEWER_BITS, "q3_k_m"),
    (Cost.FEWER_BITS, "iq3_xxs"),
    (Cost.FEWER_BITS, "q2_k"),
)
"""Formats that publishers offer, the larger first. Q4_K_M is what most people run: nobody buys a card to do without it."""
_SPARE: Final = (0, GIB // 2, 2 * GIB)
"""Bytes that the card needs besides, where experts are multiplied on it from a copy (:mod:`~hwcalc.engines.llamacpp.graph`)."""
_BATCH: Final = 512
_SMALL_BATCH: Final = 128


def savings(occupancy: LlamacppOccupancy, short_bytes: int) -> Iterator[Saving]:
    """The savings for the planned GPU, of which it lacks ``short_bytes``."""
    one, options, slots = occupancy.settings, occupancy.setup.options, occupancy.request.replica_batch
    # Settings of the user that are taken back cost nothing, or nearly nothing.
    if one.swa_full and any(occupancy.hparams.is_swa):
        yield Saving(Cost.NOTHING, "windows keep only their tokens", {"engine_options": {"swa_full": "false"}})
    if one.n_seq_max > slots:
        yield Saving(Cost.NOTHING, f"slots for {slots} at once", {"engine_options": {"n_seq_max": str(slots)}})
    without_flash = one.flash_attn_asked is False and "flash_attn" in options
    if without_flash:
        yield Saving(Cost.NOTHING, "flash attention", {"engine_options": {"flash_attn": "on"}})
    # Caches of eight and of four bits need flash attention.
    for cost, name in ((Cost.CACHE, "q8_0"), (Cost.FEW_CACHE_BITS, "q4_0")):
        named = bool({"type_k", "type_v"} & options.keys())
        changed = ({"type_k": name, "type_v": name} if named else {}) | ({"flash_attn": "on"} if without_flash else {})
        yield Saving(cost, f"{name} cache", ({} if named else {"dtype": name}) | ({"engine_options": changed} if changed else {}))
    for cost, name in _FORMATS:
        yield Saving(cost, f"a file in {name.upper()}", {"weights": name})
    if one.n_ubatch > _SMALL_BATCH:
        size = _BATCH if one.n_ubatch > _BATCH else _SMALL_BATCH
        yield Saving(Cost.SPEED, f"batches of {size}, which read prompts slower", {"engine_options": {"n_ubatch": str(size)}})
    yield from _on_host(occupancy, short_bytes)


def _on_host(occupancy: LlamacppOccupancy, short_bytes: int) -> Iterator[Saving]:
    """The savings by host memory: experts of as few layers as needed, those of all layers, or all layers that do not fit."""
    setup, weighed = occupancy.setup, occupancy.deployment.weighed
    if short_bytes <= 0 or weighed is None or setup.hardware.kv_memory is not None:
        return
    if not host_holds(setup.hardware.gpu, short_bytes) or is_on(setup.options.get("cpu_moe")):
        return
    if weighed.has_experts:
        before = int(setup.options.get("n_cpu_moe", "0"))
        # Bytes of the experts of the first layers, without those that are on the host already.
        sums = list(accumulate(experts if number >= before else 0 for number, (experts, _) in enumerate(weighed.blocks)))
        enough = (bisect_left(sums, (short_bytes + spare) * setup.gpus) + 1 for spare in _SPARE)
        for count in dict.fromkeys(count for count in enough if count <= len(sums)):
            what = f"experts of the first {count} layers in host memory, slower"
            yield Saving(Cost.PARTLY, what, {"engine_options": {"n_cpu_moe": str(count)}})
        yield Saving(Cost.PARTLY, "all experts in host memory, slower", {"engine_options": {"cpu_moe": "true"}})
    yield Saving(Cost.PARTLY, "layers in host memory as far as needed, much slower", {"engine_options": {"n_gpu_layers": "auto"}})
