"""Bytes and operations of a decode step and of a prompt on one rank: the part of the roofline that is the same on every accelerator.

The weights of a model are sorted by format and use: which of them a token reads, and at which rates it may multiply with them.
:mod:`hwcalc.planner.speed` has the rules, and turns this work into the bound on an accelerator.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from hwcalc.engines import DEFAULT, find_engine
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.models import follows_output
from hwcalc.engines.setup import ALONE, Parallel
from hwcalc.formulas import LatentAttention, Role, Stack
from hwcalc.formulas.arithmetic import larger, smaller
from hwcalc.formulas.flops import decode_flops, decode_terms, prefill_flops, prefill_terms, selected_tokens
from hwcalc.formulas.record import Record
from hwcalc.formulas.stairs import stairs_at
from hwcalc.formulas.tensor import Once, Span
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole
from hwcalc.model import ModelSpec
from hwcalc.quantization.planned import format_name

if TYPE_CHECKING:
    from hwcalc.formulas import DType, LayerKind
    from hwcalc.formulas.stairs import Stair
    from hwcalc.profiles.hardware_file import Gpu

HALF_SUMS: Final = "fp16_sums"
"""The rate of 16-bit numbers whose products are added up in 16 bits."""
SIXTEEN: Final = ("bf16", "fp16", HALF_SUMS, "fp32")
RATES: Final[Mapping[str, tuple[str, ...]]] = {
    "fp32": ("tf32", "fp32"),
    "bf16": SIXTEEN,
    "fp16": SIXTEEN,
    **dict.fromkeys(("fp8", "fp8_channel", "fp8_block", "mxfp8"), ("fp8", *SIXTEEN)),
    # llama.cpp multiplies 4-bit floats by 8-bit integers where the accelerator has no units for them.
    **dict.fromkeys(("mxfp4", "nvfp4"), ("fp4", "fp8", "int8", *SIXTEEN)),
    **dict.fromkeys(("int8", "bnb8"), ("int8", *SIXTEEN)),
    # Weight-only formats are unpacked to 16 bits before the multiplication.
    **dict.fromkeys(("int4", "gptq", "awq", "bnb4", "bnb4_double", "ternary"), SIXTEEN),
}
"""Weight format -> the peak rates at which it may be multiplied. The fastest one of the accelerator counts. Formats of GGUF files are not
here: their matrices are multiplied as 8-bit integers, or as any float."""
ANY_RATE: Final = ("int8", "fp8", *SIXTEEN)


def fastest(gpu: Gpu, rates: Sequence[str]) -> tuple[str, float] | None:
    """The fastest of these rates that is known, by name, in operations per second.

    If only the rate of 32 bits is known of them, the result is ``None``: units for fewer bits may be faster.
    """
    # Kept with the accelerator: every plan asks for a few rates, and for each of them several times.
    kept: dict[Sequence[str], tuple[str, float] | None] = vars(gpu).setdefault("_fastest", {})
    if rates not in kept:
        peaks = ((name, _peak(gpu, name)) for name in rates)
        known = {name: rate * 1e12 for name, rate in peaks if rate is not None}
        unsure = not known or (list(known) == ["fp32"] and "tf32" not in rates)
        kept[rates] = None if unsure else max(known.items(), key=lambda one: one[1])
    return kept[rates]


def _peak(gpu: Gpu, name: str) -> float | None:
    rates = gpu.tflops_dense
    if name != HALF_SUMS:
        return rates.get(name)
    integers, floats, single = (rates.get(key) for key in ("int8", "fp16", "fp32"))
    if gpu.vendor != "nvidia" or integers is None or floats is None or single is None:
        return None
    # Without tensor cores there is no such rate; where sums cost nothing it is that of fp16, but for the rounding of a data sheet.
    return integers / 2 if single < floats < integers / 3 else None


class Passes(Record):
    """The layers that a decode step computes on, with the tokens that it reads, and those of a prompt of ``prompt_tokens`` tokens.

    A step also reads ``beside_bytes`` for each sequence on one rank, which are not cache: the keys of pages.
    """

    decode: Stack
    prompt: Stack
    prompt_tokens: int
    beside_bytes: int = 0


def passes_of(opened: Occupancy) -> Passes | None:
    """The layers of a decode step and of a prompt; ``None`` if both are the layers of the model at the length of the sequence."""
    evicted, plain, expands = opened.evicted, opened.deployment.plain_stack, opened.deployment.traits.expands_latents

    def as_stored(stack: Stack) -> Stack:
        """The layers as the engine stores them: latents as keys and values of every head, if the engine expands them."""
        if not expands:
            return stack
        layers = (tuple(kind.expanded() if isinstance(kind, LatentAttention) else kind for kind in layer) for layer in stack)
        return Stack(tuple(layers))

    if evicted is None:
        prompt = opened.tokens if opened.load.prompt is None else opened.load.prompt_tokens
        if prompt == opened.tokens and not expands:
            return None
        stored = as_stored(plain)
        return Passes(decode=stored, prompt=stored, prompt_tokens=prompt)
    from hwcalc.engines.policies import page_keys_bytes

    return Passes(
        decode=as_stored(evicted.stack if evicted.read is evicted.most else evicted.holding(evicted.read).stack),
        prompt=as_stored(plain),
        prompt_tokens=opened.load.prompt_tokens,
        beside_bytes=page_keys_bytes(opened),
    )


ALIKE: Final = 0.5
"""Tokens of one step choose experts as if so few were drawn at random: t to this power. With 2/3, steps of 1 to 32 sequences that were
measured reach the same share of the bandwidth (llama.cpp, benches/dgx-spark, gpt-oss and Qwen3-Coder)."""


class Use(enum.StrEnum):
    """Which tokens use a weight."""

    ALWAYS = "always"
    """Every token."""
    CHOSEN = "chosen"
    """Tokens that are routed to it: an expert."""
    ROW = "row"
    """Each token looks up one row: an embedding. There is no multiplication."""
    LAST = "last"
    """Tokens whose next token is predicted: all tokens of a decode step, the last token of a prompt. The output head."""
    ENCODER = "encoder"
    """Tokens of the encoder, before the first decode step."""


class WeightShare(Record):
    """The weights of one format and use: parameters and bytes of all copies and layers together.

    A token uses ``active`` of ``copies``: of the experts of a layer, or of the rows of a table.
    """

    format: str
    use: Use
    parameters: int
    bytes: int
    copies: int = 1
    active: int = 1

    def touched_bytes(self, tokens: float, power: float = ALIKE) -> float:
        """Bytes that ``tokens`` tokens of one step read, if they choose experts as ``tokens`` to this power would; of an array an array."""
        if self.use is Use.CHOSEN:
            share: float = self.bytes * expected_share(self.copies, self.active, larger(tokens, 1.0) ** power)
            return share
        if self.use is Use.ROW:
            rows: float = self.bytes * smaller(tokens / self.copies, 1.0)
            return rows
        return float(self.bytes)

    @property
    def flops_per_token(self) -> int:
        """Operations per token that uses the weights."""
        return 0 if self.use is Use.ROW else 2 * self.parameters * self.active // self.copies


def expected_share(copies: int, active: int, tokens: float) -> float:
    """The expected share of ``copies`` experts that ``tokens`` tokens use, if each token uses ``active`` of them at random.

    >>> expected_share(4, 1, 1), expected_share(4, 1, 2), expected_share(4, 4, 1)
    (0.25, 0.4375, 1.0)

    Two tokens both miss an expert with probability (3/4)^2, so the share is 1 - 9/16 = 7/16.
    """
    unused: float = (1 - active / copies) ** tokens
    return 1 - unused


_CROSS: Final = ("cross", "encoder_attn", "encdecattention")
_FROM_ENCODER: Final = frozenset({"k_proj", "v_proj", "k", "v", "key", "value", "kv_proj", "c_attn"})


def weight_shares(model: ModelSpec, weights: str | None = None, dtype: str | None = None) -> tuple[WeightShare, ...] | None:
    """The weights of a model by format and use; ``None`` if they are not counted or their format is unknown.

    ``dtype`` is the dtype of weights that are not quantised. Multi-token prediction and the towers for images and sound are left out,
    since a decode step does not use them.
    """
    from hwcalc.formulas.formats import BF16, FLOATS
    from hwcalc.quantization.planned import planned_scheme

    if model.counted is None:
        return None
    requested = format_name(weights)
    scheme, known = planned_scheme(model, requested)
    if not known:
        return None
    unquantized = FLOATS.get(requested or "") or FLOATS.get(dtype or model.dtype or "", BF16)
    totals: dict[tuple[str, Use, int, int], list[int]] = {}
    for block, weight, use in _used_weights(model, model.counted.blocks):
        copies, active = 1, 1
        if use is Use.ROW:
            copies = weight.shape[0]
        elif use is Use.CHOSEN and weight.active is not None:
            copies, active = weight.copies, weight.active
        if scheme is None:
            portions = [(unquantized.name, block.count * weight.elements, block.count * unquantized.bytes(weight))]
        else:
            portions = [(one.format.name, one.elements, one.bytes) for one in scheme.portions(block, weight, unquantized)]
        for name, elements, size in portions:
            if elements:
                sums = totals.setdefault((name, use, copies, active), [0, 0])
                sums[0] += elements
                sums[1] += size
    return tuple(
        WeightShare(format=name, use=use, copies=copies, active=active, parameters=parameters, bytes=size)
        for (name, use, copies, active), (parameters, size) in totals.items()
    )


def _used_weights(model: ModelSpec, blocks: Iterable[Block]) -> Iterable[tuple[Block, Weight, Use]]:
    """Every weight that a forward pass on text uses, with its use."""
    table: tuple[Block, Weight] | None = None
    has_head = False
    for block in blocks:
        if block.part not in (Part.LANGUAGE, Part.ENCODER):
            continue
        for weight in block.weights:
            use = _use_of(block, weight)
            if weight.role is WeightRole.HEAD and len(weight.shape) > 1:
                has_head = True
            is_vocabulary = use is Use.ROW and "per_layer" not in weight.path and weight.shape[0] == model.vocab_size
            if is_vocabulary and table is None and block.part is Part.LANGUAGE:
                table = block, weight
            yield block, weight, use
    # A tied model multiplies with its embedding. A class whose name ends in "Model" has no head at all.
    if table is not None and not has_head and not (model.architecture or "").endswith("Model"):
        yield *table, Use.LAST


def _use_of(block: Block, weight: Weight) -> Use:
    if weight.role is WeightRole.EMBEDDING and len(weight.shape) > 1:
        return Use.ROW
    if block.part is Part.ENCODER:
        return Use.ENCODER
    if weight.active is not None and weight.active < weight.copies:
        return Use.CHOSEN
    if weight.role is WeightRole.HEAD:
        return Use.LAST
    where = f"{block.kind} {weight.path}".lower()
    module = weight.path.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
    return Use.ENCODER if module in _FROM_ENCODER and any(name in where for name in _CROSS) else Use.ALWAYS


Flops = dict[tuple[str, ...], float]
"""Operations, by the names of the peak rates at which they may run."""


class Workload(Record):
    """What is asked of a model: ``batch`` sequences of ``seq`` tokens, divided evenly over the replicas.

    ``roles`` are the formats of the cache (``opened.dtypes.roles``). ``weights`` is the name of a weight format, or ``None`` for the
    published one. ``dtype`` is the dtype of weights that are not quantised, by default the model's. With ``encoder_follows`` the output
    of an encoder is as long as a sequence, at every length. The experts of a layer are divided over ``parallel.expert_ranks``.
    ``passes`` are the layers that a step and a prompt compute on, where they are not those of the model.
    """

    seq: int
    batch: int
    roles: Mapping[Role, DType]
    engine: str = DEFAULT
    encoder_tokens: int = 0
    encoder_follows: bool = False
    weights: str | None = None
    dtype: str | None = None
    parallel: Parallel = ALONE
    passes: Passes | None = None

    @property
    def encoder_rule(self) -> int | None:
        """Tokens of the encoder's output at every length, as :meth:`~hwcalc.formulas.tensor.Span.stairs` takes them."""
        return None if self.encoder_follows else self.encoder_tokens


class Work(Struct, frozen=True):
    """What a decode step and a prompt of one request take, whatever the accelerator.

    ``stack`` and ``caches`` are the layers that a step computes on, and what it reads of them for one sequence.
    """

    decode: Pass
    prompt: Pass
    stack: Stack
    caches: _Caches


def work_of(model: ModelSpec, load: Workload, counted: tuple[WeightShare, ...] | None) -> Work | None:
    """The bytes and operations of a decode step and of a prompt; ``None`` if the model's weights are not counted.

    It is the part of :func:`~hwcalc.planner.speed.speed_bound` that is the same on every accelerator.
    """
    weights, dtype, parallel, passes = load.weights, load.dtype, load.parallel, load.passes
    counted = counted or model.once(("weight shares", weights, dtype), lambda: weight_shares(model, weights, dtype))
    if counted is None:
        return None
    stack = model.stack_for(load.engine)
    kinds = model.once(("rank kinds", load.engine, parallel.tp), lambda: _rank_kinds(stack, parallel.tp))
    caches = prefill = _Caches(kinds, load.roles, load.seq, load.encoder_tokens, selected_tokens(stack))
    if passes is not None:
        stack = passes.decode
        kinds, selected = _rank_kinds(stack, parallel.tp), selected_tokens(stack)
        caches = _Caches(kinds, load.roles, load.seq, load.encoder_tokens, selected, passes.beside_bytes)
        kinds = _rank_kinds(passes.prompt, parallel.tp)
        prefill = _Caches(kinds, load.roles, passes.prompt_tokens, load.encoder_tokens, selected)
    in_32_bits = find_engine(load.engine)[0].facts.sums_in_32_bits
    passed = {Use.LAST: 1, Use.ENCODER: prefill.encoder_tokens}
    shares = [(share, passed.get(share.use, prefill.seq)) for share in counted]
    read, flops = _rank_work(shares, prefill, parallel, prefill.flops(prefill_flops), in_32_bits=in_32_bits)
    prompt = Pass(weights_read=read, sequences=1, cache_bytes_each=0, flops=flops)
    return Work(_decode_step(counted, caches, load.batch, parallel, in_32_bits=in_32_bits), prompt, stack, caches)


def workload_of(opened: Occupancy) -> Workload:
    """The work that an occupancy asks of its model."""
    return Workload(
        seq=opened.tokens,
        batch=opened.batch,
        roles=opened.dtypes.roles,
        engine=opened.engine.name,
        encoder_tokens=opened.encoder_tokens,
        encoder_follows=follows_output(opened.model, opened.load),
        weights=format_name(opened.setup.weights),
        # An engine that runs in 16 bits reads weights of 16 bits, whatever the dtype of the checkpoint.
        dtype=opened.deployment.weight_dtype(),
        parallel=opened.deployment.parallel,
        passes=passes_of(opened),
    )


class CacheReads(Struct, frozen=True):
    """What a decode step reads of the caches of one kind of layer.

    ``times`` maps how often an entry is read to the bytes of such entries in a layer.
    """

    kind: str
    layers: int
    times: Mapping[int, int]

    @property
    def bytes(self) -> int:
        """The bytes that a step reads in all layers of the kind."""
        return self.layers * sum(times * size for times, size in self.times.items())


class _Caches(Struct, frozen=True):
    """The caches of one sequence on one rank. ``selected`` is how many tokens sparse attention reads."""

    kinds: tuple[tuple[int, LayerKind], ...]
    roles: Mapping[Role, DType]
    seq: int
    encoder_tokens: int
    selected: int | None
    beside_bytes: int = 0

    @property
    def reads(self) -> tuple[CacheReads, ...]:
        """The bytes that one decode step reads and writes, for each kind of layer."""
        out = []
        for count, kind in self.kinds:
            # The bytes of the entries of one layer's cache, by how often a step reads or writes them.
            sizes: dict[int, int] = {}
            limit = kind.dims().get("index_topk") if kind.name == "compressed_attention" else self.selected
            for tensor in kind.tensors():
                positions = tensor.span.positions(self.seq, self.encoder_tokens)
                if limit is not None and tensor.role in (Role.LATENT, Role.ROPE):
                    positions = min(positions, limit)
                times = positions * (2 if tensor.role is Role.STATE and isinstance(tensor.span, Once) else 1)
                sizes[times] = sizes.get(times, 0) + tensor.bytes_per_position(self.roles[tensor.role])
            if sizes:
                out.append(CacheReads(kind.name, count, sizes))
        if self.beside_bytes:
            out.append(CacheReads("page_keys", 1, {1: self.beside_bytes}))
        return tuple(out)

    def flops(self, of_kind: Callable[..., int]) -> int:
        """The number of operations of all layers. ``of_kind`` returns those of one layer."""
        return sum(
            count * of_kind(kind, self.seq if kind.kept is None else kind.kept, self.encoder_tokens, selected=self.selected)
            for count, kind in self.kinds
        )


class Pass(Struct, frozen=True):
    """The bytes that one rank reads in a pass, and the operations that it computes."""

    weights_read: tuple[tuple[Use, float], ...]
    sequences: float
    cache_bytes_each: float
    flops: Flops
    cache_reads: tuple[CacheReads, ...] = ()

    @property
    def weight_bytes(self) -> float:
        """Bytes of weights of all uses."""
        return sum(size for _, size in self.weights_read)

    @property
    def cache_bytes(self) -> float:
        """Bytes of cache of all sequences."""
        return self.sequences * self.cache_bytes_each

    def seconds(self, gpu: Gpu, bandwidth: float | None) -> tuple[float | None, str | None]:
        """The longer of the times for reading and for computing, in seconds, and its name; ``None`` if unknown.

        Unknown times are left out; the rest is still a bound.
        """
        reading = None if bandwidth is None else (self.weight_bytes + self.cache_bytes) / bandwidth
        rates = {names: fastest(gpu, names) for names in self.flops}
        known = [self.flops[names] / rate[1] for names, rate in rates.items() if rate is not None]
        computing = sum(known) if known else None
        if reading is None and computing is None:
            return None, None
        if computing is None or (reading is not None and reading >= computing):
            return reading, "memory bandwidth"
        return computing, "compute"


def _decode_step(shares: Iterable[WeightShare], caches: _Caches, batch: int, parallel: Parallel, *, in_32_bits: bool) -> Pass:
    replicas = min(parallel.dp, batch)
    each = max(1.0, batch / replicas / parallel.pp)
    routed = each * (replicas if parallel.expert_ranks > parallel.tp else 1)
    used = [(share, routed if share.use is Use.CHOSEN else each) for share in shares if share.use is not Use.ENCODER]
    read, flops = _rank_work(used, caches, parallel, each * caches.flops(decode_flops), in_32_bits=in_32_bits)
    reads = caches.reads
    cache_bytes = sum(read.bytes for read in reads) / parallel.dcp
    return Pass(weights_read=read, sequences=each, cache_bytes_each=cache_bytes, flops=flops, cache_reads=reads)


def _rank_work(
    shares: Iterable[tuple[WeightShare, float]], caches: _Caches, parallel: Parallel, attention: float, *, in_32_bits: bool
) -> tuple[tuple[tuple[Use, float], ...], Flops]:
    """The bytes of weights that a rank reads, by their use, for so many tokens of each share, and its operations with those of attention.

    Kernels that add up products ``in_32_bits`` never reach the rate of 16-bit sums. llama.cpp tells cuBLAS to add in 16 bits
    (ggml-cuda.cu).
    """
    read, operations = [], list[tuple[tuple[str, ...], float]]()
    for share, tokens in shares:
        ranks = parallel.expert_ranks if share.use is Use.CHOSEN else parallel.tp
        read.append((share.use, share.touched_bytes(tokens) / ranks))
        operations.append((RATES.get(share.format, ANY_RATE), tokens * share.flops_per_token / ranks))
    operations.append((_attention_rates(caches.roles), attention))
    flops: Flops = {}
    for names, count in operations:
        flops[names] = flops.get(names, 0) + count
    if not in_32_bits:
        return tuple(read), flops
    reached: Flops = {}
    for names, count in flops.items():
        reached[_reached(names)] = reached.get(_reached(names), 0) + count
    return tuple(read), reached


class Growing(Struct, frozen=True):
    """``each`` for every position: at most ``most`` of those that the stairs count."""

    each: int
    most: int | None
    stairs: tuple[Stair, ...]

    def at(self, tokens: int) -> int:
        """The sum at a length of the sequence; of an array of lengths an array."""
        positions = stairs_at(self.stairs, tokens)
        at_most: int = positions if self.most is None else smaller(positions, self.most)
        return self.each * at_most


class DecodeForm(Struct, frozen=True):
    """The work of a decode step at every length and number of sequences: what a page evaluates.

    ``shares`` are the weights of all ranks, with the names of the rates at which they may be multiplied; ``cache`` are the bytes that a rank
    reads for one sequence, and ``attention`` its operations, at the rates ``attention_rates``.
    """

    shares: tuple[tuple[WeightShare, tuple[str, ...]], ...]
    cache: tuple[Growing, ...]
    attention: tuple[Growing, ...]
    attention_rates: tuple[str, ...]


def decode_form(model: ModelSpec, load: Workload, counted: tuple[WeightShare, ...] | None) -> DecodeForm | None:
    """The decode step of :func:`work_of` as a form; ``None`` if the model's weights are not counted."""
    weights, dtype = load.weights, load.dtype
    counted = counted or model.once(("weight shares", weights, dtype), lambda: weight_shares(model, weights, dtype))
    if counted is None:
        return None
    return form_of(model.stack_for(load.engine) if load.passes is None else load.passes.decode, load, counted)


def form_of(stack: Stack, load: Workload, counted: Iterable[WeightShare]) -> DecodeForm:
    """The decode step on these layers as a form."""
    selected = selected_tokens(stack)
    attention: list[Growing] = []
    for count, kind in _rank_kinds(stack, load.parallel.tp):
        for span, most, each in decode_terms(kind, selected):
            attention.append(Growing(count * each, most, span.stairs(load.encoder_rule)))
    reached = _reached if find_engine(load.engine)[0].facts.sums_in_32_bits else tuple
    shares = tuple((share, reached(RATES.get(share.format, ANY_RATE))) for share in counted if share.use is not Use.ENCODER)
    return DecodeForm(shares, cache_form(stack, load), tuple(attention), reached(_attention_rates(load.roles)))


def cache_form(stack: Stack, load: Workload) -> tuple[Growing, ...]:
    """The bytes that a rank reads of the caches of these layers for one sequence, at every length."""
    selected, cache = selected_tokens(stack), list[Growing]()
    for count, kind in _rank_kinds(stack, load.parallel.tp):
        limit = kind.dims().get("index_topk") if kind.name == "compressed_attention" else selected
        for tensor in kind.tensors():
            most = limit if tensor.role in (Role.LATENT, Role.ROPE) else None
            written = 2 if tensor.role is Role.STATE and isinstance(tensor.span, Once) else 1
            each = count * written * tensor.bytes_per_position(load.roles[tensor.role])
            cache.append(Growing(each, most, tensor.span.stairs(load.encoder_rule)))
    return tuple(cache)


PromptTerm = tuple[int, Span, int | None]
"""Operations for each position that a token looks at, in all layers; the positions; and of these at most how many."""


def prompt_terms(model: ModelSpec, load: Workload) -> tuple[PromptTerm, ...]:
    """The attention of a prompt on one rank, at every length."""
    stack = model.stack_for(load.engine) if load.passes is None else load.passes.prompt
    selected = selected_tokens(stack)
    return tuple(
        (count * each, span, most)
        for count, kind in _rank_kinds(stack, load.parallel.tp)
        for span, most, each in prefill_terms(kind, selected)
    )


def _reached(names: tuple[str, ...]) -> tuple[str, ...]:
    """The rates that kernels which add up products in 32 bits can reach."""
    return tuple(name for name in names if name != HALF_SUMS)


def _attention_rates(roles: Mapping[Role, DType]) -> tuple[str, ...]:
    """Attention has 16 bits, or 8 if its keys have 8, which are up to 8.5 with scales. A packed layout has no keys beside its latents."""
    keys = roles.get(Role.KEY) or roles[Role.LATENT]
    return ("fp8", "int8", *SIXTEEN) if keys.bits_per_element < 9 else SIXTEEN


def cache_bytes_read(stack: Stack, roles: Mapping[Role, DType], *, seq: int, encoder_tokens: int = 0) -> int:
    """Bytes of cache that are read for one sequence in a decode step on one rank. States count twice, as they are also written.

    The bytes are those of the formulas. The padding of an engine's blocks and pages takes memory, but is not read.
    """
    return sum(read.bytes for read in _Caches(_rank_kinds(stack, 1), roles, seq, encoder_tokens, selected_tokens(stack)).reads)


def _rank_kinds(stack: Stack, tp: int) -> tuple[tuple[int, LayerKind], ...]:
    return tuple((group.count, group.kind.shard(tp)) for group in stack.groups)


def layer_bytes(stack: Stack, caches: _Caches) -> tuple[int, ...]:
    """The bytes that a step reads of each layer's cache for one sequence, where no layer is divided."""
    kinds = {kind for layer in stack.layers for kind in layer}
    sizes = {kind: sum(read.bytes for read in replace(caches, kinds=((1, kind),), beside_bytes=0).reads) for kind in kinds}
    return tuple(sum(sizes[kind] for kind in layer) for layer in stack.layers)
