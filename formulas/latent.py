"""Latent vectors: multi-head latent attention (MLA), the sparse-attention indexer that comes with it, and DeepSeek-V4's groups of tokens."""

from __future__ import annotations

from hwcalc.formulas.kind import LayerKind, register
from hwcalc.formulas.tensor import CacheTensor, Fixed, Full, Role, Span, Strided, Window


@register
class LatentAttention(LayerKind):
    """One compressed vector per token, shared by all heads, plus one rotary key.

    Keys and values are both computed from the latent, so it is stored once. Every layer has a latent of its own:
    DeepSeek-V3 keeps 61 layers x (512 + 64) x 2 bytes = 70,272 bytes per token.

    >>> [t.shape for t in LatentAttention(num_attention_heads=128, kv_lora_rank=512, qk_rope_head_dim=64,
    ...                                   qk_nope_head_dim=128, v_head_dim=128).tensors()]
    [(512,), (64,)]

    Four tokens of that layer in bf16: 4 x (512 + 64) x 2 = 4,608 bytes. A layer without rotary positions
    (``qk_rope_head_dim`` 0) keeps the latent only. With ``window`` only the last ``window`` tokens are kept.
    """

    name = "latent_attention"
    title = "latent attention (MLA)"
    source = "DeepSeek-AI 2024, arXiv:2405.04434, section 2.1"
    _may_be_0 = ("qk_rope_head_dim", "qk_nope_head_dim", "kv_lora_rank")
    _divided = ("num_attention_heads",)

    num_attention_heads: int
    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    window: int | None = None

    @property
    def span(self) -> Span:
        """All tokens, or the last ``window``."""
        return Full() if self.window is None else Window(self.window)

    def tensors(self) -> tuple[CacheTensor, ...]:
        latent = self.tensor("latent", "kv_lora_rank", role=Role.LATENT, span=self.span)
        rope = self.tensor("rope_key", "qk_rope_head_dim", role=Role.ROPE, span=self.span)
        return tuple(t for t in (latent, rope) if t.elements_per_position)

    def expanded(self) -> ExpandedLatentAttention:
        """The same layer with a key and a value per head, as older engines store it."""
        return ExpandedLatentAttention(**{name: getattr(self, name) for name in ExpandedLatentAttention.__struct_fields__})


@register
class ExpandedLatentAttention(LayerKind):
    """MLA with the latent multiplied out: a key of nope + rope and a value for every head.

    >>> [t.shape for t in ExpandedLatentAttention(num_attention_heads=128, qk_nope_head_dim=128,
    ...                                           qk_rope_head_dim=64, v_head_dim=128).tensors()]
    [(128, 192), (128, 128)]

    Four tokens of that layer in bf16: 4 x 128 x (192 + 128) x 2 = 327,680 bytes, 71 times the latent form.
    Source: transformers <= 5.14, modeling_deepseek_v3.py.
    """

    name = "expanded_latent_attention"
    title = "latent attention, expanded per head"
    source = "transformers 5.14, modeling_deepseek_v3.py"
    _may_be_0 = ("qk_rope_head_dim", "qk_nope_head_dim")
    _divided = ("num_attention_heads",)

    num_attention_heads: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    window: int | None = None

    def tensors(self) -> tuple[CacheTensor, ...]:
        span = Full() if self.window is None else Window(self.window)
        key = "qk_nope_head_dim + qk_rope_head_dim"
        keys = self.tensor("keys", "num_attention_heads", key, role=Role.KEY, span=span)
        return keys, self.tensor("values", "num_attention_heads", "v_head_dim", role=Role.VALUE, span=span)


@register
class SparseIndexer(LayerKind):
    """One small key per token that decides which tokens the attention beside it looks at.

    It reduces what is read, not what is stored. DeepSeek keeps the key in fp8 with one fp32 scale per 128 elements:
    128 + 4 = 132 bytes per token and layer. An engine may store it in another way. If ``index_quantized`` is false, the key
    has the dtype of all other keys (MiniMax-M3).

    >>> SparseIndexer(index_n_heads=64, index_head_dim=128).tensors()[0].shape
    (128,)

    Four tokens of that layer: 4 x 132 = 528 bytes. ``index_extra_elements`` counts what some models keep beside the key
    (a gate, a valid flag).
    """

    name = "sparse_indexer"
    title = "sparse-attention indexer"
    source = "DeepSeek-AI 2025, DeepSeek-V3.2 technical report, section 2.1"
    _may_be_0 = ("index_extra_elements",)

    index_n_heads: int
    index_head_dim: int
    index_extra_elements: int = 0
    index_topk: int | None = None
    """How many tokens the attention layer reads; ``None`` if the config does not say."""
    index_quantized: bool = True

    def tensors(self) -> tuple[CacheTensor, ...]:
        axis = "index_head_dim" if not self.index_extra_elements else "index_head_dim + index_extra_elements"
        role = Role.INDEX if self.index_quantized else Role.KEY
        return (self.tensor("indexer_keys", axis, role=role, span=Full()),)


@register
class CompressedAttention(LayerKind):
    """One vector that is key and value at once, for the last ``window`` tokens and for every group of tokens.

    With ``compress_ratio`` r the layer keeps, per sequence:

    - the last ``window`` tokens, ``head_dim`` elements each (key and value are the same vector, stored once);
    - one compressed entry of ``head_dim`` elements for every complete group of r tokens;
    - the state of the compressor: value and gate of the r tokens that are not compressed yet. With ``overlap`` (ratio 4)
      an entry is computed from its own group and the previous one, and each token has two halves. The state then has
      2 r slots of twice the width;
    - with ``index_head_dim``, entries and compressor state a second time, for the indexer that selects entries.

    Without ``compress_ratio`` the layer keeps the window only. The state always has its full size, because memory must be
    enough for a full group. It is fp32 in every engine that runs the model.

    >>> k = CompressedAttention(num_attention_heads=64, head_dim=512, window=128, compress_ratio=4, overlap=True,
    ...                         index_n_heads=64, index_head_dim=128)
    >>> [(t.name, t.shape, t.span.positions(4)) for t in k.tensors()][:3]
    [('window_latent', (512,), 4), ('compressed_latent', (512,), 1), ('compressor_value', (1024,), 8)]

    Four to seven tokens make one compressed entry, eight make two.
    Sources: transformers 5.23, modeling_deepseek_v4.py; vLLM 0.33, DeepSeek-V4 compressor state (ratio 4: 2,048 fp32
    for each of 8 slots; ratio 128: 1,024 fp32 for each of 128).
    """

    name = "compressed_attention"
    title = "compressed sparse attention"
    source = "transformers 5.23, modeling_deepseek_v4.py"
    _divided = ("num_attention_heads",)

    num_attention_heads: int
    head_dim: int
    window: int
    compress_ratio: int | None = None
    overlap: bool = False
    index_n_heads: int | None = None
    index_head_dim: int | None = None
    index_topk: int | None = None
    """How many compressed entries one token reads; ``None`` reads all."""

    def tensors(self) -> tuple[CacheTensor, ...]:
        out = [self.tensor("window_latent", "head_dim", role=Role.LATENT, span=Window(self.window))]
        if self.compress_ratio is None:
            return tuple(out)
        groups, slots = Strided(self.compress_ratio), Fixed((2 if self.overlap else 1) * self.compress_ratio)
        times = "2 x " if self.overlap else ""
        out.append(self.tensor("compressed_latent", "head_dim", role=Role.LATENT, span=groups))
        out += [self.tensor(f"compressor_{part}", f"{times}head_dim", role=Role.STATE, span=slots) for part in ("value", "gate")]
        if self.index_head_dim is not None:
            axis = f"{times}index_head_dim"
            out.append(self.tensor("indexer_keys", "index_head_dim", role=Role.INDEX, span=groups))
            out += [self.tensor(f"indexer_{part}", axis, role=Role.STATE, span=slots) for part in ("value", "gate")]
        return tuple(out)
