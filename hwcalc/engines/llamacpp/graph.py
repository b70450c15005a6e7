"""How much a compute buffer of llama.cpp holds: the tensors of a pass that are alive at once, on one device.

``llama_context::sched_reserve`` builds the graph of a batch of ``n_ubatch`` tokens and ``ggml_gallocr`` packs it: the buffer is the inputs
that stay to the end, such as the mask of the attention, and the fullest moment of a layer or of the output. The moments were read in
src/llama-graph.cpp and src/models of llama.cpp 0c1e57098 and compared with the sizes that it reserves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from hwcalc.engines.llamacpp.settings import rounded_up
from hwcalc.formulas.formats import FP16
from hwcalc.formulas.frozen import frozen
from hwcalc.parsers.gguf.architectures import Memory, States

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.settings import Settings
    from hwcalc.parsers.gguf.hparams import Hparams

__all__ = [
    "FLOAT",
    "PIPELINE_COPIES",
    "Moment",
    "Part",
    "gpu_moments",
    "host_bytes",
    "input_bytes",
    "mask_cells",
    "moments",
    "output_bytes",
    "outputs",
]

FLOAT: Final = 4
"""Bytes of a number: the results of all operations are 32-bit floats."""
PIPELINE_COPIES: Final = 4
"""ggml/src/ggml-backend.cpp ``GGML_SCHED_MAX_COPIES``: copies of the inputs where several GPUs work on different batches."""
_INDEXER_MEMORIES: Final = (Memory.DSA, Memory.DSA_OR_ATTENTION, Memory.DSA_WINDOW, Memory.HYBRID_INDEXER)


@frozen
class Part:
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


@frozen
class Moment:
    """What is alive at once beside the inputs: numbers for each token of the batch, numbers for each output, and others."""

    name: str
    per_token: int = 0
    per_output: int = 0
    fixed: int = 0

    def bytes(self, n_ubatch: int, n_outputs: int) -> int:
        """Bytes for a batch."""
        return FLOAT * (n_ubatch * self.per_token + n_outputs * self.per_output + self.fixed)


def outputs(one: Settings) -> int:
    """Tokens of a batch whose logits are reserved."""
    return min(one.n_ubatch, one.n_outputs)


def input_bytes(read: Hparams, one: Settings) -> int:
    """The inputs that stay alive through the whole pass: a number of the mask for each token and each cell of a stream, and others."""
    cells = sum(mask_cells(read, one))
    each = (2 if one.flash_attn else FLOAT) * cells
    # The mask of an indexer has 16 bits whatever the attention is; buckets of positions are whole numbers of 32 bits.
    each += 2 * one.n_ctx_seq if _has_indexer(read) else 0
    each += FLOAT * cells if read.architecture.graph.biased else 0
    return one.n_ubatch * (each + FLOAT * _decay(read, one) + _value_index_bytes(read, one))


def _has_indexer(read: Hparams) -> bool:
    row = read.architecture
    return row.memory in _INDEXER_MEMORIES and read.indexer_n_head > 0 and row.graph.indexer_mask


def _decay(read: Hparams, one: Settings) -> int:
    """Numbers of a token in the matrix of lightning attention over a batch: one for each head and each token of its sequence."""
    lightning = read.architecture.states is States.LIGHTNING
    return max(read.n_head) * -(-one.n_ubatch // one.n_seq_max) if lightning else 0


def _reads_cache(read: Hparams) -> bool:
    row = read.architecture
    return row.memory not in (Memory.NONE, Memory.RECURRENT) and row.graph.reads_cache


def mask_cells(read: Hparams, one: Settings) -> tuple[int, ...]:
    """The cells of each mask. A model without cache has one for the batch itself."""
    memory = read.architecture.memory
    if memory is Memory.RECURRENT:
        return ()
    if not _reads_cache(read):
        return (one.n_ubatch,) * (2 if read.n_swa else 1)
    if memory is Memory.COMPRESSED:
        # Of the raw cache, of the cells of four tokens twice, as the indexer has its own, and of those of 128.
        fours, many = (rounded_up(-(-one.n_ctx_seq // ratio)) for ratio in (4, 128))
        return one.cells_swa, fours, fours, many
    return (one.n_ctx_seq, one.cells_swa) if read.n_swa and any(read.is_swa) else (one.n_ctx_seq,)


def _value_index_bytes(read: Hparams, one: Settings) -> int:
    """Bytes for a token: without flash attention every number of a value is stored by its own index of 64 bits, in each cache."""
    if one.flash_attn or read.is_mla or not _reads_cache(read) or read.architecture.memory is Memory.COMPRESSED:
        return 0
    return 8 * len(mask_cells(read, one)) * read.n_embd_v_gqa_max


def _query_width(read: Hparams, *, values: bool = False) -> int:
    """The queries, or what the attention gives, of the widest layer."""
    if read.is_mla:
        return max(read.n_head) * (read.value_length_mla if values else read.key_length_mla)
    width = read.head_width_v if values else read.head_width_k
    return max((read.n_head[n] * width(n) for n in range(read.n_layer)), default=0)


def _feed_forward(read: Hparams) -> int:
    """Numbers of a token alive in the fullest feed-forward part, beside the residual stream."""
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


def layer_cache_bytes(read: Hparams, one: Settings, layers: Iterable[int]) -> int:
    """The keys and values of the layer that has most."""
    if not _reads_cache(read):
        return 0
    most = 0
    for number in layers:
        cells = one.n_stream * (one.cells_swa if read.is_swa[number] else one.n_ctx_seq)
        keys, values = read.n_embd_k_gqa(number), 0 if read.is_mla else read.n_embd_v_gqa(number)
        most = max(most, cells * (one.type_k.row_bytes(keys) + one.type_v.row_bytes(values)))
    return most


def _sixteen_bit_copies(read: Hparams, one: Settings) -> int:
    """Bytes of the copies of the keys and values of a layer that are not 16-bit floats: those of the layer that has most."""
    if not _reads_cache(read):
        return 0
    most = 0
    for number in range(read.n_layer):
        cells = one.n_stream * (one.cells_swa if read.is_swa[number] else one.n_ctx_seq)
        # The values of a latent are a part of its keys: they have no copy of their own.
        values = 0 if read.is_mla or one.type_v.name == FP16.name else read.n_embd_v_gqa(number)
        keys = 0 if one.type_k.name == FP16.name else read.n_embd_k_gqa(number)
        most = max(most, 2 * cells * (keys + values))
    return most


def _state(read: Hparams, sequences: int) -> Moment | None:
    """A layer with a recurrent state: projections, convolution, scan, and the states of all sequences."""
    states = read.architecture.states
    inner, wide = read.ssm_d_inner, read.ssm_d_inner + 2 * read.ssm_n_group * read.ssm_d_state
    if states is States.MAMBA1:
        return Moment(name="state", per_token=5 * inner + 2 * read.n_embd, fixed=sequences * (read.n_embd_s + 2 * read.n_embd_r))
    if states is States.MAMBA2:
        projected = inner + wide + read.ssm_dt_rank
        return Moment(
            name="state",
            per_token=projected + 2 * wide + inner + 2 * read.n_embd,
            fixed=sequences * (read.n_embd_s + 3 * read.n_embd_r),
        )
    if states in (States.DELTA, States.KDA):
        inner, wide = (
            (inner, wide)
            if inner and states is States.DELTA
            else (max(read.n_head) * read.kda_head_dim, 3 * max(read.n_head) * read.kda_head_dim)
        )
        return Moment(name="state", per_token=2 * (inner + wide + read.n_embd), fixed=sequences * 2 * read.n_embd_s)
    if states is States.WKV:
        copies = read.architecture.graph.time_mix_copies
        return Moment(name="state", per_token=copies * read.n_embd, fixed=sequences * (2 * read.n_embd_s + read.n_embd_r))
    return None


def moments(read: Hparams, one: Settings, part: Part) -> tuple[Moment, ...]:
    """The moments of a pass that may be the fullest on a device."""
    width, values = _query_width(read), _query_width(read, values=True)
    cached = not read.is_recurrent[0] and _reads_cache(read)
    base = 2 * read.n_embd + (values if part.first and cached else 0) + _beside(read)
    base += _decay(read, one)
    mixture = read.n_expert > 0 and read.n_layer_dense_lead < read.n_layer
    found = [Moment(name="experts" if mixture else "feed-forward", per_token=_feed_forward(read) + base)]
    if mask_cells(read, one) and not _reads_cache(read):
        keys = max(map(read.n_embd_k_gqa, range(read.n_layer)))
        found.append(Moment(name="attention to a batch", per_token=2 * read.n_embd + width + keys + read.n_embd_v_gqa_max))
    if part.from_host is not None:
        ahead = (_feed_forward(read) + base) * 9 // 10
        found.append(Moment(name="weights of the host", per_token=ahead, fixed=part.from_host // FLOAT))
        found.append(Moment(name="cache of the host", per_token=4 * read.n_embd, fixed=part.cache_from_host // FLOAT))
    if read.is_mla:
        found.append(_latent(read, one))
    copies = _sixteen_bit_copies(read, one) if part.sixteen_bit and one.flash_attn else 0
    if copies:
        found.append(Moment(name="16-bit copies", per_token=2 * read.n_embd + width + values, fixed=copies // FLOAT))
    if (not one.flash_attn or read.architecture.graph.biased) and mask_cells(read, one):
        found.append(_scores(read, one))
    elif read.architecture.memory is Memory.MSA and (one.n_seq_max == 1 or not one.kv_unified):
        # The blocks that a token chooses become a mask for each key/value head, twice, and a mask of 32 bits.
        heads = 2 * max(read.n_head_kv) if one.n_seq_max == 1 else max(read.n_head_kv)
        found.append(Moment(name="indexer", per_token=base + _feed_forward(read) + one.n_ctx_seq * (heads + 1)))
    state = _state(read, one.state_rows)
    if state is not None:
        found.append(state)
    if part.output and not read.architecture.encoder:
        name = (
            "logits of hybrids"
            if read.architecture.states in (States.MAMBA1, States.MAMBA2) and mask_cells(read, one)
            else "logits"
        )
        found.append(Moment(name=name, per_token=read.n_embd if part.alone else 0, per_output=read.n_vocab + read.n_embd))
    return tuple(found)


def _beside(read: Hparams) -> int:
    """Inputs of the layers that stay beside the residual stream: an embedding for each layer, copies of the stream."""
    per_layer, copies = read.n_embd_per_layer * read.n_layer, read.architecture.graph.stream_copies
    return per_layer + (copies * read.n_embd if copies else _query_width(read) if per_layer else 0)


def _latent(read: Hparams, one: Settings) -> Moment:
    """Attention over latent vectors: the queries, and the same queries in the width of a latent, twice."""
    widths = read.key_length_mla + 2 * read.kv_lora_rank + 2 * read.n_rot
    per_token = 3 * read.n_embd + max(read.n_head) * widths
    if _has_indexer(read) and one.flash_attn:
        return Moment(name="indexer", per_token=9 * per_token // 5 + one.n_ctx_seq)
    return Moment(name="latent attention", per_token=per_token)


def _scores(read: Hparams, one: Settings) -> Moment:
    """Without flash attention: the scores of all heads over all cells. The values of a latent are turned over before."""
    cells = mask_cells(read, one)
    scores = max(read.n_head) * (sum(cells) - cells[1] if read.architecture.memory is Memory.COMPRESSED else max(cells))
    # The biases are looked up, turned over and added beside the scores.
    scores *= 4 if read.architecture.graph.biased else 1
    if not read.is_mla:
        return Moment(name="attention scores", per_token=scores + 2 * (read.n_embd + _query_width(read)))
    turned = one.n_stream * one.n_ctx_seq * read.kv_lora_rank // 2
    name = "indexer" if _has_indexer(read) else "attention scores"
    return Moment(name=name, per_token=scores + _latent(read, one).per_token, fixed=turned)


def gpu_moments(read: Hparams, one: Settings, part: Part) -> tuple[tuple[Moment, int], ...]:
    """The moments with the bytes of the whole buffer that each would need."""
    kept = part.copies * input_bytes(read, one)
    kept += FLOAT * one.n_ubatch * read.n_embd if part.alone else 0
    if part.copies > 1:
        kept += FLOAT * one.n_ubatch * read.n_embd * (4 if part.first else 8)
    return tuple(
        # The mask is gone when the logits are made, unless other batches need it.
        (moment, (0 if moment.per_output and part.copies == 1 else kept) + moment.bytes(one.n_ubatch, outputs(one)))
        for moment in moments(read, one, part)
    )


def host_bytes(read: Hparams, one: Settings, copies: int = 1) -> int:
    """The buffer of the host where all layers lie on GPUs: the embeddings of a batch and the inputs."""
    embeddings = (2 if copies == 1 else copies + 1) + read.architecture.graph.positions
    numbers = embeddings * read.n_embd + read.n_embd_per_layer * read.n_layer
    return copies * input_bytes(read, one) + FLOAT * one.n_ubatch * numbers


def output_bytes(read: Hparams, count: int) -> int:
    """The logits of so many tokens."""
    return FLOAT * read.n_vocab * count
