"""Formulas that are often quoted, put beside what the plan says.

Each is a product of factors and is computed from the model's own numbers. One is shown if the model has its symbols and the result is not
that of the plan; what it passes over is said in the numbers of the model. Sources: calculators and threads that use them, such as
Unsloth pull request 4757, LMCache pull request 694, vllm-fit issue 2, llmfit issues 230 and 951, and tt-xla issue 5861.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

from hwcalc.formulas import KINDS, Role
from hwcalc.formulas.hybrid import Group
from hwcalc.formulas.tensor import Full, Once
from hwcalc.library.explained import QuotedFormula, numbers_in, shown

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.planner.result import Plan

_CACHE, _RANK, _WEIGHTS = "KV cache", "KV cache of a GPU", "weights"
_TOKENS: Final = ("seq", "batch", "element_bytes")
_HEAD: Final = "(hidden_size / num_attention_heads)"
_LATENT_HEAD: Final = "(qk_nope_head_dim + qk_rope_head_dim + v_head_dim)"
_KEPT: Final = "min(seq, window)"


class _Quoted(NamedTuple):
    """A formula: what it is said to give, its factors, and the facts that it passes over, by their keys."""

    subject: str
    factors: tuple[str, ...]
    ignores: tuple[str, ...]


_LAYERS: Final = ("window", "shared", "states", "without", "indexer", "cross")
"""Things that formulas for full attention alone pass over."""

QUOTED: Final = (
    _Quoted(_CACHE, ("2", "layers", "hidden_size", *_TOKENS), ("grouped", "own head_dim", "latent", *_LAYERS)),
    _Quoted(_CACHE, ("2", "layers", "num_attention_heads", "head_dim", *_TOKENS), ("grouped", *_LAYERS)),
    _Quoted(_CACHE, ("2", "layers", "num_key_value_heads", _HEAD, *_TOKENS), ("own head_dim", *_LAYERS)),
    _Quoted(_CACHE, ("2", "layers", "num_key_value_heads", "head_dim", *_TOKENS), _LAYERS),
    _Quoted(_CACHE, ("2", "layers", "num_key_value_heads", "head_dim", _KEPT, "batch", "element_bytes"), ("full", *_LAYERS[1:])),
    _Quoted(_CACHE, ("layers", "num_attention_heads", _LATENT_HEAD, *_TOKENS), ("latent", *_LAYERS)),
    _Quoted(_CACHE, ("(kv_lora_rank + qk_rope_head_dim)", *_TOKENS), ("a latent each", *_LAYERS[1:])),
    _Quoted(_CACHE, ("2", "layers", "kv_lora_rank", *_TOKENS), ("one latent", "rotary key", *_LAYERS)),
    _Quoted(_CACHE, ("layers", "kv_lora_rank", *_TOKENS), ("rotary key", *_LAYERS)),
    _Quoted(_CACHE, ("layers", "(kv_lora_rank + qk_rope_head_dim)", *_TOKENS), _LAYERS),
    _Quoted(_CACHE, ("state_layers", "d_state", "batch", "state_bytes"), ("channels", "convolution", "attention beside")),
    _Quoted(_CACHE, ("2", "layers", "num_key_value_heads", "head_dim", "seq", "batch", "4"), ("dtype", *_LAYERS)),
    _Quoted(_RANK, ("whole_cache", "1 / tp"), ("copies",)),
    _Quoted(_WEIGHTS, ("weights", "active_parameters / parameters"), ("experts",)),
)
"""Every formula that is known to be quoted. They are tried on every model."""


def often_quoted(plan: Plan, opened: Occupancy) -> tuple[QuotedFormula, ...]:
    """The formulas that give something else for this model, each result once."""
    symbols, parallel, size = _symbols(plan, opened), opened.setup.parallel, plan.memory.weights.bytes
    actual = {_CACHE: _by_the_formulas(opened)}
    if parallel.tp > 1 and parallel.gpus == parallel.tp and parallel.dcp == 1:
        actual[_RANK] = _by_the_formulas(opened, parallel.tp)
    if size is not None:
        actual[_WEIGHTS] = size
    facts = dict((*_of_attention(symbols), *_of_layers(opened, symbols), *_of_the_rest(opened, symbols)))
    out: dict[tuple[str, int], QuotedFormula] = {}
    for one in QUOTED:
        values = [_value(factor, symbols) for factor in one.factors]
        known = [value for value in values if value is not None]
        right = actual.get(one.subject)
        if len(known) < len(values) or right is None:
            continue
        result = int(prod(known))
        ignored = tuple(facts[key] for key in one.ignores if key in facts)
        if result == right or not ignored or (one.subject, result) in out:
            continue
        factors = [factor for factor in one.factors if factor != "batch" or symbols["batch"] > 1]
        out[one.subject, result] = QuotedFormula(
            subject=one.subject,
            formula=_product(factors),
            numbers=_product([numbers_in(factor, symbols) for factor in factors]),
            result=result,
            actual=right,
            ignores=ignored,
        )
    return tuple(out.values())


def _product(factors: list[str]) -> str:
    """``whole_cache / tp`` for a product with 1 / tp."""
    text = " x ".join(factors)
    return shown(text.replace(" x 1 / ", " / "))


def _value(factor: str, symbols: Mapping[str, int | float]) -> Fraction | None:
    """A symbol or a number; a sum, a quotient or the smaller of two."""
    inner = factor.removeprefix("min").strip("()")
    sign = next((sign for sign in (" + ", " / ", ", ") if sign in inner), None)
    numbers: list[Fraction] = []
    for term in inner.split(sign) if sign else [inner]:
        if not term.isdigit() and term not in symbols:
            return None
        numbers.append(Fraction(int(term) if term.isdigit() else symbols[term]))
    if sign == ", ":
        return min(numbers)
    if sign == " / ":
        return numbers[0] / numbers[1] if numbers[1] else None
    return sum(numbers, Fraction(0))


def _symbols(plan: Plan, opened: Occupancy) -> dict[str, int | float]:
    """The model's numbers by the names of the formulas, as a reader of its config would put them in: those of most of its layers."""
    groups, roles = opened.stack.groups, opened.dtypes.roles
    out: dict[str, int | float] = {"layers": len(opened.stack), "seq": opened.tokens, "batch": opened.batch}
    # A config's head_dim is that of its attention, though more layers may keep states of heads.
    for group in sorted(groups, key=lambda one: ("num_key_value_heads" not in one.kind.dims(), -one.count)):
        if group.kind.name == "cross_attention":
            continue
        out = group.kind.dims() | out if "num_attention_heads" in group.kind.dims() or "d_state" in group.kind.dims() else out
    if opened.model.hidden_size:
        out["hidden_size"] = opened.model.hidden_size
    key = roles.get(Role.KEY) or roles[Role.LATENT]
    out["element_bytes"] = Fraction(key.block_bytes, key.block_elements).__float__()
    state = roles.get(Role.STATE)
    if state is not None:
        out["state_bytes"] = state.block_bytes // state.block_elements
    out["state_layers"] = sum(group.count for group in groups if "d_state" in group.kind.dims())
    out |= {"tp": plan.request.tp, "whole_cache": _by_the_formulas(opened)}
    counts, size = plan.model.parameters, plan.memory.weights.bytes
    if counts.total and counts.active and size is not None:
        out |= {"weights": size, "active_parameters": counts.active, "parameters": counts.total}
    return out


def _by_the_formulas(opened: Occupancy, tp: int = 1) -> int:
    """The cache without what an engine adds, of all GPUs or of the fullest of ``tp``."""
    roles, total = opened.dtypes.roles, 0
    for group in opened.stack.groups:
        for tensor in group.kind.shard(tp).tensors():
            total += group.count * tensor.bytes(roles[tensor.role], opened.tokens, opened.encoder_tokens)
    return opened.batch * total


def _of_attention(symbols: Mapping[str, int | float]) -> Iterator[tuple[str, str]]:
    heads, kv_heads = symbols.get("num_attention_heads"), symbols.get("num_key_value_heads")
    head_dim, hidden, rank = symbols.get("head_dim"), symbols.get("hidden_size"), symbols.get("kv_lora_rank")
    if heads and kv_heads and kv_heads < heads:
        serve = "head serves" if kv_heads == 1 else "heads serve"
        yield "grouped", f"{kv_heads:,} key/value {serve} {heads:,} query heads"
    if heads and head_dim and hidden and head_dim * heads != hidden:
        yield "own head_dim", f"head_dim is {head_dim:,} in the config, not {hidden:,} / {heads:,} = {hidden / heads:,.6g}"
    if rank and heads:
        rope = symbols.get("qk_rope_head_dim", 0)
        yield "latent", f"one latent of {rank:,} + {rope:,} numbers stands for the keys and values of all {heads:,} heads"
        yield "a latent each", f"each of the {symbols['layers']:,} layers keeps a latent of its own"
        yield "one latent", "the latent is key and value at once"
        if rope:
            yield "rotary key", f"a rotary key of {rope:,} numbers lies beside every latent"


def _of_layers(opened: Occupancy, symbols: Mapping[str, int | float]) -> Iterator[tuple[str, str]]:
    """Code and words of each reason, in the layers, why the often quoted formula is off."""
    layers, tokens, encoder = symbols["layers"], opened.tokens, opened.encoder_tokens
    short: Counter[int] = Counter()
    states = without = shared = full = cross = 0
    indexers = [group for group in opened.stack.groups if group.kind.name == "sparse_indexer"]
    for group in opened.stack.groups:
        spans = {tensor.span for tensor in group.kind.tensors()}
        if group.kind.name == "shared_cache":
            shared += group.count
        elif group.kind.name == "cross_attention":
            cross += group.count
        elif not spans:
            without += group.count
        elif any(isinstance(span, Once) for span in spans) or not (
            "num_attention_heads" in group.kind.dims() or group.kind.name == "sparse_indexer"
        ):
            states += group.count
        elif any(isinstance(span, Full) for span in spans):
            full += group.count
        else:
            kept = max(span.positions(tokens, encoder) for span in spans)
            if kept < tokens:
                short[kept] += group.count
    if short:
        named = [f"{count:,} of {layers:,} layers keep only {kept:,} of {tokens:,} tokens" for kept, count in short.items()]
        yield "window", " and ".join(named)
    if shared:
        yield "shared", f"{shared:,} of {layers:,} layers read the cache of another layer and keep none"
    if states:
        yield "states", f"{states:,} of {layers:,} layers keep a state that does not grow with the sequence"
    if without:
        yield "without", f"{without:,} of {layers:,} layers keep nothing"
    for group in indexers:
        numbers = group.kind.dims()["index_head_dim"]
        yield "indexer", f"an indexer keeps a key of {numbers:,} numbers for every token in {group.count:,} layers"
    if cross:
        yield "cross", f"cross attention keeps {encoder:,} encoder tokens in {cross:,} layers"
    if full and short:
        yield "full", f"{full:,} of {layers:,} layers keep every token"
    if full and states:
        yield "attention beside", f"{full:,} of {layers:,} layers are attention, which keeps every token"


def _of_the_rest(opened: Occupancy, symbols: Mapping[str, int | float]) -> Iterator[tuple[str, str]]:
    roles, tp = opened.dtypes.roles, opened.setup.parallel.tp
    key = roles.get(Role.KEY) or roles[Role.LATENT]
    if symbols["element_bytes"] != 4:
        yield "dtype", f"a number of this cache takes {symbols['element_bytes']:g} bytes ({key.name}), not the 4 of fp32"
    kind = next((group.kind for group in opened.stack.groups if "d_state" in group.kind.dims()), None)
    if kind is not None:
        dims = kind.dims()
        channels = dims.get("d_inner") or dims["num_heads"] * dims["head_dim"]
        yield "channels", f"each of {channels:,} channels keeps {dims['d_state']:,} numbers"
        yield "convolution", f"the convolution keeps its last {dims['d_conv'] - 1:,} inputs"
    if tp > 1:
        kept = " and ".join(filter(None, dict.fromkeys(_copied(group, tp) for group in opened.stack.groups)))
        if kept:
            yield "copies", kept
    total, active = symbols.get("parameters"), symbols.get("active_parameters")
    if total and active and active < total:
        others = "but all experts must be in memory, as the next token uses others"
        yield "experts", f"a token uses {active:,} of {total:,} parameters, {others}"


def _copied(group: Group, tp: int) -> str:
    """The part of a layer that ``tp`` does not divide; empty if none."""
    dims = group.kind.dims()
    if "kv_lora_rank" in dims or group.kind.name in ("sparse_indexer", "compressed_attention"):
        return f"every GPU keeps all that {KINDS[group.kind.name].title} caches, as it belongs to no head"
    heads = dims.get("num_key_value_heads", tp)
    shares = f"{heads:,} key/value heads on {tp:,} GPUs: a head is never cut, so GPUs keep copies or unequal shares"
    return shares if heads % tp else ""
