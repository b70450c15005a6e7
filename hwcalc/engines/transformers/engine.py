"""Hugging Face transformers: DynamicCache, StaticCache, QuantizedCache and offloaded caches.

The rules are those of 5.24.0 (``transformers/cache_utils.py``). Older versions differ:

==========================================  =====================================  =====================================
behaviour                                   older                                  since
==========================================  =====================================  =====================================
MLA cache                                   expanded per head                      latent (5.15)
recurrent state of Mamba, delta nets, KDA   model dtype                            float32 (5.14)
gates of DeepSeek-V4's overlap              model dtype                            float32 (5.24)
==========================================  =====================================  =====================================

Cache policies are those of kvpress, whose hooks cut the tensors of a cache behind each attention layer: a hook reads keys and values out of
the cache and puts the survivors back (``kvpress/presses/base_press.py``). With a QuantizedCache it unpacks all of a layer, cuts, and quantises
what is left; what it reads of a static cache are all positions, empty ones too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc import formulas
from hwcalc.engines.devices import Cost, Saving, computes_fp8, host_holds
from hwcalc.engines.engine import BY_MODEL
from hwcalc.engines.facts import Command, Facts, IdleRules, Rest, WeightFormats
from hwcalc.engines.general import GeneralDeployment, GeneralEngine, GeneralOccupancy
from hwcalc.engines.memory import BudgetPart, Section
from hwcalc.engines.models import known_dtype, model_dtype
from hwcalc.engines.options import Choices, choice_option, integer_option, is_auto, options_of, parse_kv_dtype
from hwcalc.engines.stored import Dtypes, StoredTensor, Support, fullest_rank_bytes, of_stack, store
from hwcalc.engines.subjects import LayerByLayer, PolicyRules, Traits
from hwcalc.engines.transformers import layers
from hwcalc.engines.transformers.layers import cache_class, room_tokens, version_numbers
from hwcalc.engines.transformers.weights import TRANSFORMERS, check_layout
from hwcalc.engines.versions import listed, unknown_version
from hwcalc.errors import UnknownNameError, UnsupportedError, UsageError
from hwcalc.formulas import CacheTensor, ChunkedAttention, LayerKind, Role, SlidingAttention, Span
from hwcalc.formulas.tensor import Fixed, Full
from hwcalc.model import Definition, Note, Noted
from hwcalc.policies.base import KVPRESS, Chosen
from hwcalc.text import brief
from hwcalc.units import human_bytes

if TYPE_CHECKING:
    from hwcalc.engines.forms import Curve
    from hwcalc.engines.pool import Allocation
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.formulas.hybrid import Group

_FP32_STATES_SINCE: Final = (5, 14)
_FP8_SINCE: Final = (5, 22)
_FLOATS: Final = ("fp32", "fp16", "bf16")
_BITS: Final = {"quanto": (2, 4), "hqq": (1, 2, 3, 4, 8), "fp8": (8,)}
"""Backend of a quantised cache -> the bit widths that it supports."""

# Model types whose recurrent states are in the model dtype.
_MODEL_DTYPE_STATES: Final = frozenset({"hymba", "minimax", "xlstm"})
# Model types whose cache also keeps the position ids of tokens for indexers, and token ids for n-grams.
_CACHED_TOKEN_IDS: Final = frozenset({"qwen4_exp", "qwen4_exp_text"})
_DEFAULT_NGRAM: Final = 3
_INT64: Final = formulas.DType(name="int64", block_elements=1, block_bytes=8)
_FP32_CONVS: Final = frozenset(
    {"inkling_mm_model", "inkling_text", "inkling2", "inkling2_text", "inkling2_loop", "inkling2_loop_text"}
)
_FP32_INDEXERS: Final = frozenset({"dots3_note", "dots3_note_text"})


_KVPRESS: Final = "kvpress 0.5.5"
_TOO_NEW: Final = (5, 3)
_NEWEST: Final = "5.2"
"""Source: the requirements of kvpress 0.5.5, transformers>=4.56,<5.3."""
_TESTED: Final = ("llama", "mistral", "phi3", "qwen2", "qwen3", "gemma3")
"""Model types of kvpress 0.5.5, SUPPORTED_MODELS of base_press.py; it warns of all others."""
_ELSEWHERE: Final = {
    "rkv": "R-KV's own code patches Llama and Qwen of transformers 4.48 to 4.55 (its requirements.txt)",
    "quest": "Quest's own kernels are for transformers 4.45.2 (its pyproject.toml)",
    "triattention": "TriAttention's own code replaces the forward pass of Llama and Qwen models and cuts a DynamicCache; "
    "generate by itself has no such option",
    "h2o": "H2O's own code is for older models; the nearest in kvpress is observedattention, which cuts the prompt alone",
    "scissorhands": "no package for transformers has it",
}
"""Policies that are not in kvpress, and where they are."""
_BITSANDBYTES: Final = ("nvidia", "amd")
_ARGUMENTS: Final[Mapping[str, str]] = {
    "seq": "max_length={}",
    "dtype": "dtype={}",
    "max_cache_len": "max_cache_len={}",
    "cache": 'cache_implementation="{}"',
    "quant_backend": 'cache_config["backend"]="{}"',
    "nbits": 'cache_config["nbits"]={}',
}
"""Option of kvplan or engine option -> the argument of ``from_pretrained`` or ``generate``."""
_WEIGHTS: Final[Mapping[str, str]] = {
    "fp8": "FineGrainedFP8Config()",
    "bnb8": "BitsAndBytesConfig(load_in_8bit=True)",
    "bnb4": "BitsAndBytesConfig(load_in_4bit=True)",
}
_OPTIONS: Final = options_of(
    ("cache", "which cache class", "dynamic", choice_option("dynamic", "static", "quantized", "offloaded")),
    ("max_cache_len", "positions that a static cache preallocates", "the planned length", integer_option(1)),
    ("nbits", "bits of a quantized cache", "4", integer_option(1, 8)),
    ("q_group_size", "elements that share a scale", "64", integer_option(1, 65536)),
    ("residual_length", "newest tokens that may stay unquantized", "128", integer_option(1, 2**31)),
    ("quant_backend", "who quantizes", "quanto", choice_option("quanto", "hqq", "fp8")),
)


class TransformersDeployment(GeneralDeployment):
    """A model that transformers' ``generate`` runs: the settings that do not depend on the prompts."""

    @cached_property
    def quantization(self) -> layers.CacheQuantization:
        """The options of ``cache=quantized``. Raises :class:`~hwcalc.errors.UsageError` if the backend lacks the bit width."""
        options = self.setup.options
        backend = options.get("quant_backend", "quanto")
        nbits = int(options.get("nbits", "8" if backend == "fp8" else "4"))
        if nbits not in _BITS[backend]:
            allowed = ", ".join(map(str, _BITS[backend]))
            raise UsageError(f"quant_backend={backend} does not pack {nbits} bits.", hint=f"Allowed nbits: {allowed}.")
        return layers.CacheQuantization(
            backend=backend,
            nbits=nbits,
            q_group_size=integer_option(1)("q_group_size", options.get("q_group_size", "64")),
            residual_length=integer_option(1)("residual_length", options.get("residual_length", "128")),
        )

    @cached_property
    def dtypes(self) -> Noted[Dtypes]:
        """The dtypes of the cache: the one that the model runs in, which ``--dtype`` sets."""
        model, setup = self.model, self.setup
        dtype, notes = model_dtype(model, setup.dtype)
        if setup.dtype is not None and not is_auto(setup.dtype):
            parsed = parse_kv_dtype(setup.dtype)
            if not isinstance(parsed, tuple) or parsed[0] != parsed[1] or parsed[0].name not in _FLOATS:
                raise UnknownNameError(
                    f"transformers keeps its cache in the model's dtype, never in {brief(setup.dtype, 40)}.",
                    option="dtype",
                    hint="Use --dtype auto, bf16, fp16 or fp32; for fewer bits: --engine-option cache=quantized "
                    "--engine-option quant_backend=quanto|hqq|fp8",
                )
            dtype, notes = parsed[0], ()
        old = (version_numbers(self.version) or ()) < _FP32_STATES_SINCE
        state = dtype if old or model.model_type in _MODEL_DTYPE_STATES else known_dtype("fp32")
        roles = dict.fromkeys(Role, dtype)
        roles[Role.STATE] = state
        if model.model_type in _FP32_CONVS:
            roles[Role.CONV] = known_dtype("fp32")
        if model.model_type in _FP32_INDEXERS:
            roles[Role.INDEX] = known_dtype("fp32")
        return Noted(Dtypes(kv=dtype.name, roles=MappingProxyType(roles)), notes)

    def weight_rules(self) -> Rules:
        return TRANSFORMERS

    @cached_property
    def traits(self) -> Traits:
        kinds = (group.kind for group in self.model.stack.groups)
        return Traits(
            expands_latents=(version_numbers(self.version) or ()) < layers.LATENT_SINCE,
            pads=True,
            preallocates=cache_class(self) == "static",
            # Compressed layers empty their buffers each time a group of so many tokens is full.
            periods=frozenset(
                kind.compress_ratio for kind in kinds if isinstance(kind, formulas.CompressedAttention) and kind.compress_ratio
            ),
            sizes_by_token=cache_class(self) == "dynamic",
        )


class TransformersPolicies(LayerByLayer):
    """What kvpress does with the caches of transformers."""

    occupancy: TransformersOccupancy

    def support(self, chosen: Chosen) -> Support:
        """The support of the policy in kvpress, for this release, cache class and model; or what it would take."""
        deployment = self.occupancy.deployment
        policy, cache, model_type = deployment.setup.policy, cache_class(deployment), deployment.model.model_type
        elsewhere = next((_ELSEWHERE[one.policy.name] for one in chosen.whole if one.policy.name in _ELSEWHERE), None)
        if elsewhere is not None:
            how = f"{elsewhere}."
        elif any(not one.policy.press for one in chosen.whole):
            how = f"{_KVPRESS} does not have it: it would be a press of your own."
        elif any(one.get("budget") is not None for one in chosen.whole) or (policy is not None and policy.rules != KVPRESS):
            how = f"{_KVPRESS} has it by its own rules alone: give a ratio, without --policy-rules."
        elif (version_numbers(deployment.version) or ()) >= _TOO_NEW:
            how = f"{_KVPRESS} has it, for transformers 4.56 to {_NEWEST} alone: --engine transformers@{_NEWEST}."
        elif cache == "static":
            how = "A static cache holds all of its positions whatever is dropped: --engine-option cache=dynamic."
        elif cache == "offloaded":
            how = f"{_KVPRESS} cuts on the GPU what an offloaded cache keeps in host memory: --engine-option cache=dynamic."
        elif model_type not in _TESTED:
            how = f"{_KVPRESS} has it, and is not tested with {model_type} models."
        else:
            again = ": what is left of a layer is quantised again" if cache == "quantized" else ""
            return Support(offered=True, how=f"{_KVPRESS}, {chosen.policy.press}{again}.")
        return Support(offered=False, how=how)

    def prefill_bytes(self, stage: int) -> int:
        """Bytes of the cache while the prompt is read: a static or offloaded one is not cut by layer, a quantised layer is unpacked to be cut."""
        occupancy = self.occupancy
        cache = cache_class(occupancy)
        if cache == "static":
            return occupancy.needed_bytes
        if cache == "offloaded":
            return PolicyRules.prefill_bytes(self, stage)
        by_layer = super().prefill_bytes(stage)
        if cache != "quantized" or occupancy.evicted is None:
            return by_layer
        # A policy unpacks keys and values of a layer of the prompt to cut it (kvpress 0.5.5, dequantize_layer).
        dtype, rules, tp = occupancy.dtypes.roles[Role.KEY], occupancy.deployment.weight_rules(), occupancy.setup.parallel.tp
        shards = (rules.shard(occupancy.model, group.kind, tp) for group in occupancy.deployment.plain_stack.groups)
        largest = max(sum(tensor.bytes_per_position(dtype) for tensor in shard.tensors()) for shard in shards)
        return by_layer + occupancy.request.replica_batch * occupancy.load.prompt_tokens * largest


class TransformersOccupancy(GeneralOccupancy):
    """The tensors of a cache class of the library."""

    policy_class = TransformersPolicies

    deployment: TransformersDeployment

    def check(self) -> None:
        parallel, options, cache = self.setup.parallel, self.setup.options, cache_class(self)
        if parallel.dcp > 1:
            raise UsageError("transformers has no decode context parallelism.", hint="Leave out --dcp.")
        if parallel.gpus * parallel.ep > 1:
            check_layout(self.model, parallel)
        for name in ("nbits", "q_group_size", "residual_length", "quant_backend"):
            if name in options and cache != "quantized":
                raise UsageError(f"engine option {name} belongs to cache=quantized.", hint="Add: --engine-option cache=quantized")
        if "max_cache_len" in options and cache != "static":
            raise UsageError("engine option max_cache_len belongs to cache=static.", hint="Add: --engine-option cache=static")
        kinds = {type(group.kind) for group in self.deployment.plain_stack.groups}
        if cache == "quantized":
            self._check_quantized(kinds)
        uncached = kinds & {
            formulas.BlockSparseAttention,
            formulas.CompressedAttention,
            formulas.LightningAttention,
            formulas.GatedLinearAttention,
            formulas.MetaTokens,
        }
        if cache == "static" and uncached:
            message = f"transformers has no static cache for {', '.join(sorted(kind.title for kind in uncached))}."
            raise UnsupportedError(message, hint="Use: --engine-option cache=dynamic")
        if cache == "dynamic" and not kinds.isdisjoint((SlidingAttention, ChunkedAttention)):
            message = (
                "Windowed layers are counted by what they keep, window - 1 tokens. After a one-shot prefill their "
                "storage holds the whole prompt until the first decoded token."
            )
            self.tell(Note(code="prefill-storage", message=message))
        if cache == "offloaded":
            message = "Offloaded: these bytes live in host memory; the GPU holds the layer in use and the next one."
            self.tell(Note(code="offloaded", message=message))

    def _check_quantized(self, kinds: set[type[LayerKind]]) -> None:
        """Raise an error where there is no quantised cache; note the unquantised tokens that may come on top: ``residual_length`` - 1."""
        others, options = kinds - {formulas.FullAttention}, self.deployment.quantization
        if others:
            raise UnsupportedError(
                "QuantizedCache needs full attention on every layer; this model has "
                f"{', '.join(sorted(kind.title for kind in others))}.",
                hint="Use: --engine-option cache=dynamic",
            )
        if options.backend == "fp8":
            if (version_numbers(self.deployment.version) or ()) < _FP8_SINCE:
                what = f"transformers {self.deployment.version} has no fp8 backend."
                raise UsageError(what, hint="Use: --engine transformers@5.22 or newer")
            return
        waiting, dtype, groups = options.residual_length - 1, self.dtypes.roles[Role.KEY], self.deployment.plain_stack.groups
        per_token = sum(group.count * tensor.bytes_per_position(dtype) for group in groups for tensor in group.kind.tensors())
        size = self.batch * waiting * per_token
        message = (
            f"The plan is of the moment after prefill. Up to {waiting:,} newer tokens wait in {dtype.name}: "
            f"{human_bytes(size)} ({size:,} bytes) on top."
        )
        self.tell(Note(code="residual", message=message))

    def tensors(self, kind: LayerKind) -> tuple[StoredTensor, ...]:
        return layers.RULES[type(kind)](kind, self)

    @cached_property
    def extras(self) -> tuple[StoredTensor, ...]:
        if any(isinstance(group.kind, formulas.MatrixLSTM) for group in self.model.stack.groups):
            # xLSTMCache counts its tokens in one int64.
            return (layers.counter("seqlen_offset"),)
        if self.model.model_type not in _CACHED_TOKEN_IDS:
            return ()
        # Qwen4's int64 records: three position ids per token for the indexers, and the last token ids for the n-grams.
        context_tokens = (self.model.facts.ngram_size or _DEFAULT_NGRAM) - 1
        counts = {type(group.kind): group.count for group in self.model.stack_for("transformers").groups}
        records: dict[str, tuple[int, Span]] = {
            "indexer_position_ids": (3 if formulas.SparseIndexer in counts else 0, Full()),
            "ngram_token_ids": (counts.get(formulas.ShortConvolution, 0), Fixed(context_tokens)),
        }
        return tuple(
            store(self, CacheTensor(name=name, shape=(width,), axes=("ids",), role=Role.STATE, span=span), dtype=_INT64)
            for name, (width, span) in records.items()
            if width
        )

    @cached_property
    def needed_bytes(self) -> int:
        if cache_class(self) != "offloaded":
            return super().needed_bytes
        return fullest_rank_bytes(self, self.gpu_groups())

    def gpu_groups(self) -> tuple[tuple[Group, ...], ...]:
        """As the general rule, but an offloaded cache has only two layers on the GPU at a time."""
        if cache_class(self) != "offloaded":
            return super().gpu_groups()
        return of_stack(self, (self.engine.name, "groups on the GPU"), lambda: layers.groups_on_gpu(self.stack))

    def allocation(self, stage: int) -> tuple[Allocation, ...]:
        if cache_class(self) == "offloaded":
            message = "an offloaded cache lies in host memory, and which two layers are on the device changes all the time."
            raise UnsupportedError(message, hint="Use: --engine-option cache=dynamic")
        return super().allocation(stage)

    @cached_property
    def sharing_support(self) -> Support:
        """Source: generation/utils.py _expand_inputs_for_generation, cache_utils.py reorder_cache."""
        sharing = self.load.sharing
        how = "every row of the batch has its own cache"
        if sharing.samples > 1:
            how = "num_return_sequences repeats the prompt in the batch before it is read: every sample has its own cache"
        if sharing.beams > 1:
            how = "num_beams repeats the prompt in the batch before it is read: every beam has its own cache, and a step copies them anew"
        if self.load.lengths:
            how += "; shorter sequences are padded to the longest"
        return Support(offered=False, how=how)

    def chunks(self) -> tuple[int | None, int | None, int | None]:
        """No limit on the tokens of a pass: ``generate`` reads each prompt in one, and a prompt may be all but the last token."""
        return None, None, None

    def working(self) -> tuple[BudgetPart, ...]:
        """A dynamic layer grows by concatenation: for a moment the old and the new tensor of keys, or of values, exist together."""
        from hwcalc.engines.forms import Constant
        from hwcalc.engines.general_form import growing

        if cache_class(self) == "static":
            return ()
        # The tensors of the fullest rank that grow by concatenation.
        stored = [tensor for tensors in self.rank_tensors.values() for tensor in tensors]
        joined = [tensor for tensor in stored if tensor.role not in (Role.STATE, Role.CONV) and not tensor.once]
        cut = self.cut_layers
        largest = max((tensor.bytes for tensor in joined), default=0) if cut is None else cut.largest
        key = ("cache growth", self.load.encoder_seq)
        growth = None if self.evicted is not None else self.deployment.shared(key, lambda: growing(self, joined))
        grows = None if growth is None else (Constant.of(0), growth, growth)
        source = "transformers 5.23 cache_utils.py DynamicLayer.update: torch.cat of the largest tensor of a layer"
        return (BudgetPart.of("cache growth", Section.ACTIVATIONS, (0, largest, largest), source, grows=grows),)

    def curve(self) -> Curve | None:
        """None where numbers of several positions are packed together: what that takes, and whether it can be, depends on how many there are."""
        if cache_class(self) == "quantized":
            options, rules, tp = self.deployment.quantization, self.deployment.weight_rules(), self.setup.parallel.tp
            kinds = [group.kind for group in self.stack.groups]
            shards = [rules.shard(self.model, kind, tp) for kind in kinds]
            rows = {prod(tensor.shape) for kind in (*kinds, *shards) for tensor in kind.tensors()}
            if options.backend != "fp8" and any(options.row_bytes(row) is None for row in rows):
                return None
        # A static cache is the same at every length up to the one that it was made for.
        most = room_tokens(self)
        within = self if most is None else self.sized(seq=min(self.tokens, most))
        curve = GeneralOccupancy.curve(within)
        if curve is None or most is None:
            return curve
        try:
            self.sized(seq=most + 1).kind_tensors  # noqa: B018 - refused by the first layer that is too short
        except UsageError:
            return replace(curve, most_tokens=most)
        return curve

    def savings(self, short_bytes: int) -> Iterator[Saving]:
        """The cache classes with fewer bits and the one in host memory; weights that are quantised while loading."""
        gpu = self.setup.hardware.gpu

        def quantized(cost: Cost, backend: str, bits: str) -> Saving:
            options = {"cache": "quantized", "quant_backend": backend, "nbits": bits}
            return Saving(cost, f"a cache of {bits} bits by {backend}", {"engine_options": options})

        if "cache" not in self.setup.options:
            if computes_fp8(gpu):
                yield quantized(Cost.CACHE, "fp8", "8")
            yield quantized(Cost.CACHE, "hqq", "8")
            yield quantized(Cost.FEW_CACHE_BITS, "quanto", "4")
            if host_holds(gpu, self.needed_bytes):
                yield Saving(Cost.HOST, "a cache in host memory, slower", {"engine_options": {"cache": "offloaded"}})
        bitsandbytes = gpu is None or gpu.vendor.lower() in _BITSANDBYTES
        if computes_fp8(gpu):
            yield Saving(Cost.WEIGHTS, "fp8 weights", {"weights": "fp8"})
        elif bitsandbytes:
            yield Saving(Cost.WEIGHTS, "int8 weights of bitsandbytes", {"weights": "bnb8"})
        if bitsandbytes:
            yield Saving(Cost.FEW_BITS, "4-bit weights of bitsandbytes", {"weights": "bnb4"})


class TransformersCommand(Command):
    """The arguments of a call, since transformers has no server."""

    def flag(self, name: str, value: object) -> str:
        """The argument for one option; empty where the caller's own code decides, as on the number of prompts."""
        if name == "weights":
            config = _WEIGHTS.get(str(value))
            return "" if config is None else f"quantization_config={config}"
        return _ARGUMENTS[name].format(value) if name in _ARGUMENTS else ""


class TransformersIdle(IdleRules):
    """Models of one process: ``transformers serve`` loads each that a request names, and drops it after a time. Source: 5.2 and 5.8, cli/serve.py."""

    ways = (Rest(name="dropped", how="nobody asks for it for --model-timeout seconds (300 by default)", ends=True),)
    one_process = True
    source = "transformers cli/serve.py"


class Transformers(GeneralEngine):
    """The caches of the transformers library. Bytes are those of the tensors, without what the allocator adds."""

    deployment = TransformersDeployment
    occupancy = TransformersOccupancy
    name = "transformers"
    title = "Hugging Face transformers, DynamicCache and its kin"
    label = "transformers"
    definition = Definition.ENGINE
    facts = Facts(
        idle=TransformersIdle(),
        # AUTO_QUANTIZER_MAPPING of quantizers/auto.py.
        foreign_formats=("GGUF files", "bitsandbytes"),
        cache_is="tensors that grow with the tokens",
        sums_in_32_bits=True,
        mixes_prompts=False,
        unbounded=MappingProxyType({SlidingAttention: BY_MODEL}),
        choices=Choices(weights=("bf16", "bnb8", "bnb4")),
    )
    weights = WeightFormats(None, "bnb8", "bnb4")
    command = TransformersCommand()
    versions = ("5.24", "5.23", "5.22", "5.20", "5.18", "5.15", "5.14", "5.13", "5.12", "5.10", "5.5", "4.57")
    source = "transformers 5.24.0, cache_utils.py"
    kinds = frozenset(layers.RULES)
    options = _OPTIONS

    def _resolve_version(self, requested: str) -> str:
        """Any version from 4.57 to the newest known one. A version between two known ones has the rules of the older one."""
        version = version_numbers(requested) or ()
        newest = version_numbers(self.versions[0]) or ()
        for known in self.versions if version else ():
            numbers = version_numbers(known) or ()
            # "5" is the newest 5.x; "5.19" has the rules of 5.18.
            if version == numbers[:1] or (len(version) > 1 and numbers <= version[:2] <= newest):
                return known
        raise unknown_version("transformers", requested, hint=f"{listed(self.versions)}.")
