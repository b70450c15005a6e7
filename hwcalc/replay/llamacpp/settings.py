"""The slots of a deployment: its context and cells, as the plan has them, and llama-server's options that bear on slots alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from hwcalc.engines.llamacpp.builds import RELEASE
from hwcalc.engines.llamacpp.occupancy import LlamacppOccupancy
from hwcalc.engines.llamacpp.settings import switch
from hwcalc.engines.options import EngineOption, integer_option, number_option
from hwcalc.errors import NoRoomError, UnsupportedError, UsageError
from hwcalc.model import Note
from hwcalc.planner.solve import holds
from hwcalc.replay.llamacpp.scheduler import LlamacppScheduler, SlotRules

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.replay.core import RequestLog, Scheduler


def _mebibytes(name: str, value: str) -> int:
    """MiB of the prompt cache; -1 is no limit of bytes."""
    return -1 if value.strip() == "-1" else integer_option(0, 2**40)(name, value)


_OPTIONS: Final[tuple[tuple[str, str, str, Callable[[str, str], Any]], ...]] = (
    ("cont_batching", "whether prompts are computed while others generate (-cb)", "true", switch),
    ("cache_prompt", "whether a slot keeps what the next prompt begins with (--cache-prompt)", "true", switch),
    ("slot_prompt_similarity", "share of a prompt that a slot must have to be chosen for it (-sps)", "0.1", number_option(1)),
    ("cache_idle_slots", "whether idle slots are saved when a request gets a slot (--cache-idle-slots)", "true", switch),
    ("cache_ram_mib", "MiB of host memory for saved prompts; 0 is none, -1 no limit (--cache-ram)", "8192", _mebibytes),
)
OPTIONS: Final[Mapping[str, EngineOption]] = MappingProxyType(
    {name: EngineOption(name=name, help=text, default=default, check=check) for name, text, default, check in _OPTIONS}
)
"""llama-server's options that bear on its slots and not on the memory of a device (common/common.h, common/arg.cpp)."""
# What llama_context writes before the tokens of a sequence: two numbers, those of each buffer, and of each layer the types and
# widths of keys and of values (src/llama-kv-cache.cpp, state_write). A token has its place and its sequence.
_HEAD_BYTES: Final = 20
_STREAM_BYTES: Final = 4
_LAYER_BYTES: Final = 24
_TOKEN_BYTES: Final = 12


def remarks(occupancy: LlamacppOccupancy, options: Mapping[str, object]) -> tuple[Note, ...]:
    """Notes on what is assumed of the server."""
    one = occupancy.settings
    slots = "1 slot" if one.n_seq_max == 1 else f"{one.n_seq_max:,} slots"
    notes = [
        Note(
            code="slots",
            message=f"llama-server has {slots}, each for up to {one.slot_tokens:,} tokens. Set them with --seq and --engine-option n_seq_max=N.",
        )
    ]
    if occupancy.deployment.version != RELEASE:
        message = (
            f"The slots are replayed by the rules of llama.cpp {RELEASE}; the cells are those of {occupancy.deployment.version}."
        )
        notes.append(Note(code="scheduler-rules", message=message))
    return tuple(notes)


def maker(
    occupancy: Occupancy, options: Mapping[str, object], *, blocks: int | str | None, tokens: int | str | None
) -> Callable[[RequestLog | None], Scheduler]:
    """A maker of servers of a deployment."""
    assert isinstance(occupancy, LlamacppOccupancy)
    if blocks is not None or tokens is not None:
        raise UsageError(
            "llama.cpp's pool is the cells of its context.",
            hint="Give --seq 8k and --engine-option n_seq_max=4.",
        )
    return partial(LlamacppScheduler, rules_of(occupancy, options))


def rules_of(occupancy: LlamacppOccupancy, options: Mapping[str, object]) -> SlotRules:
    """The settings of the slots, with llama-server's defaults filled in."""
    read, one, model = occupancy.hparams, occupancy.settings, occupancy.model.id
    if any(read.is_recurrent) or (any(read.is_swa) and not one.swa_full):
        what = "recurrent states" if any(read.is_recurrent) else "windows"
        raise UnsupportedError(
            f"The replay has no rules of llama.cpp's checkpoints of {what}, which {model} has.",
            hint="Replay a model without them." if any(read.is_recurrent) else "Use: --engine-option swa_full=true",
        )
    if occupancy.deployment.drafting is not None:
        raise UnsupportedError("The replay has no rules of llama.cpp's drafts.", hint="Leave out --draft and load_mtp.")
    if occupancy.setup.hardware.gpu is not None and not holds(occupancy):
        raise NoRoomError(
            f"{model} with a context of {one.n_ctx:,} cells does not fit on this hardware.",
            hint="Use a shorter --seq, fewer slots (n_seq_max), or smaller weights (--weights q4_k_m).",
        )
    given: dict[str, Any] = {name: OPTIONS[name].check(name, str(value)) for name, value in options.items() if value is not None}
    return SlotRules(
        n_parallel=one.n_seq_max,
        n_ctx=one.n_ctx,
        n_ctx_slot=min(one.slot_tokens, read.n_ctx_train) if read.n_ctx_train else one.slot_tokens,
        kv_unified=one.kv_unified,
        n_batch=one.n_batch,
        n_ubatch=one.n_ubatch,
        saved_bytes=_HEAD_BYTES + _STREAM_BYTES * one.n_stream + _LAYER_BYTES * read.n_layer,
        saved_token_bytes=_TOKEN_BYTES + occupancy.stored_bytes // one.n_ctx,
        **given,
    )
