"""Cache policies in llama.cpp, and what sequences share.

A context has its cells from the start, so that nothing is freed; fewer cells is what a policy can give. Context shift (``--context-shift``,
``--keep``) is a form of sinks and a window: when the cells are full, half of the tokens behind the first ``n_keep`` go at once, and the keys of
the rest are turned back. Source: llama.cpp 0c1e57098, tools/server/server-context.cpp (``pre_decode``) and src/llama-kv-cache*.cpp
(``get_can_shift``).

What sequences share are cells of one buffer, where all sequences use it. A cell may belong to several of them. A sequence with a buffer of its
own gets a copy of the cells (src/llama-kv-cache.cpp ``seq_cp``). llama-server copies a prompt for the completions of one request (``n_cmpl``,
tools/server/server-context.cpp ``copy_state_to``), and nothing between requests; llama-batched-bench and llama-parallel copy a common prompt to
all (``-pps``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines.llamacpp.settings import Settings, rounded_up
from hwcalc.engines.stored import Support
from hwcalc.policies.base import Chosen, Effect

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.policies import Evicted
    from hwcalc.engines.setup import Request
    from hwcalc.parsers.gguf.hparams import Hparams

_TURNED: Final = frozenset({"qwen2vl", "paddleocr", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe", "qwen4exp", "qwen3tts"})
"""Architectures with several positions a token (``LLAMA_ROPE_TYPE_MROPE`` and ``_IMROPE``, src/llama-model.cpp)."""
_LAYERWISE: Final = "step35"
"""Its layers turn keys by unlike widths."""


def _no_shift(read: Hparams, plain: Settings, *, cuts_prompts: bool) -> str | None:
    """Why the context of a model cannot shift; ``None`` if it can."""
    if read.arch in _TURNED:
        return f"{read.arch} has several positions a token, and its context cannot shift"
    if read.arch == _LAYERWISE or read.architecture.memory == "compressed":
        return f"the context of {read.arch} cannot shift"
    if any(read.is_swa) and plain.cells_swa != plain.n_ctx_seq:
        way_out = "" if cuts_prompts else ". Use: --engine-option swa_full=true"
        return f"layers with a window have fewer cells, and such a context cannot shift{way_out}"
    return None


def shifts(chosen: Chosen, prompt: int, read: Hparams, plain: Settings, *, cuts_prompts: bool) -> str | None:
    """Why context shift does not do what this policy does; ``None`` if it does, in its own form.

    ``cuts_prompts`` is for Ollama, which cuts a prompt that is longer than the context.
    """
    budget = chosen.get("budget")
    if not chosen.policy.by_place or budget is None:
        return f"only context shift drops tokens, as streamingllm:budget=N,n_sink=N does; {_needs(chosen)}"
    if prompt >= rounded_up(budget) and not cuts_prompts:
        return f"llama-server refuses a prompt of {prompt:,} tokens in {rounded_up(budget):,} cells; context shift begins when text is generated"
    return _no_shift(read, plain, cuts_prompts=cuts_prompts)


def _needs(chosen: Chosen) -> str:
    """A sentence on what the engine would need to have this policy."""
    effects = {one.policy.effect for one in chosen.whole}
    if effects & {Effect.MASKS, Effect.ZEROES, Effect.READS_LESS}:
        return "this one would free nothing"
    return "this one would take scores of the keys, cells given back one by one, and a context of fewer cells"


def support(
    occupancy: Occupancy, chosen: Chosen, why: str | None, shift_words: Callable[[int, int], tuple[str, tuple[str, ...]]]
) -> Support:
    """The support of a policy: whether the engine has it, and how.

    ``why`` is the reason against it; ``shift_words`` gives the flags for it.
    """
    if why is not None:
        return Support(offered=False, how=f"{occupancy.engine.label}: {why}")
    # A context that is longer than its text is of no use.
    cells, sinks = min(rounded_up(chosen["budget"]), rounded_up(occupancy.tokens)), chosen["n_sink"]
    context = cells * occupancy.request.replica_batch
    words, flags = shift_words(cells, sinks)
    drops = f"when {cells:,} cells are full, half of the tokens behind the first {sinks:,} go, and no memory is freed"
    return Support(offered=True, how=f"context shift ({words}): {drops}", options={"n_ctx": f"{context}"}, flags=flags)


def context_tokens(occupancy: Occupancy, evicted: Evicted, plain: Settings, *, shifted: bool) -> int:
    """``n_ctx`` for sequences of which a policy drops tokens: room for the most that lie in any layer, and for prompts before they are cut.

    With one buffer for all sequences not every one needs room for its prompt at once.
    """
    asked, prompt, batch = occupancy.request.policy, occupancy.request.prompt_tokens, occupancy.request.replica_batch
    assert asked is not None
    most = max(evicted.most.values(), default=occupancy.tokens)
    if shifted:
        return min(int(rounded_up(asked.chosen["budget"])) * batch, plain.n_ctx_asked)
    whole = max(0, prompt - most)
    at_once = min(batch, 1 + (plain.n_batch - 1) // max(1, prompt)) if plain.kv_unified else batch
    return min(most * batch + whole * at_once, plain.n_ctx_asked)


def cut_settings(made: Settings, plain: Settings, *, shifted: bool) -> Settings:
    """The settings with fewer cells. Layers with a window keep their number of cells."""
    return made if shifted else replace(made, cells_swa=plain.cells_swa)


def is_unified(request: Request) -> bool:
    """Whether all sequences use one buffer."""
    return request.options.get("kv_unified", "false").lower() in ("true", "1", "on", "yes")


def sharing_support(occupancy: Occupancy) -> Support:
    """The support of sharing: whether sequences share cells, and by which program."""
    request = occupancy.request
    if not is_unified(request):
        how = "each sequence has a buffer of its own, and a copy of what it begins with; it takes --engine-option kv_unified=true"
        return Support(offered=False, how=how)
    if "n_ctx" in request.options:
        return Support(offered=False, how="cells are shared in the one buffer of all sequences, which is as large as n_ctx says")
    if request.policy is not None:
        return Support(offered=False, how="a context shift moves cells of one sequence, and shared ones cannot move")
    if request.sharing.prefix and request.options.get("defaults", "server") == "server":
        how = "llama-server shares no prefix between requests; llama-batched-bench and llama-parallel do: --engine-option defaults=api"
        return Support(offered=False, how=how)
    return Support(
        offered=True,
        how="a cell of the one buffer belongs to all sequences that begin with its tokens, and n_ctx is as much smaller",
    )
