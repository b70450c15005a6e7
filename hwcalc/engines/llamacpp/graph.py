"""How much a compute buffer of llama.cpp holds: the tensors of a pass that are alive at once, on one device.

``llama_context::sched_reserve`` builds the graph of a batch of ``n_ubatch`` tokens and ``ggml_gallocr`` packs it: the buffer is the inputs
that stay to the end, such as the mask of the attention, and the fullest moment of a layer or of the output. The moments were read in
src/llama-graph.cpp and src/models of llama.cpp 0c1e57098 and compared with the sizes that it reserves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.formulas.formats import FP16
from hwcalc.formulas.frozen import frozen
from hwcalc.parsers.gguf.architectures import Latents, Memory, States

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.settings import Settings
    from hwcalc.parsers.gguf.hparams import Hparams

__all__ = [
    "PIPELINE_COPIES",
    "Moment",
    "Part",
    "fullest",
    "gpu_moments",
    "host_bytes",
    "input_bytes",
    "mask_bytes",
    "moments",
    "output_bytes",
    "outputs",
]

FLOAT: Final = 4
"""Bytes of a number: the results of all operations are 32-bit floats."""
PIPELINE_COPIES: Final = 4
"""ggml/src/ggml-backend.cpp ``GGML_SCHED_MAX_COPIES``: copies of the inputs where several GPUs work on different batches."""
_UNGATED: Final = frozenset(
    {
        "arcee", "apertus", "bert", "bloom", "codeshell", "falcon", "gpt2", "gptj", "gptneox", "jais2", "jina-bert-v3", "mpt",
        "nemotron", "nemotron_h", "nemotron_h_moe", "nomic-bert-moe", "phi2", "plm", "starcoder", "starcoder2", "t5", "talkie",
    }
)  # fmt: skip
"""Architectures whose feed-forward part has no gate beside it: one tensor of its width is alive, not three."""
_PARALLEL: Final = frozenset({"cohere2", "cohere2moe", "command-r"})
"""Architectures whose attention and gated feed-forward part have the same input, which stays until both are done."""
_INDEXER_MEMORIES: Final = (Memory.DSA, Memory.DSA_OR_ATTENTION, Memory.DSA_WINDOW, Memory.HYBRID_INDEXER)


@frozen
class Part:
    """The part of the model that a device runs, as far as its buffer depends on it."""

    first: bool = True
    """Whether it runs the first layer, after the embedding."""
    output: bool = True
    copies: int = 1
    """:data:`PIPELINE_COPIES`, or 1."""
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


def mask_bytes(read: Hparams, one: Settings) -> int:
    """The masks of the attention: one number for each token and each cell of a stream, of 16 bits with flash attention."""
    cells = sum(_mask_cells(read, one))
    return cells * one.n_ubatch * (2 if one.flash_attn else FLOAT)


def _mask_cells(read: Hparams, one: Settings) -> tuple[int, ...]:
    row = read.architecture
    if row.memory is Memory.NONE:
        return (one.n_ubatch,) * (2 if read.n_swa else 1)
    if row.memory is Memory.RECURRENT:
        return ()
    masks = (one.n_ctx_seq, one.cells_swa) if read.n_swa and any(read.is_swa) else (one.n_ctx_seq,)
    return (*masks, one.n_ctx_seq) if row.memory in _INDEXER_MEMORIES and read.indexer_n_head else masks


def _value_index_bytes(read: Hparams, one: Settings) -> int:
    """Without flash attention values are stored one by one: an index of 64 bits for each, for each of the caches."""
    if one.flash_attn or read.is_mla or read.architecture.memory in (Memory.NONE, Memory.RECURRENT):
        return 0
    widths = {
        swa: max((read.n_embd_v_gqa(n) for n in range(read.n_layer) if read.is_swa[n] == swa), default=0) for swa in (False, True)
    }
    return 8 * one.n_ubatch * sum(widths.values())


def input_bytes(read: Hparams, one: Settings) -> int:
    """The inputs that stay alive through the whole pass."""
    return mask_bytes(read, one) + _value_index_bytes(read, one)


def _query_width(read: Hparams, *, values: bool = False) -> int:
    """The queries, or what the attention gives, of the widest layer."""
    if read.is_mla:
        return max(read.n_head) * (read.value_length_mla if values else read.key_length_mla)
    width = read.head_width_v if values else read.head_width_k
    return max((read.n_head[n] * width(n) for n in range(read.n_layer)), default=0)


def _feed_forward(read: Hparams) -> int:
    """Numbers of a token alive in the fullest feed-forward part, beside the residual stream."""
    dense = [read.n_ff[n] for n in range(read.n_layer) if not read.n_expert or n < read.n_layer_dense_lead]
    tensors = 1 if read.arch in _UNGATED else 3
    most = tensors * max(dense, default=0)
    if read.n_expert and read.n_layer_dense_lead < read.n_layer:
        inner = read.n_expert_used * (read.n_ff_exp or max(read.n_ff))
        outer = read.n_expert_used * read.n_embd
        # What the chosen experts give takes the place of gate and up where it fits in there.
        experts = tensors * inner + (outer if outer > (tensors - 1) * inner else 0)
        most = max(most, experts + (outer if read.arch == "llama4" else 0))
    return most + (read.n_embd if read.arch in _PARALLEL else 0)


def _latent(read: Hparams) -> int:
    """Attention over latent vectors: the queries, and the same queries in the width of a latent, twice."""
    rope = read.n_rot
    return max(read.n_head) * (read.key_length_mla + 2 * read.kv_lora_rank + 2 * rope) + 3 * read.n_embd


def _sixteen_bit_copies(read: Hparams, one: Settings) -> int:
    """Bytes of the copies of the keys and values of a layer that are not 16-bit floats: those of the layer that has most."""
    if read.architecture.memory in (Memory.NONE, Memory.RECURRENT):
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
    if states is States.WKV:
        wkv6 = 13 if read.arch in ("rwkv6", "rwkv6qwen2") else 18
        return Moment(name="state", per_token=wkv6 * read.n_embd, fixed=sequences * (2 * read.n_embd_s + read.n_embd_r))
    return None


def moments(read: Hparams, one: Settings, part: Part) -> tuple[Moment, ...]:
    """The moments of a pass that may be the fullest on a device."""
    base = 2 * read.n_embd + (_query_width(read, values=True) if part.first and not read.is_recurrent[0] else 0)
    found = []
    ahead = _feed_forward(read)
    if ahead:
        found.append(Moment(name="feed-forward", per_token=ahead + base))
    if read.is_mla and read.architecture.latents is not Latents.NEVER:
        found.append(Moment(name="latent attention", per_token=_latent(read)))
    copies = _sixteen_bit_copies(read, one) if part.sixteen_bit and one.flash_attn else 0
    if copies:
        width = _query_width(read) + _query_width(read, values=True)
        found.append(Moment(name="16-bit copies", per_token=2 * read.n_embd + width, fixed=copies // FLOAT))
    if not one.flash_attn and read.architecture.memory is not Memory.RECURRENT:
        cells = max(_mask_cells(read, one))
        found.append(Moment(name="attention scores", per_token=max(read.n_head) * cells + 4 * read.n_embd))
    state = _state(read, one.state_rows)
    if state is not None:
        found.append(state)
    if part.output and read.n_vocab:
        found.append(Moment(name="logits", per_output=read.n_vocab + read.n_embd))
    return tuple(found)


def fullest(read: Hparams, one: Settings, part: Part) -> tuple[Moment, int]:
    """The moment that needs most, and the bytes of the buffer."""
    return max(gpu_moments(read, one, part), key=lambda pair: pair[1])


def gpu_moments(read: Hparams, one: Settings, part: Part) -> tuple[tuple[Moment, int], ...]:
    """The moments with the bytes of the whole buffer that each would need."""
    kept = part.copies * input_bytes(read, one)
    if part.copies > 1:
        kept += FLOAT * one.n_ubatch * read.n_embd * (4 if part.first else 8)
    return tuple(
        (moment, (kept if part.copies > 1 or moment.name != "logits" else 0) + moment.bytes(one.n_ubatch, outputs(one)))
        for moment in moments(read, one, part)
    )


def host_bytes(read: Hparams, one: Settings, copies: int = 1) -> int:
    """The buffer of the host where all layers lie on GPUs: the embeddings of a batch and the inputs."""
    embeddings = FLOAT * one.n_ubatch * read.n_embd
    return copies * input_bytes(read, one) + (2 if copies == 1 else copies + 1) * embeddings


def output_bytes(read: Hparams, count: int) -> int:
    """The logits of so many tokens."""
    return FLOAT * read.n_vocab * count
