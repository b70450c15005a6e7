"""Options that several policies have."""

from __future__ import annotations

from typing import Any, Final

from hwcalc.policies.base import PolicyOption

__all__ = ["ALPHA", "BUDGET", "DIVIDE", "INNER", "RATIO", "SINKS", "WINDOW", "quality"]

RATIO: Final = PolicyOption(name="compression_ratio", kind="ratio", default=0.0, help="share of the tokens that is dropped")
INNER: Final = PolicyOption(name="press", kind="scorer", default=None, help="the scorer inside", required=True)
SINKS: Final = PolicyOption(name="n_sink", kind="count", default=4, help="first tokens that always stay")
WINDOW: Final = PolicyOption(
    name="window_size", kind="count", default=64, help="last tokens, whose queries score the others", least=1
)
ALPHA: Final = PolicyOption(
    name="alpha_safeguard", kind="share", default=0.2, help="share of its part that each head keeps whatever the scores say"
)
BUDGET: Final = PolicyOption(
    name="budget", kind="count", default=None, help="tokens to keep, in place of a ratio: as the papers count", least=1
)
DIVIDE: Final = PolicyOption(
    name="divide_length",
    kind="count",
    default=None,
    help="with a budget: cut again each time the text has grown by so many",
    least=1,
)


def quality(name: str, default: Any) -> PolicyOption:
    """An option that decides which tokens are kept, and not how many."""
    return PolicyOption(name=name, kind="any", default=default, help="changes which tokens stay, not how many", hidden=True)
