"""How much a compute buffer of llama.cpp holds: the tensors of a pass that are alive at once, on one device.

``llama_context::sched_reserve`` builds the graph of a batch of ``n_ubatch`` tokens and ``ggml_gallocr`` packs it: the buffer is the inputs
that stay to the end, such as the mask of the attention, and the fullest moment of a layer or of the output. The moments were read in
src/llama-graph.cpp and src/models of llama.cpp 0c1e57098 and compared with the sizes that it reserves.

All sizes are sums with the names of a context's sizes (:mod:`~hwcalc.engines.llamacpp.sums`); nothing here depends on length and batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hwcalc.engines.llamacpp.sums import (
    ALONE,
    CELLS_SWA,
    EACH,
    GROUPS_OF_4,
    GROUPS_OF_128,
    N_CTX_SEQ,
    N_SEQ_MAX,
    N_STREAM,
    N_UBATCH,
    NOTHING,
    OUTPUTS,
    Sum,
)
from hwcalc.formulas.formats import FP16

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.settings import Settings
    from hwcalc.parsers.gguf.hparams import Hparams

FLOAT: Final = 4
"""Bytes of a number: the results of all operations are 32-bit floats."""
PIPELINE_COPIES: Final = 4
"""ggml/src/ggml-backend.cpp ``GGML_SCHED_MAX_COPIES``: copies of the inputs where several GPUs work on different batches."""
OF_THE_HOST: Final = ("weights of the host", "cache of the host")
"""The moments of a GPU that makes copies of what lies on the host: of weights, and of keys and values."""
_INDEXER_MEMORIES: Final = ("dsa", "dsa-or-attention", "dsa-window", "hybrid-indexer")


class Part(NamedTuple):
    """The part of the model that a device runs, as far as its buffer depends on it."""

    first: bool = True
    """Whether it runs the first layer, after the embedding."""
    output: bool = True
    alone: bool = False
    """Whether the host runs everything, with one buffer for what is a copy beside a GPU."""
    copies: int = 1
    """:data:`PIPELINE_COPIES`, or 1."""
    from_host: int | None = None
    """Bytes of the largest tensor that lies on the host and is copied here for a batch; ``None`` if nothing is."""
    cache_from_host: int = 0
    """Bytes of the keys and values of the host's fullest layer, which are copied here for a batch as well."""
    sixteen_bit: bool = False
    """Whether flash attention reads keys and values as 16-bit floats, of which it makes copies (ggml-cuda/fattn.cu)."""


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


def input_bytes(read: Hparams, one: Settings) -> Sum:
    """Bytes of the inputs that stay alive through the pass: the mask, with an element for each token and each cell of a stream, and others."""
    cells = sum(mask_cells(read), NOTHING)
    each = (2 if one.flash_attn else FLOAT) * cells
    # The mask of an indexer has 16 bits whatever the attention is; buckets of positions are whole numbers of 32 bits.
    each += 2 * N_CTX_SEQ if _has_indexer(read) else 0
    each += FLOAT * cells if read.architecture.graph.biased else 0
    return N_UBATCH * (each + FLOAT * _decay(read) + _value_index_bytes(read, one))


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


def _value_index_bytes(read: Hparams, one: Settings) -> int:
    """Bytes for a token: without flash attention every number of a value is stored by its own index of 64 bits, in each cache."""
    if one.flash_attn or read.is_mla or not _reads_cache(read) or read.architecture.memory == "compressed":
        return 0
    return 8 * len(mask_cells(read)) * read.n_embd_v_gqa_max


def _feed_forward(read: Hparams) -> int:
    """The elements of a token that are alive in the fullest feed-forward part, without the residual stream."""
    dense = [read.n_ff[n] for n in range(read.n_layer) if not read.n_expert or n < read.n_layer_dense_lead]
    graph = read.architecture.graph
    tensors = 3 if graph.gated else 1
    most = tensors * max(dense, default=0)
    if read.n_expert and read.n_layer_dense_lead < read.n_layer:
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
    return one.type_k.row_bytes(keys) + one.type_v.row_bytes(values)


def _sixteen_bit_copies(read: Hparams, one: Settings) -> tuple[Sum, ...]:
    """Bytes of the copies of the keys and values of a layer that are not 16-bit floats: of the widest layers, those with a window apart."""
    if not _reads_cache(read):
        return ()
    widest = {True: 0, False: 0}
    for number in range(read.n_layer):
        # The values of a latent are a part of its keys: they have no copy of their own.
        values = 0 if read.is_mla or one.type_v.name == FP16.name else read.n_embd_v_gqa(number)
        keys = 0 if one.type_k.name == FP16.name else read.n_embd_k_gqa(number)
        slides = bool(read.is_swa[number])
        widest[slides] = max(widest[slides], keys + values)
    cells = {True: CELLS_SWA, False: N_CTX_SEQ}
    return tuple(2 * N_STREAM * cells[slides] * width for slides, width in widest.items() if width)


def _state(read: Hparams, one: Settings) -> Moment | None:
    """The moment of a layer with a recurrent state: projections, convolution, scan, and the states of all sequences."""
    states = read.architecture.states
    inner, wide = read.ssm_d_inner, read.ssm_d_inner + 2 * read.ssm_n_group * read.ssm_d_state
    if states == "mamba1":
        tokens, kept = 5 * inner + 2 * read.n_embd, read.n_embd_s + 2 * read.n_embd_r
    elif states == "mamba2":
        tokens = 2 * inner + 3 * wide + read.ssm_dt_rank + 2 * read.n_embd
        kept = read.n_embd_s + 3 * read.n_embd_r
    elif states in ("delta", "kda"):
        if not inner or states == "kda":
            inner, wide = max(read.n_head) * read.kda_head_dim, 3 * max(read.n_head) * read.kda_head_dim
        tokens, kept = 2 * (inner + wide + read.n_embd), 2 * read.n_embd_s
    elif states == "wkv":
        tokens, kept = read.architecture.graph.time_mix_copies * read.n_embd, 2 * read.n_embd_s + read.n_embd_r
    else:
        return None
    rows = N_SEQ_MAX * (1 + one.n_rs_seq)
    return Moment(name="state", per_token=Sum.of(tokens), fixed_bytes=FLOAT * rows * kept)


def moments(read: Hparams, one: Settings, part: Part) -> tuple[Moment, ...]:
    """The moments of a pass that may be the fullest on a device."""
    width, values = read.query_width, read.attention_width
    cached = not read.is_recurrent[0] and _reads_cache(read)
    base = 2 * read.n_embd + (values if part.first and cached else 0) + _beside(read)
    alive = _feed_forward(read) + base + _decay(read)
    mixture = read.n_expert > 0 and read.n_layer_dense_lead < read.n_layer
    found = [Moment(name="experts" if mixture else "feed-forward", per_token=Sum.of(alive))]
    if mask_cells(read) and not _reads_cache(read):
        keys = max(map(read.n_embd_k_gqa, range(read.n_layer)))
        tokens = 2 * read.n_embd + width + keys + read.n_embd_v_gqa_max
        found.append(Moment(name="attention to a batch", per_token=Sum.of(tokens)))
    if part.from_host is not None:
        found += _from_host(read, part, alive)
    if read.is_mla:
        found.append(_latent(read, one))
    if part.sixteen_bit and one.flash_attn:
        tokens = 2 * read.n_embd + width + values
        found += [
            Moment(name="16-bit copies", per_token=Sum.of(tokens), fixed_bytes=copies)
            for copies in _sixteen_bit_copies(read, one)
        ]
    if (not one.flash_attn or read.architecture.graph.biased) and mask_cells(read):
        found.append(_scores(read, one))
    elif read.architecture.memory == "msa" and (not one.kv_unified or one.n_seq_max == 1):
        # The blocks that a token chooses become a mask for each key/value head, for one sequence twice, and a mask of 32 bits.
        masks = max(read.n_head_kv) * (1 + ALONE) + 1
        found.append(Moment(name="indexer", per_token=alive + N_CTX_SEQ * masks))
    state = _state(read, one)
    if state is not None:
        found.append(state)
    if part.output and not read.architecture.encoder:
        name = "logits of hybrids" if read.architecture.states in ("mamba1", "mamba2") and mask_cells(read) else "logits"
        kept = Sum.of(read.n_embd if part.alone else 0)
        found.append(Moment(name=name, per_token=kept, per_output=read.n_vocab + read.n_embd))
    return tuple(found)


def _from_host(read: Hparams, part: Part, alive: Sum | int) -> tuple[Moment, Moment]:
    """The moments while a batch copies tensors from the host: weights, with most live tensors of the layer, or keys and values."""
    numbers = Sum.of(alive)
    ahead = Sum({names: number * 9 // 10 for names, number in numbers.products.items()})
    weights = FLOAT * ((part.from_host or 0) // FLOAT)
    of_weights, of_cache = OF_THE_HOST
    return (
        Moment(name=of_weights, per_token=ahead, fixed_bytes=Sum.of(weights)),
        Moment(
            name=of_cache,
            per_token=Sum.of(4 * read.n_embd),
            fixed_bytes=Sum.of(FLOAT * (part.cache_from_host // FLOAT)),
        ),
    )


def _beside(read: Hparams) -> int:
    """The elements of a token in inputs that stay alive with the residual stream: an embedding for each layer, copies of the stream."""
    per_layer, copies = read.n_embd_per_layer * read.n_layer, read.architecture.graph.stream_copies
    return per_layer + (copies * read.n_embd if copies else read.query_width if per_layer else 0)


def _latent(read: Hparams, one: Settings) -> Moment:
    """The moment of attention over latent vectors: the queries, and the same queries in the width of a latent, twice."""
    widths = read.key_length_mla + 2 * read.kv_lora_rank + 2 * read.n_rot
    per_token = 3 * read.n_embd + max(read.n_head) * widths
    if _has_indexer(read) and one.flash_attn:
        return Moment(name="indexer", per_token=9 * per_token // 5 + N_CTX_SEQ)
    return Moment(name="latent attention", per_token=Sum.of(per_token))


def _scores(read: Hparams, one: Settings) -> Moment:
    """The moment of attention without flash attention: the scores of all heads over all cells.

    The values of a latent are turned over before.
    """
    cells = mask_cells(read)
    widest = cells[0]
    if read.architecture.memory == "compressed":
        widest = sum((cells[0], *cells[2:]), NOTHING)
    # The biases are looked up, turned over and added beside the scores.
    scores = max(read.n_head) * widest * (4 if read.architecture.graph.biased else 1)
    if not read.is_mla:
        return Moment(name="attention scores", per_token=scores + 2 * (read.n_embd + read.query_width))
    turned = 2 * N_STREAM * N_CTX_SEQ * read.kv_lora_rank
    name = "indexer" if _has_indexer(read) else "attention scores"
    return Moment(name=name, per_token=scores + _latent(read, one).per_token, fixed_bytes=turned)


def gpu_moments(read: Hparams, one: Settings, part: Part) -> tuple[tuple[Moment, Sum], ...]:
    """The moments with the bytes of the whole buffer that each would need."""
    kept = part.copies * input_bytes(read, one)
    kept += FLOAT * N_UBATCH * read.n_embd if part.alone else 0
    if part.copies > 1:
        kept += FLOAT * N_UBATCH * read.n_embd * (4 if part.first else 8)
    return tuple(
        # The mask is gone when the logits are made, unless other batches need it.
        (moment, moment.bytes if moment.per_output and part.copies == 1 else kept + moment.bytes)
        for moment in moments(read, one, part)
    )


def host_moments(read: Hparams, one: Settings, copies: int = 1) -> tuple[tuple[Moment, Sum]]:
    """The moment of the host where all layers lie on GPUs, with the bytes of its buffer: the embeddings of a batch and the inputs."""
    embeddings = (2 if copies == 1 else copies + 1) + read.architecture.graph.positions
    numbers = embeddings * read.n_embd + read.n_embd_per_layer * read.n_layer
    moment = Moment(name="host", per_token=Sum.of(numbers))
    return ((moment, copies * input_bytes(read, one) + moment.bytes),)


def output_bytes(read: Hparams, count: int) -> int:
    """Bytes of the logits of ``count`` tokens."""
    return FLOAT * read.n_vocab * count
