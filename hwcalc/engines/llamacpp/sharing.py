"""What sequences share in llama.cpp: cells of one buffer, where all sequences use it.

A cell may belong to several sequences. A sequence with a buffer of its own gets a copy of the cells (src/llama-kv-cache.cpp ``seq_cp``).
llama-server copies a prompt for the completions of one request (``n_cmpl``, tools/server/server-context.cpp ``copy_state_to``), and nothing
between requests; llama-batched-bench and llama-parallel copy a common prompt to all (``-pps``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.engines.policies import Support

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.setup import Request


def is_unified(request: Request) -> bool:
    """Whether all sequences use one buffer."""
    return request.options.get("kv_unified", "false").lower() in ("true", "1", "on", "yes")


def sharing_support(occupancy: Occupancy) -> Support:
    """Whether cells are shared, and by which program."""
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
