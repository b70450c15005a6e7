"""mlx-lm: what it makes of a model and of its options, what its caches hold, and the command line that runs a plan.

Each layer has a cache of its own, which grows; there is no pool. Memory is needed besides the cache of the planned moment: while a prompt is
read, while a layer grows, and for earlier requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.engines.devices import Cost, Saving
from hwcalc.engines.engine import BY_MODEL
from hwcalc.engines.facts import Command, Facts, IdleRules, RequestRules, Rest, Told, WeightFormats
from hwcalc.engines.forms import Amount, Asked, Constant, Fullest, Moment, Product
from hwcalc.engines.general import GeneralDeployment, GeneralEngine, GeneralOccupancy
from hwcalc.engines.general_form import growing
from hwcalc.engines.memory import BudgetPart, Section
from hwcalc.engines.mlx.layers import (
    MLX,
    RULES,
    Bits,
    Grown,
    Pieces,
    as_read,
    file_of,
    keeps_windows,
    other_windows,
    quantized_at,
)
from hwcalc.engines.models import ModelClass, known_dtype, model_dtype
from hwcalc.engines.options import Choices, CommandInput, check_one_replica, integer_option, is_auto, options_of
from hwcalc.engines.steps import Step, figure
from hwcalc.engines.stored import Dtypes, StoredTensor, Support
from hwcalc.engines.subjects import AdapterRules, Traits
from hwcalc.errors import UnknownNameError, UnsupportedError, UsageError
from hwcalc.formulas import ChunkedAttention, LatentAttention, LayerKind, Role, SlidingAttention
from hwcalc.formulas.attention import AttentionKind
from hwcalc.model import Definition, ModelSpec, Note, Noted
from hwcalc.profiles.engine_flags import engine_flags
from hwcalc.profiles.engines import published_copy
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.forms import Curve
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.engines.setup import Request

GROUPS: Final = (32, 64, 128)
BITS_OF_DTYPE: Final = {"int4": 4, "int8": 8}
"""Values of ``--dtype`` that stand for ``kv_bits``."""
_PREFILL_STEP: Final = 2048
_DECODE_CONCURRENCY: Final = 32
_FLOATS: Final = ("bf16", "fp16", "fp32")


class MlxAdapters(AdapterRules):
    """The adapter of ``--adapter-path``, of which a model has at most one. Source: mlx-lm 0.32.2, server.py (``ModelProvider``)."""

    alone = "mlx_lm.server loads the one of --adapter-path with its model."


class MlxDeployment(GeneralDeployment):
    """A model on mlx-lm."""

    adapter_class = MlxAdapters

    traits = Traits(pads=True)
    """A ``BatchKVCache`` pads shorter sequences on the left."""

    @cached_property
    def file(self) -> ModelClass:
        """The model file that runs the model."""
        return file_of(self.model)

    def number(self, name: str, default: int) -> int:
        """The value of a whole-number option."""
        return int(integer_option(0)(name, self.setup.options.get(name, str(default))))

    @property
    def prefill_step(self) -> int:
        """Tokens of a prompt that are read at once: ``prefill_step_size``."""
        return self.number("prefill_step_size", _PREFILL_STEP)

    @cached_property
    def bits(self) -> Bits | None:
        """The bits to which the cache is quantized, by ``kv_bits`` or by ``--dtype int8``; ``None`` if it never is."""
        options, spelled = self.setup.options, (self.setup.dtype or "").strip().lower()
        by_dtype = None if is_auto(self.setup.dtype) else BITS_OF_DTYPE.get(spelled)
        if by_dtype is not None and "kv_bits" in options:
            raise UsageError(
                f"--dtype {spelled} and kv_bits={brief(options['kv_bits'], 8)} both say the bits.", hint="Leave out one."
            )
        if by_dtype is None and "kv_bits" not in options:
            for name in ("kv_group_size", "quantized_kv_start"):
                if name in options:
                    raise UsageError(f"engine option {name} belongs to kv_bits.", hint="Add: --engine-option kv_bits=8")
            return None
        return Bits(
            bits=self.number("kv_bits", 8) if by_dtype is None else by_dtype,
            group=self.number("kv_group_size", 64),
            start=self.number("quantized_kv_start", 5000),
        )

    @cached_property
    def dtypes(self) -> Noted[Dtypes]:
        """The dtypes of the cache: that of the activations, which is that of the weights, or of the scales of quantised weights.

        The cache follows a dtype that ``--dtype`` names for the model.
        """
        dtype, notes = model_dtype(self.model, self.setup.dtype)
        spelled = (self.setup.dtype or "").strip().lower()
        if not is_auto(self.setup.dtype):
            notes = ()
            if spelled not in (*_FLOATS, *BITS_OF_DTYPE):
                raise UnknownNameError(
                    f"mlx-lm keeps its cache in the dtype that the model runs in, or in 2 to 8 bits, not in {brief(spelled, 40)}.",
                    option="dtype",
                    hint="Use --dtype auto, bf16, fp16, fp32, int8 or int4, or --engine-option kv_bits=2|3|4|5|6|8",
                )
            dtype = known_dtype(spelled) if spelled in _FLOATS else dtype
        states = dtype if "model_dtype_states" in self.file.words else known_dtype("fp32")
        roles = {**dict.fromkeys(Role, dtype), Role.STATE: states}
        kv = dtype.name if self.bits is None else f"int{self.bits.bits}"
        return Noted(Dtypes(kv=kv, roles=MappingProxyType(roles)), notes)

    def weight_rules(self) -> Rules:
        return MLX

    @property
    def kinds(self) -> set[type[LayerKind]]:
        """The kinds of layers that the model has."""
        return {type(group.kind) for group in self.plain_stack.groups}

    @cached_property
    def accepted(self) -> tuple[Note, ...]:
        """Notes on what has no effect. Raises an error for what mlx-lm does not run."""
        model, name = self.model, self.file.name
        if model.gguf is not None:
            raise UnsupportedError("mlx-lm loads safetensors, and not GGUF files.", hint="Use: --engine llamacpp")
        text = model.facts.part_types.get("text")
        if name == "mistral3" and text not in {None, "mistral4", "ministral3"} and self.kinds & {LatentAttention}:
            message = f"mistral3 of mlx-lm 0.32.2 runs text models of ministral3, mistral4 and llama, and not of {text}."
            raise UnsupportedError(message, hint="Use: --engine reference")
        pattern = other_windows(model)
        if pattern is not None:
            raise UnsupportedError(
                f"{name} of mlx-lm 0.32.2 reads sliding_window_pattern ({pattern}), by which other layers have a window than by this config.",
                hint="Set sliding_window_pattern in the config.",
            )
        self._check_layout()
        tensors = (tensor for group in self.plain_stack.groups for tensor in group.kind.tensors())
        if self.setup.draft is not None and any(tensor.role in {Role.CONV, Role.STATE} for tensor in tensors):
            raise UnsupportedError(
                "Speculative decoding requires a trimmable prompt cache (got {'ArraysCache'}), says mlx-lm of recurrent states.",
                hint="Leave out --draft.",
            )
        return tuple(self._notes_on_options())

    def _check_layout(self) -> None:
        sizes = self.setup.parallel
        for size, flag, what in ((sizes.dcp, "--dcp", "decode context parallelism"), (sizes.ep, "--ep", "expert parallelism")):
            if size > 1:
                raise UsageError(f"mlx-lm has no {what}.", hint=f"Leave out {flag}.")
        if sizes.tp > 1 and sizes.pp > 1:
            raise UnsupportedError("mlx-lm divides a model by heads or by layers, not by both.", hint="Use --tp or --pp alone.")
        if sizes.tp > 1 and "sharded" not in self.file.words:
            what = f"{self.file.name} of mlx-lm 0.32.2 cannot be divided by heads (it has no shard)."
            raise UnsupportedError(what, hint="Use: --tp 1")
        if sizes.pp > 1 and "pipelined" not in self.file.words:
            what = f"{self.file.name} of mlx-lm 0.32.2 cannot be divided by layers (it has no pipeline)."
            raise UnsupportedError(what, hint="Use: --pp 1")
        for group in self.plain_stack.groups:
            heads = group.kind.num_key_value_heads if isinstance(group.kind, AttentionKind) else sizes.tp
            if heads % sizes.tp:
                message = f"mlx-lm divides {heads:,} key/value heads evenly only, and not over {sizes.tp:,} machines."
                raise UsageError(message, hint="Use a --tp that divides them.")

    def _notes_on_options(self) -> Iterator[Note]:
        """Notes on ``kv_bits`` and ``max_kv_size``. Raises an error where the model file cannot do what they say.

        ``maybe_quantize_kv_cache`` turns every ``KVCache`` into a quantized one; what then reads it must know how.
        """
        bits, kinds, name, words = self.bits, self.kinds, self.file.name, self.file.words
        if bits is not None and "listed" in words:
            yield Note(code="kv-bits", message=f"kv_bits: no effect on {name}, whose lists of caches stay as they are.")
        elif bits is not None:
            what = None
            if SlidingAttention in kinds and keeps_windows(self.model):
                what = "RotatingKVCache Quantization NYI, says mlx-lm of layers with a window."
            elif LatentAttention in kinds and "expanded" not in words:
                what = f"{name} of mlx-lm 0.32.2 cannot read a quantized latent."
            elif "computed_apart" in words:
                what = f"{name} of mlx-lm 0.32.2 cannot read a quantized cache."
            if what is not None:
                raise UnsupportedError(f"kv_bits: {what}", hint="Leave out kv_bits.")
            self._check_groups(bits)
        if "max_kv_size" in self.setup.options:
            if "own_cache" in words:
                yield Note(code="max-kv-size", message=f"max_kv_size: no effect, {name} of mlx-lm makes its cache itself.")
            elif bits is not None:
                what = "max_kv_size makes a rotating cache, which mlx-lm cannot quantize."
                raise UsageError(what, hint="Leave out kv_bits or max_kv_size.")

    def _check_groups(self, bits: Bits) -> None:
        """Check that the heads of layers that are quantized have whole groups of numbers."""
        kinds = [
            group.kind.expanded() if isinstance(group.kind, LatentAttention) else group.kind for group in self.plain_stack.groups
        ]
        quantized = [kind for kind in kinds if not (isinstance(kind, ChunkedAttention) and "chunked" in self.file.words)]
        tensors = [tensor for kind in quantized for tensor in kind.tensors() if tensor.role in {Role.KEY, Role.VALUE}]
        for width in sorted({tensor.shape[-1] for tensor in tensors}):
            if width % bits.group:
                fitting = [group for group in GROUPS if width % group == 0]
                hint = f"Use: --engine-option kv_group_size={fitting[-1]}" if fitting else "Leave out kv_bits."
                raise UsageError(f"kv_group_size={bits.group} does not divide a head of {width:,} numbers.", hint=hint)


class MlxOccupancy(GeneralOccupancy):
    """What mlx-lm holds under one load."""

    deployment: MlxDeployment

    @property
    def pieces(self) -> tuple[int, int]:
        """``prefill_step_size``, and the tokens of the prompt; 0 if it is all of a sequence."""
        return self.deployment.prefill_step, self.load.prompt or 0

    def check(self) -> None:
        self.tell(*self.deployment.accepted)
        kinds, name = self.deployment.kinds, self.deployment.file.name
        windows = SlidingAttention in kinds
        chunks = ChunkedAttention in kinds and "chunked" in self.deployment.file.words
        if windows and not keeps_windows(self.model):
            self.tell(Note(code="window", message=f"{name} of mlx-lm keeps every token of layers with a window."))
        elif (windows or chunks) and self.load.prompt is None:
            message = (
                "Layers with a window are counted behind a prompt of the whole length, of which they hold the last piece; from the first "
                "token that comes alone they hold the window. Say how much is prompt with --prompt."
            )
            self.tell(Note(code="prefill-storage", message=message))

    def tensors(self, kind: LayerKind) -> tuple[StoredTensor, ...]:
        return RULES[type(kind)](kind, self)

    def chunks(self) -> tuple[int | None, int | None, int | None]:
        step = self.deployment.prefill_step
        return step, step, step

    def working(self) -> tuple[BudgetPart, ...]:
        """The parts that come from the cache classes: while a prompt is read, while a layer grows, and for earlier requests."""
        quantized, listed = self.deployment.bits is not None, []
        # Some layers let go of tokens, or are quantized: the cache can be larger before the planned moment.
        if quantized or any(not isinstance(tensor.span, Grown) for tensor in _tensors(self)):
            steps: list[Step] = []
            beyond = _beyond_bytes(self, steps)
            forms = _beyond(self) or Asked(rule=cache(lambda tokens: _beyond_bytes(self.sized(seq=tokens, batch=1))))
            source = f"{_SOURCE}: the cache at its fullest while the prompt is read, beyond the planned moment"
            more = {"definition": Definition.ENGINE, "steps": tuple(steps), "grows": (forms, forms, forms)}
            listed.append(BudgetPart.of("prompt pieces", Section.ACTIVATIONS, (beyond, beyond, beyond), source, **more))

        def largest(occupancy: MlxOccupancy) -> int:
            return max((tensor.bytes for tensor in _tensors(occupancy)), default=0)

        # A layer grows by concatenation: for a moment the old and the new array of keys, or of values, exist together.
        growth: Amount | None = None if quantized else growing(self, _tensors(self))
        growth = growth or Asked(rule=cache(lambda tokens: largest(self.sized(seq=tokens, batch=1))))
        source = f"{_SOURCE} KVCache.update_and_fetch: mx.concatenate of the largest array of a layer"
        ends, grows = (0, largest(self), largest(self)), (Constant.of(0), growth, growth)
        listed.append(BudgetPart.of("cache growth", Section.ACTIVATIONS, ends, source, grows=grows))
        if self.deployment.number("prompt_cache_size", 0):
            kept: list[Step] = []
            size = _kept_bytes(self.sized(batch=1), kept)
            each = Asked(rule=cache(lambda tokens: _kept_bytes(self.sized(seq=tokens, batch=1))), alone=True)
            source = "mlx-lm 0.32.2 server.py --prompt-cache-size: caches of earlier requests, each as long as a planned one"
            grows = (Constant.of(0), each, each)
            listed.append(
                BudgetPart.of("prompt cache", Section.OVERHEAD, (0, size, size), source, steps=tuple(kept), grows=grows)
            )
        return tuple(listed)

    def curve(self) -> Curve | None:
        """The cache by the general rule; length by length where it is quantized on the way or grows in odd pieces."""
        from hwcalc.engines.general_form import asked_curve

        curve = None if self.deployment.bits is not None else super().curve()
        return asked_curve(self) if curve is None else curve

    def most_sequences(self) -> tuple[int, str] | None:
        """The server takes requests one after the other where the cache is quantized, drafts are made or caches cannot be joined.

        Source: server.py ModelProvider (is_batchable), ResponseGenerator._is_batchable.
        """
        alone = self.setup.parallel.dp
        if self.deployment.bits is not None:
            return alone, "kv_bits"
        if self.setup.draft is not None:
            return alone, "draft model"
        if "chunked" in self.deployment.file.words:
            return alone, "ChunkedKVCache"
        return alone * self.deployment.number("decode_concurrency", _DECODE_CONCURRENCY), "decode_concurrency"

    @cached_property
    def sharing_support(self) -> Support:
        """Source: server.py LRUPromptCache, generate.py BatchGenerator."""
        how = "the server's prompt cache saves time and no memory: every request gets a copy of what is kept"
        if self.load.sharing.branches > 1:
            how = "mlx-lm has neither samples nor beams of one request: each is a request of its own"
        return Support(offered=False, how=how)

    def savings(self, short_bytes: int) -> Iterator[Saving]:
        """The savings to advise: a quantized cache where the model file takes it, and weights of eight and four bits."""
        kinds = self.deployment.kinds
        windows = SlidingAttention in kinds and keeps_windows(self.model)
        reads = LatentAttention not in kinds and "listed" not in self.deployment.file.words
        if self.deployment.bits is None and not windows and reads:
            for cost, bits in ((Cost.CACHE, "8"), (Cost.FEW_CACHE_BITS, "4")):
                yield Saving(cost, f"a cache of {bits} bits", {"engine_options": {"kv_bits": bits}})
        yield Saving(Cost.WEIGHTS, "weights of 8 bits", {"weights": "mlx_8bit"})
        yield Saving(Cost.FEW_BITS, "weights of 4 bits", {"weights": "mlx_4bit"})


_SOURCE: Final = "mlx-lm 0.32.2 models/cache.py"
_OF_BITS: Final = frozenset({"kv_bits", "kv_group_size", "quantized_kv_start"})


def _tensors(occupancy: MlxOccupancy) -> Iterator[StoredTensor]:
    """The tensors of the fullest rank that grow."""
    return (tensor for stored in occupancy.rank_tensors.values() for tensor in stored if isinstance(tensor.span, Pieces))


def _kept_bytes(single: MlxOccupancy, steps: list[Step] | None = None) -> int:
    """Bytes of the caches of earlier requests, of which the server keeps so many, each as long as this one."""
    kept = single.deployment.number("prompt_cache_size", 0)
    return figure(steps, "prompt_cache", "kept_caches x sequence_bytes", kept_caches=kept, sequence_bytes=single.needed_bytes)


def _beyond_bytes(occupancy: MlxOccupancy, steps: list[Step] | None = None) -> int:
    """Bytes by which the cache takes more at an earlier moment than at the planned one.

    It can be fullest behind the last whole piece, at the end of the prompt, and before it is quantized.
    """
    request, size, bits = occupancy.request, occupancy.deployment.prefill_step, occupancy.deployment.bits
    prompt = request.load.prompt_tokens
    earlier: list[Occupancy] = [
        occupancy.under(replace(request.load, seq=tokens, prompt=None)) for tokens in {prompt // size * size, prompt} if tokens
    ]
    if bits is not None:
        tokens = min(quantized_at(occupancy, bits), request.load.seq)
        options = {name: value for name, value in request.setup.options.items() if name not in _OF_BITS}
        plain = request.changed(seq=tokens, options=options, dtype=occupancy.dtypes.roles[Role.KEY].name)
        earlier.append(occupancy.engine.unchecked(occupancy.model, plain))
    most = max((one.needed_bytes for one in earlier), default=0)
    return figure(steps, "prompt_pieces", "max(fullest_cache - cache, 0)", fullest_cache=most, cache=occupancy.needed_bytes)


def _beyond(occupancy: MlxOccupancy) -> Fullest | None:
    """The bytes of the fullest moment beyond the cache, as a form; ``None`` if the cache is no sum of stairs, or the stages of a pipeline are fullest at other moments."""
    if occupancy.setup.parallel.pp > 1 or occupancy.deployment.bits is not None:
        return None
    products: list[Product] = []
    for group in occupancy.stack.groups:
        for tensor in occupancy.rank_tensors[group.kind]:
            span = tensor.span
            if not isinstance(span, Pieces):
                continue
            if tensor.position_bytes is None or not span.has_stairs:
                return None
            size = group.count * tensor.position_bytes
            products += [Product(size, ("sequences",), span.at_pieces), Product(-size, ("sequences",), span.stairs())]
    return Fullest(moments=(Moment(1.0, (Product(0),)), Moment(1.0, tuple(products))), chunk=None, up=False)


_FLAGS: Final = engine_flags("mlx")
_OF_SERVER: Final = frozenset({"decode_concurrency", "prompt_cache_size"})


def _one_of(*allowed: int) -> Callable[[str, str], int]:
    def check(name: str, value: str) -> int:
        number = integer_option(0)(name, value)
        if number not in allowed:
            raise UsageError(
                f"engine option {name}={brief(value, 40)} is not known.", hint=f"Allowed: {', '.join(map(str, allowed))}."
            )
        return number

    return check


_OPTIONS: Final = options_of(
    ("kv_bits", "bits of a quantized cache", "not quantized", _one_of(2, 3, 4, 5, 6, 8)),
    ("kv_group_size", "numbers that share a scale and a bias", "64", _one_of(*GROUPS)),
    ("quantized_kv_start", "tokens from which on the cache is quantized", "5000", integer_option(0)),
    ("max_kv_size", "tokens that a rotating cache keeps of every layer", "every token", integer_option(5)),
    ("prefill_step_size", "tokens of a prompt that are read at once", "2048", integer_option(1)),
    ("decode_concurrency", "sequences that the server generates at once", "32", integer_option(1)),
    ("prompt_cache_size", "caches of earlier requests that the server keeps", "0, no server", integer_option(0, 4096)),
)


class MlxCommand(Command):
    """``mlx_lm.server`` or ``mlx_lm.generate`` for a plan."""

    known = True

    def asked(self, said: Told) -> Mapping[str, Any]:
        """``mlx.launch -n`` starts a process on each machine, which has a part of all layers, or with ``--pipeline`` some of them."""
        changed: dict[str, Any] = dict(said.on_all_gpus("pp" if said.extra.get("pipeline") else "tp"))
        draft = said.settings.get("speculative")
        if isinstance(draft, Mapping):
            changed["draft"] = draft.get("draft_model")
        return said.changed(**changed)

    def flag(self, name: str, value: object) -> str:
        """The spelling in mlx-lm of an option of kvplan or an engine option; empty if it has no flag for it."""
        if name == "dtype" and str(value) in BITS_OF_DTYPE:
            name, value = "kv_bits", BITS_OF_DTYPE[str(value)]
        return "" if name == "dtype" else _FLAGS.text(name, value)

    def words(self, planned: CommandInput) -> list[str]:
        """``mlx_lm.server``, or ``mlx_lm.generate`` with ``max_kv_size``, which the server does not know.

        Raises :class:`~hwcalc.errors.UnsupportedError` for what has no flag.
        """
        check_one_replica(planned, "mlx-lm")
        if planned.revision is not None:
            raise UnsupportedError("mlx_lm.server has no flag for a revision.", hint="Download it and give its folder.")
        if planned.weights is not None and not _converted(planned):
            from hwcalc.quantization.planned import format_name, unmade

            raise unmade("mlx-lm", format_name(planned.weights) or "", planned.model, "mlx_4bit")
        if planned.lora is not None:
            raise UnsupportedError("--lora names no adapter that mlx-lm could load.", hint="Leave out --lora.")
        alone = "max_kv_size" in planned.options
        refused = sorted(_OF_SERVER & planned.options.keys()) if alone else []
        if refused:
            raise UnsupportedError(f"mlx_lm.generate has max_kv_size, and mlx_lm.server has {refused[0]}.", hint="Leave out one.")
        machines = planned.parallel.tp * planned.parallel.pp
        of = _FLAGS.words
        words = ["mlx.launch", "-n", str(machines)] if machines > 1 else []
        program = ("mlx_lm.generate",) if alone else _FLAGS.program
        words += [*program, *of("model", _copy(planned) or _converted(planned) or planned.path or planned.model)]
        if planned.parallel.pp > 1:
            words += of("pipeline")
        if planned.draft is not None:
            words += of("speculative.draft_model", planned.draft)
        if planned.kv_dtype_named:
            words += self.flag("dtype", planned.kv_dtype).split()
        for name, value in planned.options.items():
            words += self.flag(name, value).split()
        return [*words, *planned.flags]

    def first(self, planned: CommandInput) -> tuple[tuple[str, ...], str]:
        """The command that brings a model into the planned format, and a comment: what installs mlx-lm, and where converted models are.

        No command is needed where a repository of the Hub has the model in that format.
        """
        folder, source = _converted(planned), planned.path or planned.model
        if not folder or _copy(planned):
            return (), _INSTALLS
        name, _, width = folder.removeprefix("./").rpartition("-")
        convert = ("mlx_lm.convert", "--hf-path", source, "--mlx-path", folder, "-q", "--q-bits", width.removesuffix("bit"))
        if source.startswith(("/", ".")):
            return convert, _INSTALLS
        from hwcalc.quantization.planned import HUB_MODELS

        return convert, f"{_INSTALLS} In place of first others may have converted it: {HUB_MODELS}?library=mlx&search={name}"


def _format(planned: CommandInput) -> str:
    """The planned format of weights if it is one that mlx-lm makes, else an empty string."""
    from hwcalc.quantization.planned import named_by_bits

    weights = named_by_bits((planned.weights or "").lower().replace("-", "_")) or ""
    return weights if weights.startswith(_QUANTIZED) else ""


def _copy(planned: CommandInput) -> str | None:
    """A repository of the Hub with the model in the planned format; ``None`` if none is known, or the model is here."""
    return None if planned.path is not None else published_copy("mlx", planned.model, _format(planned))


def _converted(planned: CommandInput) -> str:
    """The folder of a model that was converted to the planned format of MLX's; empty where none is planned."""
    weights = _format(planned)
    name = planned.model.rstrip("/").rpartition("/")[2]
    return f"./{name}-{weights.removeprefix(_QUANTIZED)}" if weights else ""


_INSTALLS: Final = "Needs pip install mlx-lm."
_QUANTIZED: Final = "mlx_"
"""How formats of MLX's begin: ``mlx_4bit``."""


class MlxRequests(RequestRules):
    """Requests about a model as mlx-lm reads its config."""

    def prepared(self, model: ModelSpec, request: Request) -> tuple[ModelSpec, Request]:
        return as_read(model), request


class MlxWeights(WeightFormats):
    """Formats that mlx_lm.convert makes: a model in 16 bits is taken in eight, which are twice as fast and answer alike."""

    def of(self, model: ModelSpec) -> tuple[str | None, ...]:
        """As published too, where that is no more than eight bits."""
        return super().of(model) if model.quantization is None else (None, *self.names)


class MlxIdle(IdleRules):
    """The one model of ``mlx_lm.server``, which a request for another replaces. Source: mlx-lm 0.32.2, server.py (``ModelProvider``)."""

    ways = (Rest(name="replaced", how="a request that names another model", ends=True),)
    most_awake = 1
    source = "mlx-lm 0.32.2 server.py"


class Mlx(GeneralEngine):
    """The caches of mlx-lm. Bytes are those of their arrays; the slots behind the last token are allocated and still empty."""

    deployment = MlxDeployment
    occupancy = MlxOccupancy
    request_class = MlxRequests
    name = "mlx"
    title = "mlx-lm, the caches of MLX"
    label = "MLX"
    definition = Definition.ENGINE
    facts = Facts(
        idle=MlxIdle(),
        # load_model of mlx_lm/utils.py.
        foreign_formats=("MLX",),
        users_option="decode_concurrency",
        chunk_option="prefill_step_size",
        cache_is="arrays at their largest, while a prompt is read or behind it",
        unbounded=MappingProxyType({SlidingAttention: BY_MODEL}),
        stores_prompts_apart=True,
        mixes_prompts=False,
        choices=Choices(weights=("bf16", "mlx_8bit", "mlx_4bit")),
    )
    weights = MlxWeights("mlx_8bit", "mlx_6bit", "mlx_4bit")
    command = MlxCommand()
    versions = ("0.32.2",)
    source = "mlx-lm 0.32.2, models/cache.py and generate.py"
    kinds = frozenset(RULES)
    options = _OPTIONS
