"""The buffers of a pass on each device: the tensors that are alive at once, and the logits that the host keeps for the caller.

``llama_context::sched_reserve`` builds the graph of a batch of ``n_ubatch`` tokens and ``ggml_gallocr`` packs it: the buffer is the inputs
that stay to the end, such as the mask of the attention, and the fullest moment of a layer or of the output. The moments were read in
src/llama-graph.cpp and src/models of llama.cpp 0c1e57098 and compared with the sizes that it reserves; each counts by what was measured.

A moment is written once, as a :class:`Sum` with the names of :class:`~hwcalc.engines.llamacpp.settings.Settings` in place of numbers. A plan
puts its own numbers in; the form of all lengths and batches keeps the names.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hwcalc.engines.forms import ENDS
from hwcalc.engines.memory import BudgetPart, Section
from hwcalc.engines.steps import step
from hwcalc.formulas.arithmetic import ceiled, either, floored, larger, largest, some
from hwcalc.formulas.formats import FP16
from hwcalc.formulas.record import Record
from hwcalc.profiles.engines import llamacpp_profile

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.settings import Settings
    from hwcalc.parsers.gguf.hparams import Hparams
    from hwcalc.profiles.form import Estimate


class Sum:
    """A number of bytes or elements for each product of sizes; the empty product is 1."""

    __slots__ = ("products",)

    products: Mapping[tuple[str, ...], int]

    def __init__(self, products: Mapping[tuple[str, ...], int]) -> None:
        self.products = products

    @classmethod
    def of(cls, number: int | Sum) -> Sum:
        """A plain number as a sum."""
        return number if isinstance(number, Sum) else cls({(): number} if number else {})

    def __add__(self, other: int | Sum) -> Sum:
        added = dict(self.products)
        for names, number in Sum.of(other).products.items():
            added[names] = added.get(names, 0) + number
        return Sum(added)

    def __mul__(self, other: int | Sum) -> Sum:
        if isinstance(other, int):
            return Sum({names: number * other for names, number in self.products.items()} if other else {})
        made: dict[tuple[str, ...], int] = {}
        for names, number in self.products.items():
            for others, times in other.products.items():
                both = tuple(sorted(names + others))
                made[both] = made.get(both, 0) + number * times
        return Sum(made)

    __radd__, __rmul__ = __add__, __mul__

    def __bool__(self) -> bool:
        return any(self.products.values())

    def at(self, one: Settings) -> int:
        """The sum with the sizes of a context, or of an array of contexts."""
        return sum(number * prod(getattr(one, name) for name in names) for names, number in self.products.items())


NOTHING: Final = Sum({})
_SIZES: Final = (
    "n_ubatch", "n_seq_max", "n_stream", "n_ctx_seq", "cells_swa", "groups_of_4", "groups_of_128", "outputs", "tokens_each", "alone",
    "mask_rows",
)  # fmt: skip
N_UBATCH, N_SEQ_MAX, N_STREAM, N_CTX_SEQ, CELLS_SWA, GROUPS_OF_4, GROUPS_OF_128, OUTPUTS, EACH, ALONE, MASK_ROWS = (
    Sum({(name,): 1}) for name in _SIZES
)


FLOAT: Final = 4
"""Bytes of a number: the results of all operations are 32-bit floats."""
PIPELINE_COPIES: Final = 4
"""ggml/src/ggml-backend.cpp ``GGML_SCHED_MAX_COPIES``: copies of the inputs where several GPUs work on different batches."""
OF_THE_HOST: Final = ("weights of the host", "cache of the host")
"""The moments of a GPU that makes copies of what lies on the host: of weights, and of keys and values."""
_LATENT_COPIES: Final = 3
_INDEXER_MEMORIES: Final = ("dsa", "dsa-or-attention", "dsa-window", "hybrid-indexer")


class Part(NamedTuple):
    """The part of the model that a device runs, as far as its buffer depends on it."""

    first: bool = True
    """True if it runs the first layer, after the embedding."""
    output: bool = True
    alone: bool = False
    """True if the host runs everything, with one buffer for what is a copy beside a GPU."""
    copies: int = 1
    """:data:`PIPELINE_COPIES`, or 1."""
    copies_host: bool = False
    """True if it copies what lies on the host for a batch: :class:`GpuPart` says how much."""
    sixteen_bit: bool = False
    """True if flash attention reads keys and values as 16-bit floats, of which it makes copies (ggml-cuda/fattn.cu)."""


class Moment(NamedTuple):
    """The tensors of a pass that are alive at once, without inputs: elements for each token and for each output, and other bytes."""

    name: str
    per_token: Sum = NOTHING
    per_output: int = 0
    fixed_bytes: Sum = NOTHING

    @property
    def bytes(self) -> Sum:
        """Bytes for a batch."""
        return FLOAT * (N_UBATCH * self.per_token + OUTPUTS * self.per_output) + self.fixed_bytes


Moments = tuple[tuple[Moment, Sum], ...]
"""Moments with the bytes of the whole buffer that each would need."""


def input_bytes(read: Hparams, one: Settings, *, device: bool = False) -> Sum:
    """Bytes of the inputs that stay alive through the pass: the mask, with an element for each token and each cell of a stream, and others.

    ``device``: whether they are those of a device that runs layers, which has a copy of a mask of 32 bits in 16.
    """
    masks = _draft_mask(read) if one.drafts else mask_cells(read)
    cells = sum(masks, NOTHING)
    mask = _mask_bytes(read, one, device=device) * cells
    # The mask of an indexer has 16 bits whatever the attention is; buckets of positions are whole numbers of 32 bits.
    each = 2 * N_CTX_SEQ if _has_indexer(read) and not one.drafts else NOTHING
    each += FLOAT * cells if read.architecture.graph.biased else 0
    indexed = 0
    if one.rules.indexed_values and not (
        one.flash_attn or read.is_mla or not _reads_cache(read) or read.architecture.memory == "compressed"
    ):
        # Without flash attention every number of a value is stored by its own index of 64 bits, in each cache.
        indexed = 8 * len(masks) * read.n_embd_v_gqa_max
    rows = N_UBATCH if one.rules.mask_rows == 1 else MASK_ROWS
    return rows * mask + N_UBATCH * (each + FLOAT * _decay(read) + indexed)


def _mask_bytes(read: Hparams, one: Settings, *, device: bool) -> int:
    """Bytes of an element of a mask: 4, or 2 with flash attention; where such a mask has 4, a device has both."""
    wide = {"all": True, "none": False, "without cache": not _reads_cache(read)}[one.rules.wide_masks]
    if not one.flash_attn:
        return FLOAT
    return (FLOAT + 2 if device else FLOAT) if wide else 2


def _has_indexer(read: Hparams) -> bool:
    row = read.architecture
    return row.memory in _INDEXER_MEMORIES and read.indexer_n_head > 0 and row.graph.indexer_mask


def _decay(read: Hparams) -> Sum:
    """The elements of a token in the matrix of lightning attention over a batch: one for each head and each token of its sequence."""
    return max(read.n_head) * EACH if read.architecture.states == "lightning" else NOTHING


def _reads_cache(read: Hparams) -> bool:
    row = read.architecture
    return row.memory not in ("none", "recurrent") and row.graph.reads_cache


def mask_cells(read: Hparams) -> tuple[Sum, ...]:
    """The cells of each mask, the widest mask first. A model without cache has a mask for the batch itself."""
    memory = read.architecture.memory
    if memory == "recurrent":
        return ()
    if not _reads_cache(read):
        return (N_UBATCH,) * (2 if read.n_swa else 1)
    if memory == "compressed":
        # Of the raw cache, of the cells of four tokens twice, as the indexer has its own, and of those of 128.
        return CELLS_SWA, GROUPS_OF_4, GROUPS_OF_4, GROUPS_OF_128
    return (N_CTX_SEQ, CELLS_SWA) if read.n_swa and any(read.is_swa) else (N_CTX_SEQ,)


def _draft_mask(read: Hparams) -> tuple[Sum, ...]:
    """The cells of the mask of a layer for multi-token prediction."""
    return (CELLS_SWA if read.is_swa[read.n_layer] else N_CTX_SEQ,)


def _feed_forward(read: Hparams, layers: range) -> int:
    """The elements of a token that are alive in the fullest feed-forward part of these layers, without the residual stream."""
    dense = [read.n_ff[n] for n in layers if not read.n_expert or n < read.n_layer_dense_lead]
    graph = read.architecture.graph
    tensors = 3 if graph.gated else 1
    most = tensors * max(dense, default=0)
    if read.n_expert and read.n_layer_dense_lead < layers.stop:
        inner = read.n_expert_used * (read.n_ff_exp or max(read.n_ff))
        outer = read.n_expert_used * read.n_embd
        # What the chosen experts give takes the place of gate and up where it fits in there.
        experts = tensors * inner + (outer if outer > (tensors - 1) * inner else 0)
        most = max(most, experts + (outer if graph.weighs_inputs else 0))
    return most + (read.n_embd if graph.parallel else 0)


def cell_bytes(read: Hparams, one: Settings, layer: int) -> int:
    """Bytes of the keys and values of a cell of a layer."""
    if not _reads_cache(read):
        return 0
    keys, values = read.n_embd_k_gqa(layer), 0 if read.is_mla else read.n_embd_v_gqa(layer)
    if read.is_mla and one.rules.latent_values:
        values = read.kv_lora_rank
    return one.type_k.row_bytes(keys) + one.type_v.row_bytes(values)


def _widest_converted(read: Hparams, one: Settings) -> dict[bool, int]:
    """The numbers of a cell that are not 16-bit floats, of the widest layer with a window (``True``) and without."""
    widest = {True: 0, False: 0}
    for number in range(read.n_layer, read.n_layer_all) if one.drafts else range(read.n_layer):
        # The values of a latent are a part of its keys: they have no copy of their own.
        values = 0 if read.is_mla or one.type_v.name == FP16.name else read.n_embd_v_gqa(number)
        keys = 0 if one.type_k.name == FP16.name else read.n_embd_k_gqa(number)
        slides = bool(read.is_swa[number])
        widest[slides] = max(widest[slides], keys + values)
    return widest


def most_converted(read: Hparams, one: Settings) -> int:
    """The numbers of a cell of the widest layer that flash attention on CUDA has to convert to 16-bit floats; 0 if it reads them as they are."""
    return max(_widest_converted(read, one).values()) if _reads_cache(read) else 0


def _sixteen_bit_copies(read: Hparams, one: Settings) -> list[Moment]:
    """The moments at which a layer's keys and values that are not 16-bit floats are copied: of the widest layers, those with a window apart."""
    if one.type_k.name == one.type_v.name == FP16.name:
        return []
    widest = _widest_converted(read, one)
    tokens = Sum.of(2 * read.n_embd + read.query_width + read.attention_width)
    copies = [2 * N_STREAM * (CELLS_SWA if slides else N_CTX_SEQ) * width for slides, width in widest.items() if width]
    return [Moment(name="16-bit copies", per_token=tokens, fixed_bytes=size) for size in copies]


def _state(read: Hparams, one: Settings) -> Moment | None:
    """The moment of a layer with a recurrent state: projections, convolution, scan, and the states of all sequences."""
    states = read.architecture.states
    inner, wide = read.ssm_d_inner, read.ssm_d_inner + 2 * read.ssm_n_group * read.ssm_d_state
    if states == "mamba1":
        tokens, kept = 5 * inner + 2 * read.n_embd, read.n_embd_s + 2 * read.n_embd_r
    elif states == "mamba2":
        tokens, kept = 2 * inner + 3 * wide + read.ssm_dt_rank + 2 * read.n_embd, read.n_embd_s + 3 * read.n_embd_r
    elif states in ("delta", "kda"):
        if not inner or states == "kda":
            inner, wide = max(read.n_head) * read.kda_head_dim, 3 * max(read.n_head) * read.kda_head_dim
        tokens, kept = 2 * (inner + wide + read.n_embd), 2 * read.n_embd_s
    elif states == "wkv":
        tokens, kept = read.architecture.graph.time_mix_copies * read.n_embd, 2 * read.n_embd_s + read.n_embd_r
    else:
        return None
    return Moment(name="state", per_token=Sum.of(tokens), fixed_bytes=FLOAT * N_SEQ_MAX * (1 + one.n_rs_seq) * kept)


DRAFT_FEED_FORWARD: Final = "draft feed-forward"


def _draft_moments(read: Hparams, one: Settings, part: Part) -> tuple[Moment, ...]:
    """The moments of a pass through a layer for multi-token prediction (``graph_mtp`` in src/models).

    The layer gets the token's embedding and the hidden state of the model, and makes one vector of both.
    """
    row, layer, heads = read.architecture, read.n_layer, read.n_head[read.n_layer]
    if read.is_mla:
        latent = 2 * (read.n_embd + read.kv_lora_rank) + heads * (read.key_length_mla + 2 * read.kv_lora_rank + 2 * read.n_rot)
        attention = Moment(name="draft attention", per_token=Sum.of(latent))
        turned, scored = 2 * N_STREAM * N_CTX_SEQ * read.kv_lora_rank, latent
    else:
        query = heads * read.head_width_k(layer)
        # Queries of a gated attention come with a gate of their width.
        copies = 4 if row.states == "delta" else 2
        attention = Moment(name="draft attention", per_token=Sum.of(2 * read.n_embd + copies * query))
        turned, scored = NOTHING, 2 * (read.n_embd + query)
    found = [attention]
    if not row.graph.draft_outputs:
        feed = 2 * read.n_embd + _feed_forward(read, range(layer, read.n_layer_all))
        found.append(Moment(name=DRAFT_FEED_FORWARD, per_token=Sum.of(feed)))
    if part.copies_host:
        found.append(Moment(name=OF_THE_HOST[0], per_token=attention.per_token))
    if part.sixteen_bit and one.flash_attn:
        found += _sixteen_bit_copies(read, one)
    if not one.flash_attn:
        found.append(Moment(name="attention scores", per_token=heads * _draft_mask(read)[0] + scored, fixed_bytes=turned))
    if part.output:
        found.append(Moment(name="logits", per_output=read.n_vocab + read.n_embd))
    return tuple(found)


def moments(read: Hparams, one: Settings, part: Part) -> tuple[Moment, ...]:
    """The moments of a pass that may be the fullest on a device."""
    if one.drafts:
        return _draft_moments(read, one, part)
    width, values, graph = read.query_width, read.attention_width, read.architecture.graph
    # Inputs stay alive with the residual stream: an embedding for each layer, copies of the stream.
    per_layer = read.n_embd_per_layer * read.n_layer
    base = 2 * read.n_embd + per_layer + (graph.stream_copies * read.n_embd or (width if per_layer else 0))
    if part.first and not read.is_recurrent[0] and _reads_cache(read):
        base += values
    alive = _feed_forward(read, range(read.n_layer)) + base + _decay(read)
    mixture = read.n_expert > 0 and read.n_layer_dense_lead < read.n_layer
    found = [Moment(name="experts" if mixture else "feed-forward", per_token=Sum.of(alive))]
    if mask_cells(read) and not _reads_cache(read):
        keys = max(map(read.n_embd_k_gqa, range(read.n_layer)))
        tokens = 2 * read.n_embd + width + keys + read.n_embd_v_gqa_max
        found.append(Moment(name="attention to a batch", per_token=Sum.of(tokens)))
    if part.copies_host:
        # A batch copies weights from the host while most tensors of the layer are alive, and later keys and values.
        ahead = Sum({names: number * 9 // 10 for names, number in Sum.of(alive).products.items()})
        alive_by_name = zip(OF_THE_HOST, (ahead, Sum.of(4 * read.n_embd)), strict=True)
        found += [Moment(name=name, per_token=numbers) for name, numbers in alive_by_name]
    # Attention over latent vectors: the queries, and the same queries in the width of a latent, twice.
    latent = 3 * read.n_embd + max(read.n_head, default=0) * (read.key_length_mla + 2 * read.kv_lora_rank + 2 * read.n_rot)
    attention = Moment(name="latent attention", per_token=Sum.of(latent))
    if _has_indexer(read) and one.flash_attn:
        attention = Moment(name="indexer", per_token=9 * latent // 5 + N_CTX_SEQ)
    if read.is_mla:
        found.append(attention)
    if part.sixteen_bit and one.flash_attn and _reads_cache(read):
        found += _sixteen_bit_copies(read, one)
    if (not one.flash_attn or graph.biased) and mask_cells(read):
        found.append(_scores(read, attention))
    elif read.architecture.memory == "msa" and (not one.kv_unified or one.n_seq_max == 1):
        # The blocks that a token chooses become a mask for each key/value head, for one sequence twice, and a mask of 32 bits.
        found.append(Moment(name="indexer", per_token=alive + N_CTX_SEQ * (max(read.n_head_kv) * (1 + ALONE) + 1)))
    state = _state(read, one)
    if state is not None:
        found.append(state)
    if part.output and not read.architecture.encoder:
        name = "logits" if one.rules.outputs_limited else "logits of a batch"
        name = "logits of hybrids" if read.architecture.states in ("mamba1", "mamba2") and mask_cells(read) else name
        # The host alone keeps an embedding that a caller may give, where the graph has it.
        kept = Sum.of(read.n_embd if part.alone and one.rules.host_embeddings > 1 else 0)
        found.append(Moment(name=name, per_token=kept, per_output=read.n_vocab + read.n_embd))
    return tuple(found)


def _scores(read: Hparams, latent: Moment) -> Moment:
    """The moment of attention without flash attention: the scores of all heads over all cells.

    The values of a ``latent`` are turned over before.
    """
    cells = mask_cells(read)
    widest = sum((cells[0], *cells[2:]), NOTHING) if read.architecture.memory == "compressed" else cells[0]
    # The biases are looked up, turned over and added beside the scores.
    scores = max(read.n_head) * widest * (4 if read.architecture.graph.biased else 1)
    if not read.is_mla:
        return Moment(name="attention scores", per_token=scores + 2 * (read.n_embd + read.query_width))
    turned = 2 * N_STREAM * N_CTX_SEQ * read.kv_lora_rank
    name = "indexer" if _has_indexer(read) else "attention scores"
    return Moment(name=name, per_token=scores + latent.per_token, fixed_bytes=turned)


def gpu_moments(read: Hparams, one: Settings, part: Part) -> Moments:
    """The moments of a device that runs layers, with the bytes of the whole buffer that each would need."""
    kept = part.copies * input_bytes(read, one, device=True)
    if one.drafts:
        # A single layer: the mask is gone behind its attention.
        gone = (DRAFT_FEED_FORWARD, "logits")
        return tuple((moment, moment.bytes + (0 if moment.name in gone else kept)) for moment in moments(read, one, part))
    kept += FLOAT * N_UBATCH * read.n_embd if part.alone else 0
    if part.copies > 1:
        kept += FLOAT * N_UBATCH * read.n_embd * (4 if part.first else 8)
    return tuple(
        # The mask is gone when the logits are made, unless other batches need it.
        (moment, moment.bytes if moment.per_output and part.copies == 1 else kept + moment.bytes)
        for moment in moments(read, one, part)
    )


def _host_moments(read: Hparams, one: Settings, copies: int) -> Moments:
    """The moment of the host where all layers lie on GPUs, with the bytes of its buffer: the embeddings of a batch and the inputs."""
    embeddings = one.rules.host_embeddings + (0 if copies == 1 else copies - 1) + read.architecture.graph.positions
    if one.drafts:
        # Nemotron's graph scales the embedding before the device gets it.
        embeddings = 2 if read.architecture.states == "mamba2" else 1
    numbers = embeddings * read.n_embd + read.n_embd_per_layer * read.n_layer
    moment = Moment(name="host", per_token=Sum.of(numbers))
    return ((moment, copies * input_bytes(read, one) + moment.bytes),)


NOTHING_COPIED: Final = -1
COMPUTE_BUFFER: Final = "compute buffer"
_EVERYTHING: Final = Part(alone=True)
_ALL_LAYERS: Final = Part(alone=True, output=False)

Device = Part | int
"""The part of a device that runs layers, or the copies of inputs on a host that runs none."""
Once = Callable[[Hashable, Callable[[], Moments]], Moments]


class GpuPart(Record):
    """The part of a model that a GPU runs, as far as its buffer depends on it; numbers or arrays, as in :class:`~...graph.Part`.

    ``from_host`` are the bytes of the largest tensor that is copied for a batch, or :data:`NOTHING_COPIED`, and ``full`` and ``sliding``
    those of a cell of the widest layers without a window and with one whose cache lies on the host.
    """

    runs: bool
    first: bool
    output: bool
    copies: int
    from_host: int = NOTHING_COPIED
    full: int = 0
    sliding: int = 0


class HostPart(Record):
    """The part of a model that the host runs: everything (``alone``), or some layers (``partly``).

    If ``helped``, a GPU multiplies with its weights.
    """

    alone: bool
    partly: bool
    helped: bool
    copies: int


class Sized(NamedTuple):
    """A moment of a pass, the bytes of the whole buffer that it needs, and how far measured sizes of such a moment lie from them."""

    moment: Moment
    size: Any
    error: Estimate

    def at(self, end: str) -> Any:
        """The bytes at an end of what was measured of such a moment."""
        return self.size * getattr(self.error, end)


class Buffers:
    """The buffers of a context, or of an array of contexts, with these settings."""

    def __init__(self, read: Hparams, settings: Settings, *, sixteen_bit: bool, once: Once, kv_on_host: bool = False) -> None:
        """``once`` makes moments once for the model and keeps them under a key: they do not depend on length and batch.

        With ``kv_on_host`` a GPU's flash attention copies the cache of its own layers, one after the other.
        """
        self._read = read
        self._copies_cache = kv_on_host and settings.flash_attn and _reads_cache(read)
        self._settings = settings
        self._sixteen_bit = sixteen_bit
        self._once = once
        single = not settings.kv_unified or settings.n_seq_max == 1
        types = (settings.type_k.name, settings.type_v.name)
        self._sort = (settings.drafts, settings.flash_attn, *types, single, settings.n_rs_seq, settings.rules)
        self._sized: dict[Device, tuple[Sized, ...]] = {}
        # Bytes of the fullest moment, of those that are the same whatever a GPU copies.
        self._fullest: dict[tuple[Device, str], Any] = {}

    def _moments(self, device: Device) -> Moments:
        read, settings = self._read, self._settings
        if isinstance(device, int):
            return self._once(("llamacpp moments", device, self._sort), lambda: _host_moments(read, settings, device))
        return self._once(("llamacpp moments", device, self._sort), lambda: gpu_moments(read, settings, device))

    def _sizes(self, device: Device) -> tuple[Sized, ...]:
        """All moments that a device may have, each with the bytes of its buffer."""
        if device not in self._sized:
            self._sized[device] = sizes_of(self._moments(device), self._settings)
        return self._sized[device]

    def _part(self, *, first: bool, copies: int) -> Part:
        """A GPU that runs the output and copies from the host; another GPU lacks some of its moments."""
        return Part(first=first, copies=copies, copies_host=True, sixteen_bit=self._sixteen_bit)

    def of(self, part: GpuPart | HostPart, end: str) -> int:
        """Bytes that a device needs for a pass, at an end of the estimates."""
        if isinstance(part, HostPart):
            return self._compute_on_host(part, end) + self._logits(end)
        size = 0
        for first in (True, False):
            for copies in (1, PIPELINE_COPIES):
                like = (part.first == first) & (part.copies == copies) & part.runs
                if some(like):
                    size = either(like, self._compute_on_gpu(part, self._part(first=first, copies=copies), end), size)
        return size

    def parts(self, part: GpuPart | HostPart) -> tuple[BudgetPart, ...]:
        """The buffers of a device in one context, as terms of the memory equation."""
        settings = self._settings
        if isinstance(part, GpuPart):
            if not part.runs:
                return ()
            sizes = self._sizes(self._part(first=part.first, copies=part.copies))
            sizes = tuple(self._with_copy(sized, part) for sized in sizes if self._has(part, sized.moment))
            low, expected, high = (self.of(part, end) for end in ENDS)
            return (compute_buffer(sizes, settings, (low, expected, high)),)
        layers = part.partly and not part.alone and not part.helped
        sizes = self._sizes(_EVERYTHING if part.alone else _ALL_LAYERS if layers else part.copies)
        low, expected, high = (self._compute_on_host(part, end) for end in ENDS)
        compute = compute_buffer(sizes, settings, (low, expected, high))
        low, expected, high = (self._logits(end) for end in ENDS)
        source = (
            "src/llama-context.cpp output_reserve: n_vocab x n_seq_max numbers from the start, more when a batch asks for more"
        )
        return compute, BudgetPart.of("output buffer", Section.ACTIVATIONS, (low, expected, high), source)

    def moments_of(self, part: GpuPart | HostPart) -> Moments:
        """The moments of a device in one context, which copies nothing from the host, with the names of their sizes."""
        if isinstance(part, HostPart):
            return self._moments(_EVERYTHING if part.alone else part.copies)
        return tuple(pair for pair in self._moments(self._part(first=part.first, copies=part.copies)) if self._has(part, pair[0]))

    def _compute_on_gpu(self, part: GpuPart, device: Part, end: str) -> int:
        """Bytes of the compute buffer of a GPU that is like ``device``, whatever it copies from the host."""
        sizes = self._sizes(device)
        if (device, end) not in self._fullest:
            always = (sized for sized in sizes if not sized.moment.per_output and sized.moment.name not in OF_THE_HOST)
            self._fullest[device, end] = largest(sized.at(end) for sized in always)
        most = self._fullest[device, end]
        for sized in sizes:
            if sized.moment.per_output or sized.moment.name in OF_THE_HOST:
                has = self._has(part, sized.moment)
                if some(has):
                    most = larger(most, has * self._with_copy(sized, part).at(end))
        return _rounded(most, end)

    def _has(self, part: GpuPart, moment: Moment) -> bool:
        """True if a GPU has a moment: logits if it runs the output, copies if it works with what lies on the host."""
        if moment.per_output:
            return part.output
        if moment.name not in OF_THE_HOST:
            return True
        return (part.from_host >= 0) | (self._copies_cache and moment.name == OF_THE_HOST[1])

    def _with_copy(self, sized: Sized, part: GpuPart) -> Sized:
        """The moment with the bytes that are copied from the host at that time."""
        settings, moment = self._settings, sized.moment
        if moment.name not in OF_THE_HOST:
            return sized
        copied = part.from_host
        if moment.name != OF_THE_HOST[0]:
            copied = settings.n_stream * larger(settings.cells_swa * part.sliding, settings.n_ctx_seq * part.full)
            if self._read.is_mla and not settings.rules.latent_values:
                # The values of a latent are a part of its keys, which are copied for each operation that reads them.
                copied *= _LATENT_COPIES
        whole = FLOAT * (copied // FLOAT)
        if isinstance(whole, int):
            moment = moment._replace(fixed_bytes=moment.fixed_bytes + whole)
        return sized._replace(moment=moment, size=sized.size + whole)

    def _compute_on_host(self, part: HostPart, end: str) -> int:
        """Bytes of the compute buffer of the host.

        If it has some layers, they lie between those of a host without layers and with all layers.
        """

        def of_device(device: Device) -> int:
            if (device, end) not in self._fullest:
                self._fullest[device, end] = fullest(self._sizes(device), end)
            size: int = self._fullest[device, end]
            return size

        alone = of_device(_EVERYTHING) if some(part.alone) else 0
        if part.alone is True:
            return alone
        beside = of_device(1)
        if some(part.copies > 1):
            beside = either(part.copies > 1, of_device(PIPELINE_COPIES), beside)
        if some(part.partly) and (end == "high" or (end == "expected" and not part.helped)):
            layers = of_device(_ALL_LAYERS)
            beside = either(part.partly, larger(beside, layers) if end == "high" else layers, beside)
        size: int = either(part.alone, alone, beside)
        return size

    def _logits(self, end: str) -> int:
        """The logits that the host keeps: of one token of each sequence at the start, of as many as a caller asks for later."""
        one = self._settings
        return FLOAT * self._read.n_vocab * (larger(one.n_seq_max, one.n_outputs_wanted) if end == "high" else one.n_seq_max)


def sizes_of(moments: Moments, settings: Settings) -> tuple[Sized, ...]:
    """The moments with the bytes of the buffer that each needs in a context."""
    errors = llamacpp_profile().compute
    return tuple(Sized(moment, size.at(settings), errors[moment.name]) for moment, size in moments)


def fullest(sizes: Iterable[Sized], end: str) -> int:
    """Bytes of a compute buffer: those of its fullest moment. Each end of the range has its own."""
    return _rounded(largest(sized.at(end) for sized in sizes), end)


def _rounded(size: float, end: str) -> int:
    rounded: int = floored(size) if end == "low" else ceiled(size)
    return rounded


def compute_buffer(sizes: Iterable[Sized], one: Settings, ends: tuple[int, int, int]) -> BudgetPart:
    """A compute buffer of these bytes as a term of the memory equation, with the moment that is the fullest by the expected value."""
    moment, size, error = max(sizes, key=lambda sized: sized.at("expected"))
    terms: dict[str, float] = {"kept_inputs": size - moment.bytes.at(one)}
    products = []
    if per_token := moment.per_token.at(one):
        terms |= {"n_ubatch": one.n_ubatch, "numbers_per_token": per_token}
        products.append("n_ubatch x numbers_per_token")
    if moment.per_output:
        terms |= {"n_outputs": one.outputs, "numbers_per_output": moment.per_output}
        products.append("n_outputs x numbers_per_output")
    if fixed := moment.fixed_bytes.at(one):
        terms["other_numbers"] = fixed // FLOAT
        products.append("other_numbers")
    formula = f"kept_inputs + number_bytes x ({' + '.join(products)})"
    terms["number_bytes"] = FLOAT
    if error.expected != 1:
        formula, terms = f"({formula}) x measured_share", terms | {"measured_share": error.expected}
    steps = (step("compute_buffer", formula, ends, unit="bytes", **terms),)
    source = f"fullest moment: {moment.name}; {error.source}"
    return BudgetPart.of(COMPUTE_BUFFER, Section.ACTIVATIONS, ends, source, steps=steps)
