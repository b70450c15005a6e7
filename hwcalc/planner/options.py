"""The options of a plan, each said once: its type in Python, and a row with its type, the help, and who takes it.

The keywords of :func:`hwcalc.plan` and its siblings, the command line, check files and their schema, receipts and reconcile all follow
these classes. A new option is one entry in the class of the functions that take it, the code that uses it, and its documentation.
"""

# Annotations are read when this module is imported: they are the table.

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, TypedDict, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from hwcalc.errors import KvplanError
from hwcalc.model import EXAMPLE_LAYERS, ModelLike
from hwcalc.planner.values import TYPES

if TYPE_CHECKING:
    from hwcalc.policies.base import Chosen

GROUPS: Final = ("model", "workload", "engine", "hardware")
"""What an option is about: the groups of the help, in their order."""


class PlanOption(Struct, frozen=True):
    """One option of a plan.

    ``type`` is a key of :data:`~hwcalc.planner.values.TYPES`. ``help`` is the help of the command line; ``helps`` has other texts for
    single commands. ``lists`` names the commands that take several values, separated by commas. ``check`` is the help in a check file:
    empty if it is the same text, ``None`` if check files lack the option. ``complete`` names the command line's function that completes
    values, and ``completes`` another one for single commands. ``name`` is its keyword in Python and its key in a check file: the name
    of the entry whose annotation the row is.
    """

    type: str
    metavar: str
    help: str
    flags: tuple[str, ...] = ()
    default: str | int | None = None
    complete: str | None = None
    completes: Mapping[str, str] = MappingProxyType({})
    helps: Mapping[str, str] = MappingProxyType({})
    lists: tuple[str, ...] = ()
    check: str | None = ""
    in_receipt: bool = True
    in_reconciliation: bool = False
    """True if reconcile shows it among the planned values."""
    of_budget: bool = False
    """True if it changes only the memory that a GPU has left for the cache."""
    in_cache_if: str | None = None
    """The name of an attribute of :class:`~hwcalc.engines.facts.Facts` (``drafts_in_cache``) with which it changes the cache as well."""
    reads_model: bool = False
    """True if it says how models are read, and not what is planned."""
    group: str = "model"
    """One of :data:`GROUPS`."""
    short: str = ""
    """A few words for the short help, of an option that most people need; empty for others."""
    shorts: Mapping[str, str] = MappingProxyType({})
    """Other such words, by command."""
    name: str = ""

    @property
    def spellings(self) -> tuple[str, ...]:
        """The flags of the command line."""
        return self.flags or (f"--{self.name.replace('_', '-')}",)

    def read(self, value: Any) -> Any:
        """Parse a value from text or Python. Raises :class:`~hwcalc.errors.UsageError`."""
        return TYPES[self.type].read(value, self.name)


class SameAs(Struct, frozen=True):
    """Another name of an option, as a keyword of Python's; on the command line and in check files it is one of the row's ``flags``."""

    name: str


Number = int | str
Count = int | str | None
Share = float | str | None


def _size(words: str) -> PlanOption:
    """The row of a parallel size."""
    return PlanOption(
        "count",
        "N",
        f"{words} parallel size. Default: 1.",
        default=1,
        check=f"{words} parallel size.",
        in_reconciliation=True,
        group="hardware",
    )


def _branches(words: str) -> PlanOption:
    """The row of sequences that share a prompt."""
    return PlanOption(
        "count",
        "N",
        f"{words} of each sequence of --users, behind one prompt. Default: 1.",
        default=1,
        check=f"{words} of each sequence, behind one prompt.",
        group="workload",
    )


def _dimension(words: str, type_: str = "count", without: str = "With MODEL: what if.") -> PlanOption:
    """The row of a dimension of the model."""
    return PlanOption(type_, "N", f"{words} {without}", check=None, in_receipt=False, reads_model=True)


def _hub(type_: str, metavar: str, words: str) -> PlanOption:
    """The row of an option that says how models are fetched."""
    return PlanOption(type_, metavar, words, check=None, in_receipt=False, reads_model=True)


# An entry is for the functions whose keywords, further below, have its class. Their order is that of the help and of written lines.


class _Seq(TypedDict, total=False):
    seq: Annotated[Count, PlanOption(
        "tokens", "N", "Tokens per sequence, prompt and output: 32768, 32k. Default: the model's own maximum.",
        flags=("--seq", "--context"),
        helps={
            "compare": "Tokens per sequence: 32k, or several. Default: the smallest maximum of the models.",
            "sweep": "Tokens per sequence: 1k,4k; 1k..128k doubles, 1k..128k:1k goes by steps. Default: each model's own maximum.",
            "plot": "Longest sequence that is drawn: 32k, or both ends: 1k..128k; of layers the planned one. Default: each model's own maximum.",
            "fit": "Tokens per sequence: 16k. Default: 8k, or what a model is made for.",
            "strategies": "Most tokens per sequence: 32k. Default: the longest of --lengths, or the model's own maximum.",
        },
        lists=("compare", "sweep"), in_reconciliation=True, group="workload",
        short="Tokens of a sequence, with the output: 32k.",
    )]  # fmt: skip


class _AvgSeq(TypedDict, total=False):
    avg_seq: Annotated[Sequence[int | str] | int | str | None, PlanOption(
        "held", "N",
        "Lengths that users really have, up to --seq: 4k on average, p50=2k,p95=16k, a file of lengths or a trace. "
        "Says how likely they overrun the pool.",
        check="Lengths that users really have, up to seq: 4k on average, p50=2k,p95=16k, a file of lengths or a trace.",
        group="workload",
    )]  # fmt: skip


class _Batch(TypedDict, total=False):
    batch: Annotated[Number, PlanOption(
        "count", "N", "Sequences alive at once, one for each user. Default: 1.", flags=("--users", "--concurrency", "--batch"), default=1,
        helps={
            "compare": "Sequences alive at once, or several numbers. Default: 1.",
            "sweep": "Sequences alive at once, as a list like that of --seq. Default: 1.",
            "reconcile": "Sequences alive at once, where the log does not state it. Default: 1.",
        },
        lists=("compare", "sweep"), check="Sequences alive at once; concurrency and users are the same. Default: 1.", in_reconciliation=True,
        group="workload", short="Sequences at once, one for each user: 40.",
    )]  # fmt: skip


class _Dtype(TypedDict, total=False):
    dtype: Annotated[str | None, PlanOption(
        "text", "D", "KV-cache dtype: auto, fp8, bf16, q8_0; K:V for two. See: kvplan dtypes. Default: the model's dtype.",
        complete="dtypes",
        helps={
            "compare": "KV-cache dtypes: bf16,fp8. See: kvplan dtypes. Default: the model's dtype.",
            "sweep": "KV-cache dtypes: bf16,fp8. See: kvplan dtypes. Default: each model's dtype.",
            "tune": "KV-cache dtypes to try: auto,fp8. See: kvplan dtypes. Default: the model's, and one of eight bits.",
        },
        lists=("compare", "sweep", "tune"), check="KV-cache dtype: auto, fp8, bf16, q8_0; K:V for two.", in_reconciliation=True,
        group="engine", short="Of the cache: fp8, q8_0, ...",
    )]  # fmt: skip


class _NamesOfBatch(TypedDict, total=False):
    concurrency: Annotated[Count, SameAs("batch")]
    users: Annotated[Count, SameAs("batch")]


class _NamesOfSeq(TypedDict, total=False):
    context: Annotated[Count, SameAs("seq")]


class _Load(_Seq, _Batch, _Dtype, _NamesOfBatch, _NamesOfSeq, total=False):
    pass


class _Weights(TypedDict, total=False):
    weights: Annotated[str | None, PlanOption(
        "text", "W", "Weight format: bf16, fp8, awq, q4_k_m, ...; auto is the best that fits the GPU. Default: as published.",
        flags=("--weights", "--quant"), complete="weight_formats",
        helps={
            "compare": "Weight formats: bf16,fp8. Default: as published.",
            "fit": "One format for all: q4_k_m. Default: for each model the best that fits.",
        },
        lists=("compare",), check="Weight format: bf16, fp8, awq, ... Default: as published.", in_reconciliation=True,
        short="Their format: fp8, awq, q4_k_m, auto.",
    )]  # fmt: skip
    quant: Annotated[str | None, SameAs("weights")]


class _Engine(TypedDict, total=False):
    engine: Annotated[str | None, PlanOption(
        "text", "E",
        "Whose rules: reference (the formulas), vllm, llamacpp, transformers@5.14. See: kvplan engines. Default: reference; llamacpp for GGUF files.",
        complete="engines", completes=dict.fromkeys(("plan", "compare"), "engines_or_all"),
        helps={
            "plan": "Whose rules: reference (the formulas), vllm, llamacpp, transformers@5.14; all: a row for each. See: kvplan engines. Default: reference; llamacpp for GGUF files.",
            "compare": "Whose rules: reference,vllm, or all. See: kvplan engines. Default: reference.",
            "reconcile": "Engine and version, where the log does not state it: vllm@0.11.",
            "fit": "Whose rules: llamacpp, reference, vllm. See: kvplan engines. Default: llamacpp.",
        },
        lists=("compare",), check="Whose rules: reference, vllm, vllm@0.25.1, ... Default: reference; llamacpp for GGUF files.",
        group="engine", short="vllm, sglang, llamacpp, ollama, mlx, ...",
    )]  # fmt: skip


class _Gpu(TypedDict, total=False):
    gpu: Annotated[str | None, PlanOption(
        "text", "G", "Accelerator: l4, h100-sxm5-80gb, 4xh100; without one: cpu-32gb. Default: none, and no verdict.", complete="gpus",
        helps={
            "compare": "Accelerators, or several of each: l4,4xh100,8xmi300x. Default: none, and no verdict.",
            "sweep": "Accelerators: l4,h100-sxm5-80gb. Default: none, and no verdict.",
            "explore": "Accelerators to choose from, the first one chosen: l4,h100-sxm5-80gb. Default: eight usual ones.",
            "fit": "Accelerator: rtx-4060-ti, m4-24gb, local; without one: cpu-32gb. Default: this machine's.",
            "tune": "Accelerators to choose from, with the most of each: l4,4xh100,8xl40s.",
        },
        lists=("compare", "sweep", "explore", "tune"), check="Accelerator: l4, h100-sxm5-80gb, 4xh100.", in_reconciliation=True, group="hardware",
        short="l4, 4xh100, m4-24gb, cpu-32gb, ...", shorts=dict.fromkeys(("sweep", "explore"), "l4, h100, m4-24gb, cpu-32gb, ..."),
    )]  # fmt: skip


class _Gpus(TypedDict, total=False):
    gpus: Annotated[Count, PlanOption(
        "count", "N", "How many, shared by tensor parallelism. Default: 1.", check="How many.", in_receipt=False,
        helps={"tune": "How many of each at most. Default: 1."},
        group="hardware",
    )]  # fmt: skip


class _Ram(TypedDict, total=False):
    ram: Annotated[Count, PlanOption(
        "memory", "GB", "Memory of the host for llama.cpp and Ollama, as it is sold: 64 (GB). Default: not known.",
        check="Memory of the host for llama.cpp and Ollama, as it is sold: 64 (GB).", of_budget=True, group="hardware",
        short="Memory of the host: 64.",
    )]  # fmt: skip


class _Instance(TypedDict, total=False):
    instance: Annotated[str | None, PlanOption(
        "text", "I", "Cloud instance: p5.48xlarge. Its accelerators, all of them.", complete="instances",
        helps={"compare": "Cloud instances: p5.48xlarge,g6.12xlarge. All accelerators of each."}, lists=("compare",),
        check="A cloud instance type, instead of gpu and gpus.", in_receipt=False, group="hardware",
    )]  # fmt: skip


class _Tp(TypedDict, total=False):
    tp: Annotated[Number, PlanOption(
        "count", "N", "Tensor parallel size. Default: 1.", default=1,
        helps={
            "compare": "Tensor parallel sizes: 1,2,4. Default: 1.",
            "sweep": "Tensor parallel sizes: 1,2,4,8. Default: 1.",
            "tune": "Tensor parallel sizes to try: 1,2,4. Default: those that people run.",
        },
        lists=("compare", "sweep", "tune"), check="Tensor parallel size.", in_reconciliation=True, group="hardware",
    )]  # fmt: skip


class _Layout(TypedDict, total=False):
    pp: Annotated[Number, _size("Pipeline")]
    dp: Annotated[Number, _size("Data")]
    dcp: Annotated[Number, _size("Decode context")]
    ep: Annotated[Number, _size("Expert")]


class _Utilization(TypedDict, total=False):
    memory_utilization: Annotated[Share, PlanOption(
        "utilization", "F", "Share of the GPU for the engine. Default: the engine's.",
        check="Share of the GPU that the engine may use.", in_reconciliation=True, of_budget=True, group="engine",
    )]  # fmt: skip


class _KvMemory(TypedDict, total=False):
    kv_memory: Annotated[
        Count,
        PlanOption("size", "B", "Bytes per GPU for the cache, given directly: 60GiB.", in_reconciliation=True, group="engine"),
    ]


class _Margin(TypedDict, total=False):
    margin: Annotated[Share, PlanOption(
        "share", "F", "Share of the GPU to leave alone: 5%. Default: 5%, none for an engine with a share of its own.",
        check="Share of the GPU to leave alone: 5%.", of_budget=True, group="hardware",
    )]  # fmt: skip


class _Loaded(TypedDict, total=False):
    lora: Annotated[
        str | None,
        PlanOption("lora", "K=V,...", "Adapters served together: rank=16,count=8; loaded=32 in host memory.", of_budget=True),
    ]
    draft: Annotated[ModelLike | None, PlanOption(
        "model", "MODEL", "Draft model for speculative decoding, loaded beside the model.", complete="models",
        check="Draft model of speculative decoding: an id or a path.", of_budget=True, in_cache_if="drafts_in_cache",
    )]  # fmt: skip


class _Encoder(TypedDict, total=False):
    encoder_seq: Annotated[Count, PlanOption(
        "from zero", "N", "Encoder tokens for cross attention. Default: the model's own.",
        check="Encoder tokens for cross attention.", group="workload",
    )]  # fmt: skip


class _EngineOptions(TypedDict, total=False):
    engine_options: Annotated[Mapping[str, object] | None, PlanOption(
        "pairs", "K=V", "An engine's own knob by its own name; repeatable. See: kvplan engines NAME.", flags=("--engine-option",),
        complete="engine_options", check="The engine's own knobs by their own names.", group="engine",
    )]  # fmt: skip


class _Prompt(TypedDict, total=False):
    prompt: Annotated[Count, PlanOption(
        "tokens", "N", "Tokens of the prompt, of those of --seq; the rest is generated. Default: all.",
        helps={
            "strategies": "Tokens of the prompt, of those of --seq; the rest is generated. Default: 1.",
        },
        check="Tokens of the prompt, of those of seq. Default: all.", in_reconciliation=True, group="workload",
    )]  # fmt: skip


class _Policy(TypedDict, total=False):
    policy: Annotated[object, PlanOption(
        "policy", "P", "Cache policy: snapkv:compression_ratio=0.5. See: kvplan policies. Default: none, every token is kept.",
        complete="policies",
        helps=dict.fromkeys(
            ("compare", "sweep"),
            "Cache policies: snapkv:compression_ratio=0.5,knorm:compression_ratio=0.5,none. See: kvplan policies.",
        ),
        lists=("compare", "sweep"), check="Cache policy: snapkv:compression_ratio=0.5. See: kvplan policies.",
        in_reconciliation=True, group="workload",
    )]  # fmt: skip


_TIMED: Final = ("plan", "recommend", "disaggregate")
"""Commands whose short help has the limits of time."""


class _Within(TypedDict, total=False):
    ttft: Annotated[float | str | None, PlanOption(
        "duration", "T", "Longest time to the first token: 2s, 800ms. A plan then says how many users are served within it.", flags=("--ttft",),
        check=None, in_receipt=False, group="workload", shorts=dict.fromkeys(_TIMED, "Longest time to the first token: 2s."),
    )]  # fmt: skip
    itl: Annotated[float | str | None, PlanOption(
        "duration", "T", "Longest time between two tokens of a user, on average: 50ms.", flags=("--itl", "--tpot"),
        check=None, in_receipt=False, group="workload", shorts=dict.fromkeys(_TIMED, "Longest time between tokens: 50ms."),
    )]  # fmt: skip
    tpot: Annotated[float | str | None, SameAs("itl")]
    e2e: Annotated[float | str | None, PlanOption(
        "duration", "T", "Longest time from a request to its last token: 30s.", check=None, in_receipt=False, group="workload",
    )]  # fmt: skip
    min_rate: Annotated[float | str | None, PlanOption(
        "rate", "N", "Fewest tokens per second of each user, once the first is there: 40.", check=None, in_receipt=False, group="workload",
    )]  # fmt: skip
    rate: Annotated[float | str | None, PlanOption(
        "rate", "N", "Requests that arrive, at random: 2.5 a second, 90/min. Default: each user sends the next one at once.",
        check=None, in_receipt=False, group="workload",
    )]  # fmt: skip
    prefix_hit: Annotated[Share, PlanOption(
        "share", "F", "Share of the tokens of prompts that the prefix cache has already: 60%. Default: what --shared-prefix says.",
        check=None, in_receipt=False, group="workload",
    )]  # fmt: skip
    accepted_tokens: Annotated[float | str | None, PlanOption(
        "accepted", "N", "Tokens that a step adds to each sequence on average with speculative decoding: 2.4. Default: 1.",
        check=None, in_receipt=False, group="workload",
    )]  # fmt: skip


class _Priced(TypedDict, total=False):
    cost: Annotated[bool, PlanOption(
        "flag", "", "What it costs: dollars an hour and a month, of a million tokens and of a user. Said of an --instance anyway.",
        check=None, in_receipt=False, group="hardware",
    )]  # fmt: skip
    spot: Annotated[bool, PlanOption(
        "flag", "", "At prices of machines that may be taken away at any time. Default: prices on demand.",
        check="At prices of machines that may be taken away at any time.", in_receipt=False, group="hardware",
    )]  # fmt: skip
    price: Annotated[Mapping[str, object] | None, PlanOption(
        "pairs", "NAME=USD", "Your own price of a GPU, of several or of an instance: h100=2.50/h, 8xh100=9000/month. Repeatable.",
        check="Your own prices of a GPU, of several or of an instance: {h100: 2.50/h}.", in_receipt=False, group="hardware",
    )]  # fmt: skip
    prices: Annotated[str | None, PlanOption(
        "text", "FILE", "Your own table of prices: CSV with the columns provider, instance, accelerator_id, count, usd_per_hour, ...",
        check="Your own table of prices: CSV.", in_receipt=False, group="hardware",
    )]  # fmt: skip
    own: Annotated[str | None, PlanOption(
        "text", "N", "Accelerators that you own, which cost their power alone: 4xh100,8xl40s. Needs --kwh.",
        check="Accelerators that you own, which cost their power alone: 4xh100,8xl40s. Needs kwh.", in_receipt=False, group="hardware",
    )]  # fmt: skip
    kwh: Annotated[float | str | None, PlanOption(
        "dollars", "USD", "Dollars for a kWh of electricity: 0.15.", in_receipt=False, group="hardware",
    )]  # fmt: skip
    use: Annotated[Share, PlanOption(
        "share", "F", "Share of the time in which tokens are computed, for the price of a million: 60%. Default: 40%.",
        check="Share of the time in which tokens are computed, for the price of a million: 60%.", in_receipt=False, group="hardware",
    )]  # fmt: skip


class _Calibration(TypedDict, total=False):
    no_calibration: Annotated[bool, PlanOption(
        "flag", "", "Leave out what was measured on the user's machines (KVPLAN_NO_CALIBRATION=1 does the same).",
        check=None, in_receipt=False, group="hardware",
    )]  # fmt: skip


class _Measured(TypedDict, total=False):
    measured: Annotated[str | None, PlanOption(
        "measured", "M", "Take the mean of the expected speed with kernels that others measured: aiconfigurator. It needs --prompt.",
        complete="measured", check=None, in_receipt=False, group="workload",
    )]  # fmt: skip


class _Shared(TypedDict, total=False):
    policy_rules: Annotated[str | None, PlanOption(
        "policy rules", "R", "Whose rules a policy follows where they differ: kvpress or paper. Default: kvpress.",
        complete="policy_rules", check="Whose rules a policy follows where they differ: kvpress or paper.",
        in_reconciliation=True, group="workload",
    )]  # fmt: skip
    compaction: Annotated[str | None, PlanOption(
        "compaction", "C", "What a policy does with the blocks of a paged cache: repack, fill or none. Default: repack.",
        complete="compactions", check="What a policy does with the blocks of a paged cache: repack, fill or none.",
        in_reconciliation=True, group="workload",
    )]  # fmt: skip
    shared_prefix: Annotated[Count, PlanOption(
        "from zero", "N", "Tokens that all sequences begin with, kept once where the engine can. Default: 0.",
        check="Tokens that all sequences begin with, kept once where the engine can.", in_reconciliation=True, group="workload",
    )]  # fmt: skip
    lengths: Annotated[Sequence[int | str] | str | None, PlanOption(
        "lengths", "N,N",
        "Sequences of unlike lengths in place of --seq: 1k,2k,8k. Each length has an equal part of --users. Default: all are alike.",
        check="Unlike lengths in place of seq: 1k,2k,8k. Each has its share of batch.", group="workload",
    )]  # fmt: skip
    samples: Annotated[Number, _branches("Parallel samples")]
    beams: Annotated[Number, _branches("Beams")]


class _Assumed(TypedDict, total=False):
    assume: Annotated[str | None, PlanOption(
        "text", "TYPE",
        "Read an unknown architecture as a known type or as kinds of layers: gqa, deepseek_v32, mamba2+gqa. "
        "See: kvplan models --types. Every number is marked as assumed.",
        complete="assumptions",
        check="Read an unknown architecture as a known type or as kinds of layers: gqa, deepseek_v32, mamba2+gqa.",
        reads_model=True,
    )]  # fmt: skip


class _Dimensions(TypedDict, total=False):
    layers_of: Annotated[str | None, PlanOption(
        "text", "L", f"Layers by kind, in order, in place of MODEL: '{EXAMPLE_LAYERS}'.",
        check=None, in_receipt=False, reads_model=True,
    )]  # fmt: skip
    layers: Annotated[Count, _dimension("Number of layers.")]
    heads: Annotated[Count, _dimension("Query heads of a layer.")]
    kv_heads: Annotated[Count, _dimension("Key/value heads of a layer. Default: as many as query heads.")]
    head_dim: Annotated[Count, _dimension("Width of a head.")]
    hidden_size: Annotated[Count, _dimension("Width of the hidden states.")]
    intermediate_size: Annotated[Count, _dimension("Width of the MLP.")]
    vocab_size: Annotated[Count, _dimension("Size of the vocabulary.")]
    parameters: Annotated[
        Count, _dimension("Parameters for the weights: 70B.", "parameters", "Without MODEL: the bare equation.")
    ]


class _Revision(TypedDict, total=False):
    revision: Annotated[
        str | None, PlanOption("text", "R", "Branch, tag or commit of the model.", in_receipt=False, reads_model=True)
    ]


class _Hub(TypedDict, total=False):
    offline: Annotated[bool, _hub("flag", "", "Use no network (HF_HUB_OFFLINE=1 does the same).")]
    token: Annotated[
        str | None, _hub("secret", "T", "Token for the Hub. Default: HF_TOKEN, or the login that hf auth login stored.")
    ]
    endpoint: Annotated[str | None, _hub("text", "URL", "Address of the Hub. Default: HF_ENDPOINT, or https://huggingface.co.")]


class PlotOptions(
    _Batch, _Dtype, _NamesOfBatch, _NamesOfSeq, _Weights, _Engine, _Gpu, _Gpus, _Ram, _Instance, _Tp, _Layout, _Utilization, _KvMemory, _Margin, _Loaded, _Encoder,
    _EngineOptions, _Prompt, _Policy, _Shared, _Assumed, _Priced, _Calibration, _Dimensions, _Revision, _Hub, total=False,
):  # fmt: skip
    """All options of a plan but the length, of which a picture has many."""


class PlanOptions(_Load, _AvgSeq, PlotOptions, _Within, _Measured, total=False):
    """All options of a plan."""


class _OfSeveral(
    _NamesOfBatch, _NamesOfSeq, _Gpus, _Layout, _Utilization, _KvMemory, _Margin, _Loaded, _Encoder, _EngineOptions, _Prompt, _Within, _Calibration, _Shared, _Assumed,
    _Dimensions, _Revision, _Hub, total=False,
):  # fmt: skip
    pass


class CompareOptions(_Ram, _Priced, _OfSeveral, total=False):
    """Options that have the same value in all plans of a comparison."""


class SweepOptions(_Weights, _Engine, _Instance, _OfSeveral, total=False):
    """Options that have the same value in all plans of a sweep."""


class RecommendOptions(
    _Load, _Weights, _Engine, _Utilization, _Margin, _Loaded, _Encoder, _EngineOptions, _Prompt, _Within, _Priced, _Calibration, _Policy, _Shared,
    _Assumed, _Dimensions, _Revision, _Hub, total=False,
):  # fmt: skip
    """Options of a plan that name no hardware."""


class ReconcileOptions(
    _Load, _Weights, _Gpu, _Gpus, _Instance, _Tp, _Layout, _Utilization, _KvMemory, _Loaded, _Encoder, _EngineOptions, _Prompt,
    _Policy, _Shared, _Assumed, _Revision, _Hub, total=False,
):  # fmt: skip
    """Options of a plan that replace what a log states, or add to it."""


class FitOptions(
    _Load,
    _Weights,
    _Engine,
    _Gpu,
    _Gpus,
    _Ram,
    _Utilization,
    _Margin,
    _EngineOptions,
    _Prompt,
    _Within,
    _Calibration,
    total=False,
):
    """Options of a plan that many models share on one kind of GPU."""


class SpeedOptions(
    _Dtype, _Weights, _Engine, _Gpu, _Gpus, _Instance, _Tp, _Layout, _Utilization, _KvMemory, _Margin, _Loaded, _EngineOptions, _Assumed,
    _Dimensions, _Revision, _Hub, total=False,
):  # fmt: skip
    """Options of a plan besides its load."""


class SwapOptions(
    _Load, _Weights, _Engine, _Gpu, _Gpus, _Instance, _Tp, _Layout, _Utilization, _Margin, _Loaded, _EngineOptions, _Calibration, _Assumed,
    _Hub, total=False,
):  # fmt: skip
    """Options of a plan that models on one node have in common."""


class StrategiesOptions(
    _Load, _Weights, _Engine, _Gpu, _Encoder, _EngineOptions, _Prompt, _Assumed, _Dimensions, _Revision, _Hub, total=False
):
    """Options of a plan by which ways of allocation differ, or that say how the model is read."""


class SimulateOptions(
    _Load, _Weights, _Engine, _Gpu, _Gpus, _Instance, _Tp, _Layout, _Utilization, _KvMemory, _Loaded, _EngineOptions, _Assumed, _Revision,
    _Hub, total=False,
):  # fmt: skip
    """Options of a plan that say what is started; the requests come from a workload."""


class ExploreOptions(
    _Load, _Weights, _Engine, _Gpus, _Tp, _Utilization, _Margin, _Encoder, _Priced, _Assumed, _Dimensions, _Revision, _Hub, total=False,
):  # fmt: skip
    """Options of a plan that are chosen when a page opens, that all its states have, or that say how models are read."""


OPTIONS: Final[tuple[PlanOption, ...]] = tuple(
    replace(hint.__metadata__[0], name=name)
    for name, hint in PlanOptions.__annotations__.items()
    if isinstance(hint.__metadata__[0], PlanOption)
)
"""All options of a plan, in the order of the help."""
OTHER_NAMES: Final[Mapping[str, str]] = {
    name: row.name
    for row in OPTIONS
    if len(row.flags) > 1
    for flag in row.flags
    if (name := flag.removeprefix("--").replace("-", "_")) != row.name
}
"""Another name of an option, as a keyword or a key of a check file -> its name."""
ROWS: Final = {row.name: row for row in OPTIONS}
KvplanError.keywords |= frozenset(ROWS)
WITHIN: Final = tuple(name for name in _Within.__annotations__ if name in ROWS)
"""The options that limit how long a request may take, and say how many arrive."""
PRICED: Final = tuple(_Priced.__annotations__)
"""The options by which a plan says what it costs."""
DIMENSIONS: Final = tuple(_Dimensions.__annotations__)
"""The options that describe a model by its dimensions. Without a MODEL they are the bare equation."""
OF_POLICY: Final = ("policy_rules", "compaction")
"""Options that say something of the policy, and need one."""
LIMITS: Final = ("kv_memory", "memory_utilization", "margin")
"""Options that limit the memory of the cache."""
HOST_MEMORY: Final = "host_memory"
"""The engine option that ``ram`` is, for engines that leave a part of a model to the host."""
_OF_PLAN: Final = frozenset({*_AvgSeq.__annotations__, *_Measured.__annotations__})
_PLAIN: Final = [name for name in ROWS if name not in {*DIMENSIONS, *PRICED, *_OF_PLAN}]
_SIMULATED: Final = [name for name in SimulateOptions.__annotations__ if name not in ("batch", *_NamesOfBatch.__annotations__)]
COMMANDS: Final[Mapping[str, Collection[str]]] = {
    "plan": ROWS,
    "explain": [name for name in ROWS if name not in PRICED],
    "diff": _PLAIN,
    "compare": CompareOptions.__annotations__,
    "sweep": SweepOptions.__annotations__,
    "plot": [name for name in ROWS if name not in {*_OF_PLAN, *WITHIN, "cost", "use"}],
    "recommend": RecommendOptions.__annotations__,
    "reconcile": {**ReconcileOptions.__annotations__, "engine": None},
    "probe": [name for name in _PLAIN if name not in WITHIN],
    "fit": FitOptions.__annotations__,
    "speed": SpeedOptions.__annotations__,
    "disaggregate": [name for name in ROWS if name not in {*PRICED, *_Measured.__annotations__}],
    "strategies": StrategiesOptions.__annotations__,
    "swap": SwapOptions.__annotations__,
    "explore": ExploreOptions.__annotations__,
    "simulate": _SIMULATED,
    "tune": [name for name in _SIMULATED if name not in ("gpu", "instance", "tp", "dtype")],
    "check": _Hub.__annotations__,
    "fleet": ("spot", "price", "prices", *_Hub.__annotations__),
}
"""Command -> the options of which it takes one value. Of others it takes a list, where their rows say so."""


def options_of(command: str) -> tuple[PlanOption, ...]:
    """The options that a command takes."""
    return tuple(row for row in OPTIONS if row.name in COMMANDS[command] or command in row.lists)


F = TypeVar("F", bound=Callable[..., Any])


def takes(options: Any) -> Callable[[F], F]:
    """A decorator for functions with ``**options: Unpack[options]``, which spells each keyword in what :mod:`inspect` tells of them.

    So notebooks complete them, ``help()`` shows their defaults, and pydantic's ``validate_call`` checks them.
    """

    def spelled(function: F) -> F:
        from inspect import Parameter, signature

        hints = {name: hint.__origin__ for name, hint in options.__annotations__.items()}
        own = signature(function)
        parameters = [one for one in own.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        for name, hint in hints.items():
            default = None if name in OTHER_NAMES else False if ROWS[name].type == "flag" else ROWS[name].default
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint))
        vars(function)["__signature__"] = own.replace(parameters=parameters)
        hints |= {name: hint for name, hint in function.__annotations__.items() if name != "options"}
        function.__annotations__ = hints
        return function

    return spelled


def with_policy(options: Mapping[str, Any], policy: "Chosen | None", policies: "Sequence[Chosen | None]") -> dict[str, Any]:
    """The options of one variant where a list of policies is compared.

    They are with its policy, or, for the variant without one, without the options that only policies have.
    """
    if policy is not None:
        return {**options, "policy": policy}
    return {name: value for name, value in options.items() if name not in OF_POLICY or not any(policies)}
