"""What is said of prefill and decode apart: records, whose fields are the JSON document."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from hwcalc.documents import Answer, document_of
from hwcalc.formulas.record import Record
from hwcalc.model import Definition, Note
from hwcalc.planner.within_result import TimeInfo


class SideInfo(Record):
    """A pool of ``servers``, each on tp x pp x dp GPUs. Rates are those of all of its servers, ``low`` by the slow end of the times.

    ``step_s`` is a prompt alone in the pool for prompts, and a step with all users at once in the other. ``users`` are those of each server
    at once, null for prompts; ``busy`` is the share of time that prompts take, null for the other. ``limiting`` is what more would exceed.
    """

    gpu: str
    tp: int
    pp: int
    dp: int
    ep: int
    servers: int
    gpus: int
    requests_per_s: float
    requests_per_s_low: float
    step_s: TimeInfo
    users: int | None = None
    busy: float | None = None
    limiting: str


class TransferInfo(Record):
    """How the cache of a prompt moves: the link of each GPU, its 10^9 bytes per second, the bytes of the fullest GPU, and seconds."""

    link: str
    gbps: float
    bytes_per_gpu: int
    seconds: float


class TogetherInfo(Record):
    """What as many GPUs as the pools have serve where each server of the first kind does both; ``users`` are those of each at once."""

    servers: int
    users: int
    requests_per_s: float
    limiting: str | None


class Apart(Answer, Record):
    """Prefill and decode apart. ``requests_per_s`` is what the slower pool serves, ``limiting`` names it: ``prefill`` or ``decode``.

    ``ttft_s`` is with the time that a request waits, its prompt and the transfer, at the rate that is served; ``itl_s`` a step of the users at once.
    ``together`` is the same GPUs in one pool; null where the pools have unlike GPUs, or nothing like it was measured. ``holds`` says whether
    requests are served within the limits, as many as were asked for.
    """

    schema_version: str
    kvplan_version: str
    model: str
    engine: str
    engine_version: str | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    prefill: SideInfo
    decode: SideInfo
    transfer: TransferInfo
    gpus: int
    requests_per_s: float
    requests_per_s_low: float
    limiting: str
    holds: bool
    ttft_s: float
    itl_s: float
    e2e_s: float
    output_tokens_per_s: float
    together: TogetherInfo | None
    definition: Definition
    source: str
    notes: tuple[Note, ...]

    def headline(self) -> str:
        sides = f"{self.prefill.gpus} x {self.prefill.gpu} for prompts, {self.decode.gpus} x {self.decode.gpu} for tokens"
        return f"{self.model}, {sides}: {self.requests_per_s:,.3g} requests/s"

    def records(self) -> list[dict[str, Any]]:
        return [
            {"pool": name, **{key: value for key, value in document_of(asdict(side)).items() if key != "step_s"}}
            for name, side in (("prefill", self.prefill), ("decode", self.decode))
        ]

    __repr__ = Answer.__repr__
