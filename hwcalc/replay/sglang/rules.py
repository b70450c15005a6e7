"""The settings of SGLang's scheduler, by its own names."""

from __future__ import annotations

from typing import Final

from hwcalc.formulas.record import Record

CLIP: Final = 4096
"""The most tokens to come that admission reserves for a request (``SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION``)."""
RETRACT_STEPS: Final = 20
"""Tokens that each remaining request gets free after a retraction (``SGLANG_RETRACT_DECODE_STEPS``)."""
PREEMPTION_THRESHOLD: Final = 10
"""By how much a priority must be higher to preempt (``priority_scheduling_preemption_threshold``)."""
_INIT_RATIO: Final = 0.7
_MIN_FACTOR: Final = 0.14
_DECAY_STEPS: Final = 600
EVICTION_INTERVAL: Final = 128
"""Tokens that slide out of a window before they are given back (``SGLANG_SWA_EVICTION_INTERVAL``)."""


class SchedulerRules(Record):
    """The settings of SGLang's scheduler, by its own names."""

    max_total_num_tokens: int
    page_size: int
    max_running_requests: int
    context_length: int
    max_prefill_tokens: int = 16_384
    chunked_prefill_size: int | None = 8192
    """Tokens of a prompt in a batch; ``None`` takes prompts whole."""
    schedule_policy: str = "fcfs"
    schedule_conservativeness: float = 1.0
    radix_eviction_policy: str = "lru"
    retraction_policy: str = "length"
    disable_radix_cache: bool = False
    overlap: bool = True
    enable_mixed_chunk: bool = False
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False
    priority_scheduling_preemption_threshold: int = PREEMPTION_THRESHOLD
    prefill_max_requests: int | None = None
    max_queued_requests: int | None = None
    prefill_decode_interval: int = 0
    ignore_eos: bool = False
    """The sampling parameter, of all requests."""
    swa_tokens: int | None = None
    """Tokens of the pool of windows; ``None`` without windows."""
    sliding_window: int = 0
    """The window as SGLang counts it."""
    state_slots: int | None = None
    """Slots for recurrent states; ``None`` without such layers."""

    @property
    def max_req_len(self) -> int:
        """The longest sequence (``get_worker_info``)."""
        return min(self.context_length - 1, self.max_total_num_tokens - 1)

    @property
    def max_req_input_len(self) -> int:
        """The length from which prompts are refused."""
        return self.max_req_len - 5

    @property
    def first_ratio(self) -> float:
        """The share of the tokens to come that admission reserves at first."""
        return min(_INIT_RATIO * self.schedule_conservativeness, 1.0)

    @property
    def least_ratio(self) -> float:
        """The least share."""
        return min(self.first_ratio * _MIN_FACTOR, 1.0)

    @property
    def ratio_decay(self) -> float:
        """By how much it gets less with each step that decodes."""
        return (self.first_ratio - self.least_ratio) / _DECAY_STEPS

    @property
    def sign(self) -> int:
        """The factor that makes a priority a rank, of which the least goes first."""
        return 1 if self.schedule_low_priority_values_first else -1

    def pages(self, tokens: int) -> int:
        """Tokens in whole pages that hold so many."""
        return -(-tokens // self.page_size) * self.page_size

    def whole_pages(self, tokens: int) -> int:
        """So many tokens, as far as they fill pages."""
        return tokens // self.page_size * self.page_size
