"""What speculative decoding puts beside the weights: a draft model, or the model's own layers that predict further tokens.

The rules are vLLM 0.33's, the engine that says most about them: a draft runs with the target's tensor-parallel size
(``config/speculative.py`` draft_tensor_parallel_size: that or 1, and for draft models that alone) in one pipeline stage, on the last rank
(``v1/worker/gpu_model_runner.py``). EAGLE heads and multi-token prediction take the target's embedding and head where they can
(``v1/spec_decode/llm_base_proposer.py`` _maybe_share_embeddings, _maybe_share_lm_head).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.engines.rank_weights import REFERENCE, RankBytes, Rules, block_bytes, cut_blocks, rank_weight_bytes
from hwcalc.engines.request import ALONE, Parallel
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole
from hwcalc.model import ModelSpec

if TYPE_CHECKING:
    from hwcalc.quantization.scheme import Scheme

__all__ = ["draft_bytes_rank", "eagle_bytes_rank", "mtp_bytes_rank"]


def draft_bytes_rank(
    draft: ModelSpec,
    parallel: Parallel = ALONE,
    *,
    plain: str | None = None,
    scheme: Scheme | None = None,
    rules: Rules = REFERENCE,
) -> RankBytes | None:
    """Bytes of a whole draft model on the fullest rank of the last stage; ``None`` if its weights are not counted.

    ``parallel`` is the target's, of which the draft has ``tp`` alone; ``scheme`` is the draft's own quantisation.
    """
    stages = rank_weight_bytes(draft, Parallel(tp=parallel.tp), plain=plain, scheme=scheme, rules=rules)
    source = f"weights of the draft {draft.id} on {parallel.tp:,} ranks, one stage; vLLM 0.33 config/speculative.py"
    return None if stages is None else RankBytes(low=stages[0], expected=stages[0], high=stages[0], source=source)


def eagle_bytes_rank(
    draft: ModelSpec,
    target: ModelSpec,
    parallel: Parallel = ALONE,
    *,
    plain: str | None = None,
    scheme: Scheme | None = None,
    rules: Rules = REFERENCE,
) -> RankBytes | None:
    """Bytes of an EAGLE head on the fullest rank of the last stage; ``None`` if its weights are not counted.

    Its embedding is the target's where the checkpoint has none of its own or an equal one, in one stage and of one width; its head
    likewise, where the vocabularies are equal. Low shares both, high shares neither: only the files tell.
    """
    blocks = _own(draft)
    parts = [
        _bytes(draft, _picked(blocks, role), Parallel(tp=parallel.tp), plain=plain, scheme=scheme, rules=rules)
        for role in (None, WeightRole.EMBEDDING, WeightRole.HEAD)
    ]
    rest, embedding, head = (part or 0 for part in parts)
    if parts[0] is None:
        return None
    shares_embedding = parallel.pp == 1 and draft.hidden_size == target.hidden_size and draft.vocab_size == target.vocab_size
    shares_head = _head_rows(draft) == _head_rows(target) and draft.hidden_size == target.hidden_size
    low = rest + (0 if shares_embedding else embedding) + (0 if shares_head else head)
    source = f"weights of the EAGLE head {draft.id}, tables shared with the target where equal; vLLM 0.33 llm_base_proposer.py"
    return RankBytes(low=low, expected=low, high=rest + embedding + head, source=source)


def mtp_bytes_rank(
    model: ModelSpec,
    parallel: Parallel = ALONE,
    *,
    plain: str | None = None,
    scheme: Scheme | None = None,
    rules: Rules = REFERENCE,
) -> RankBytes | None:
    """Bytes of a model's own layers of multi-token prediction on the fullest rank of the last stage.

    However many tokens are drafted, the layers are loaded once. Their copies of embedding and head give way to the target's; with several
    stages the embedding stays, since the target's is on another. ``None`` if the weights are not counted or the model has none.
    """
    blocks = [] if model.counted is None else [block for block in model.counted.blocks if block.part is Part.MTP]
    if not blocks:
        return None
    rest, embedding = (
        _bytes(model, _picked(blocks, role), parallel, plain=plain, scheme=scheme, rules=rules) or 0
        for role in (None, WeightRole.EMBEDDING)
    )
    size = rest + (embedding if parallel.pp > 1 else 0)
    source = "layers of multi-token prediction without the tables that they share; vLLM 0.33 llm_base_proposer.py"
    return RankBytes(low=size, expected=size, high=rest + embedding, source=source)


def _own(draft: ModelSpec) -> list[Block]:
    return [] if draft.counted is None else [block for block in draft.counted.blocks if block.part is not Part.MTP]


def _picked(blocks: list[Block], role: WeightRole | None) -> list[Block]:
    """The blocks with the tables of one role alone, or with everything but tables."""
    tables = {WeightRole.EMBEDDING, WeightRole.HEAD}

    def is_wanted(weight: Weight) -> bool:
        return weight.role is role if role is not None else weight.role not in tables

    return [
        Block(kind=block.kind, part=block.part, count=block.count, layers=block.layers, weights=kept)
        for block in blocks
        if (kept := tuple(weight for weight in block.weights if is_wanted(weight)))
    ]


def _head_rows(model: ModelSpec) -> int | None:
    """Rows of the head, which an EAGLE-3 checkpoint may have fewer of than its vocabulary."""
    rows = [
        weight.shape[0]
        for block in (model.counted.blocks if model.counted else ())
        if block.part is not Part.MTP
        for weight in block.weights
        if weight.role is WeightRole.HEAD
    ]
    return model.facts.draft_vocab_size or (rows[0] if rows else model.vocab_size)


def _bytes(
    model: ModelSpec,
    blocks: list[Block],
    parallel: Parallel,
    *,
    plain: str | None,
    scheme: Scheme | None,
    rules: Rules,
) -> int | None:
    if model.counted is None:
        return None
    form = rules.plain(model, plain)
    cut = cut_blocks(model, blocks, rules.rank(model, parallel), rules)
    return sum(block_bytes(model, block, rules, scheme, form) for block in cut)
