"""What ``kvplan fit`` says: the models that run on the hardware, and those that were left out."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from hwcalc.documents import Answer, document_of
from hwcalc.formulas.record import Record
from hwcalc.model import Note
from hwcalc.planner.verdict import Verdict


class Runnable(Record):
    """A model in the best format that fits, planned. Bytes are those of the fullest GPU; null is unknown.

    ``also`` are ids with the same figures: the model on another page, in another format, or before it was taught to follow
    instructions. ``source`` is where it is: ``catalog``, ``hf-cache``, ``ollama``, or ``folder``. ``stored`` says that its file has this
    format already. ``weights`` is the format, null as published; ``file_type`` is what
    a GGUF file says of itself. ``max_seq`` is the longest that each sequence may be for sure;
    where that is 0, ``expected_max_seq`` is the longest by the expected value. ``max_position_embeddings`` is what the model is made for.
    ``gpu_layers`` of ``all_layers`` lie on the GPU, and ``host_bytes`` of the weights and the cache in the memory of the host, among them
    the experts of ``host_experts`` layers; all are null for an engine that never splits a model. Within limits of time ``users`` are served
    by the expected times and ``users_low`` by the slow end of their range; ``ttft_s`` and ``itl_s`` are the expected times of the planned ones.
    """

    id: str
    also: tuple[str, ...]
    family: str
    model_type: str
    source: str
    stored: bool
    modality: str
    parameters: int | None
    active_parameters: int | None
    released: str | None
    weights: str | None
    file_type: str | None
    weights_bytes: int
    seq: int
    batch: int
    kv_dtype: str
    cache_bytes: int
    needed_bytes: int
    usable_bytes: int
    headroom_bytes: int
    max_seq: int
    expected_max_seq: int | None
    max_position_embeddings: int | None
    verdict: Verdict
    gpu_layers: int | None
    all_layers: int | None
    host_bytes: int | None
    host_experts: int | None
    decode_tokens_per_s: float | None
    decode_tokens_per_s_low: float | None
    decode_tokens_per_s_high: float | None
    decode_tokens_per_s_bound: float | None
    bound_by: str | None
    command: str
    users: int | None = None
    users_low: int | None = None
    ttft_s: float | None = None
    itl_s: float | None = None

    @property
    def whole(self) -> bool:
        """True if all of it lies on the GPU."""
        return self.gpu_layers == self.all_layers and not self.host_experts


class Unread(Record):
    """A model that is on this machine and could not be read, and why."""

    id: str
    source: str
    message: str
    hint: str


class Runnables(Answer, Record):
    """The models that run, the best of each family first, the families in the order of their best.

    Of ``considered`` models, ``filtered`` are not what was asked for, ``embeddings`` answer with a vector and were not asked for, ``refused`` the engine does not run or their size is not known, ``short`` are made for
    fewer tokens than asked for, ``too_large`` do not fit, and ``slow`` have a lower bound on speed than asked for, or
    are beyond the limits of time. ``more`` run as well, and
    are beyond the limit. ``unread`` are on this machine, and could not be read.
    """

    schema_version: str
    kvplan_version: str
    engine: str
    engine_version: str | None
    gpu: str
    gpus: int
    usable_bytes: int | None
    seq: int
    batch: int
    sources: tuple[str, ...]
    considered: int
    filtered: int
    embeddings: int
    refused: int
    short: int
    too_large: int
    slow: int
    models: tuple[Runnable, ...]
    more: int
    unread: tuple[Unread, ...]
    notes: tuple[Note, ...]

    def headline(self) -> str:
        found = len(self.models) + self.more
        best = f", {self.models[0].id} first" if self.models else ""
        return f"{self.gpus} x {self.gpu}, {self.seq:,} tokens x {self.batch:,}, {self.engine}: {found:,} models run{best}"

    def records(self) -> list[dict[str, Any]]:
        return [{name: document_of(value) for name, value in asdict(model).items() if name != "also"} for model in self.models]

    __repr__ = Answer.__repr__
