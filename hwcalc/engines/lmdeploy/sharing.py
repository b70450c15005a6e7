"""How LMDeploy keeps what sequences have in common: whole blocks of prompts in a trie, with ``enable_prefix_caching``.

Samples are requests of their own (``n`` is 1), which find the blocks of their prompt; there is no beam search. The last token of a prompt is
computed anew. Windows and TurboMind's recurrent states have no prefix caching; in PyTorch recurrent states resume only at checkpoints.

Sources: pytorch/paging/block_trie.py match, pytorch/engine/executor/base.py, messages.py GenerationConfig; engine/engine.cc of 0.14.0.
"""

from __future__ import annotations

from typing import Final

from hwcalc.engines.lmdeploy.opened import LmdeployOpened
from hwcalc.engines.policies import Support
from hwcalc.engines.sharing import SharedBlocks
from hwcalc.engines.steps import step

__all__ = ["blocks_of_group", "sharing_support"]

_APART: Final = "every sequence is computed and kept by itself"


def sharing_support(opened: LmdeployOpened) -> Support:
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


def blocks_of_group(opened: LmdeployOpened) -> tuple[SharedBlocks, ...]:
    """The blocks of all layers, which have one table."""
    held, size, together = opened.held, opened.settings.block_size, opened.together
    first, kept = held.parts[0], held.shared + held.parts[0].request
    prompt = -(-min(together.prompt, together.lengths[0][0]) // size)
    missed = max(0, prompt - kept) if kept and together.forks else 0
    counted = step(
        "blocks",
        "copies x shared_blocks + prompts x request_blocks + sequences x own_blocks",
        held.total,
        unit="blocks",
        copies=held.copies,
        shared_blocks=held.shared,
        prompts=first.prompts,
        request_blocks=first.request,
        sequences=first.sequences,
        own_blocks=first.own,
    )
    return (
        SharedBlocks(
            kind="attention",
            block_size=size,
            shared=held.shared,
            copies=held.copies,
            request=first.request,
            own=first.own,
            copied=min(missed, first.own) * sum(part.sequences - part.prompts for part in held.parts),
            total=held.total,
            steps=(counted,) if len(held.parts) == 1 else (),
        ),
    )
