"""Speculative decoding in the options of vLLM: the method, and how many tokens it drafts at a time."""

from __future__ import annotations

from typing import Final

from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec
from hwcalc.text import brief
from hwcalc.units import parse_tokens

__all__ = ["DRAFTED", "Speculation", "draft_named", "model_and_tokens", "read_speculation"]

_WITHOUT_MODEL: Final = ("ngram", "mtp")
DRAFTED: Final = ("eagle", "dflash", "draft")
"""The methods with a model of their own."""


class Speculation(Record):
    """``method`` drafts ``tokens`` tokens at a time. ``model`` is the draft model, if the method has one."""

    method: str
    tokens: int
    model: ModelSpec | None = None

    @property
    def reads_hidden_states(self) -> bool:
        """Whether the draft takes hidden states of the target (``use_eagle`` in vLLM)."""
        return self.method in ("eagle", "mtp", "dflash")


def draft_named(value: str | None) -> str | None:
    """The id of the model in ``draft:MODEL[:N]``, ``eagle:…`` or ``dflash:…``, a value of the option ``speculative``."""
    method, _, rest = (value or "").partition(":")
    return model_and_tokens(rest)[0] if method in DRAFTED and rest else None


def model_and_tokens(rest: str) -> tuple[str, int]:
    """The model and the number of tokens in ``MODEL`` or ``MODEL:N``."""
    name, _, count = rest.rpartition(":")
    return (name, parse_tokens(count)) if name and count.isdecimal() else (rest, 1)


def read_speculation(value: str | None, draft: ModelSpec | None, option_draft: ModelSpec | None) -> Speculation | None:
    """Read the option ``speculative``. ``--draft MODEL`` is the same as ``speculative=draft:MODEL``.

    ``draft`` is the loaded model of ``--draft``, and ``option_draft`` the loaded model that the option names. Raises
    :class:`~hwcalc.errors.UsageError` for a wrong value, or if both name a draft.
    """
    if value is None:
        return None if draft is None else Speculation(method="draft", tokens=1, model=draft)
    if draft is not None:
        raise UsageError("--draft and the engine option speculative both name a draft.", hint="Give one of them.")
    method, _, rest = value.partition(":")
    if method in _WITHOUT_MODEL:
        return Speculation(method=method, tokens=parse_tokens(rest or "1", f"engine option speculative={method}:N"))
    if method in DRAFTED and rest:
        name, tokens = model_and_tokens(rest)
        if option_draft is None:
            raise UsageError(
                f"engine option speculative={brief(value, 60)}: {brief(name, 60)} was not loaded.", hint="Give the draft's model."
            )
        return Speculation(method=method, tokens=tokens, model=option_draft)
    raise UsageError(
        f"engine option speculative={brief(value, 60)} is not known.",
        hint="Allowed: ngram:N, mtp:N, eagle:MODEL[:N], dflash:MODEL[:N], draft:MODEL[:N].",
    )
