"""How LMDeploy keeps what sequences have in common: whole blocks of prompts in a trie, with ``enable_prefix_caching``.

Samples are requests of their own (``n`` is 1), which find the blocks of their prompt; there is no beam search. The last token of a prompt is
computed anew. Windows and TurboMind's recurrent states have no prefix caching; in PyTorch recurrent states resume only at checkpoints.

Sources: pytorch/paging/block_trie.py match, pytorch/engine/executor/base.py, messages.py GenerationConfig; engine/engine.cc of 0.14.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.engines.policies import Support
from hwcalc.engines.sharing import SharedBlocks, blocks_in_common

if TYPE_CHECKING:
    from hwcalc.engines.lmdeploy.deployment import LmdeployOccupancy

_APART: Final = "every sequence is computed and kept by itself"


def sharing_support(opened: LmdeployOccupancy) -> Support:
    """Whether blocks are shared, and how."""
    settings = opened.settings
    if opened.request.sharing.beams > 1:
        return Support(offered=False, how=f"LMDeploy has no beam search: {_APART}")
    if settings.window:
        return Support(offered=False, how=f"prefix caching is off for a model with a window: {_APART}")
    if settings.slots:
        return Support(
            offered=False, how=f"recurrent states are found only at checkpoints, which kvplan does not count: {_APART}"
        )
    if not settings.prefix_caching:
        return Support(offered=False, how=f"prefix caching is off: {_APART}; it takes --engine-option enable_prefix_caching=true")
    return Support(offered=True, how="prefix caching: whole blocks that begin alike are kept once")


def blocks_of_group(opened: LmdeployOccupancy) -> tuple[SharedBlocks, ...]:
    """The blocks of all layers, which have one table."""
    return (blocks_in_common("attention", opened.settings.block_size, opened.held, opened.together),)
