"""Words of every report of a plan: model and request, figures, devices, layers, notes, what would help and how to start it.

Below a table of several models stands whose numbers follow from a config that is not as published, or is not understood.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from hwcalc.engines import DEFAULT, find_engine
from hwcalc.engines.facts import Command
from hwcalc.engines.pool import Try
from hwcalc.engines.runs_on import runs_today, usual_server
from hwcalc.errors import KvplanError
from hwcalc.formulas import LayerNumbers, Role
from hwcalc.formulas.record import Record
from hwcalc.formulas.tensor import Full, Kept, Strided
from hwcalc.hardware.named import MEMORY_OPTION
from hwcalc.library.layer_bytes import beside_title, kind_title, stored
from hwcalc.model import DEFAULT_WEIGHTS, LIBRARY_WEIGHTS, NO_WEIGHTS, Note
from hwcalc.planner.options import HOST_MEMORY
from hwcalc.planner.planned_weights import AS_PUBLISHED, WeightsInfo
from hwcalc.planner.published import NO_SMALLER
from hwcalc.planner.result import NO_VERDICT, LayerInfo, Plan, TensorInfo
from hwcalc.planner.verdict import layout_text
from hwcalc.report.text import abbreviated, escaped, exact, filled, parameters, plural
from hwcalc.report.verdict import fullest_ends, span_text, unit_of
from hwcalc.report.view import View
from hwcalc.text import LONGEST_WORD, TIMES, clean, cut, printable
from hwcalc.units import human_bytes

# The dimensions by which people compare models, and how they are printed; ``explain`` has the others.
_SPOKEN: Final = {
    "num_attention_heads": "{} heads",
    "num_key_value_heads": "{} KV heads",
    "head_dim": "head_dim {}",
    "v_head_dim": "v_head_dim {}",
    "kv_lora_rank": "kv_lora_rank {}",
    "qk_rope_head_dim": "rope {}",
    "window": "window {}",
    "chunk": "chunk {}",
    "sink": "sink {}",
    "compress_ratio": "compress_ratio {}",
    "index_head_dim": "index_head_dim {}",
}
_SOURCES: Final = {
    "catalog": "built-in catalog",
    "user": "the user's own profiles",
    "hub": "Hugging Face Hub",
    "hf-cache": "Hugging Face cache",
    "local": "local file",
    "gguf": "GGUF file",
    "stdin": "standard input",
    "python": "Python",
    "options": "the dimensions that were given",
}
_DEFINITIONS: Final = {
    "exact": "exact: the formulas, nothing that an engine adds",
    "reconstructed": "RECONSTRUCTED: the catalog's config is no copy of the published file, see kvplan help reconstructed",
    "published": "published: by the rules of a paper, whose code was not run",
    "assumed": "ASSUMED: depends on the assumptions in the notes",
}
"""Meanings of a number's definition."""
_OF_ONE_MODEL: Final = {**_DEFINITIONS, "reconstructed": "reconstructed: see the note"}
"""The same beside the numbers of one plan, whose notes say the rest."""
_UNDER_POLICY: Final = {
    "engine": "engine: what the code of the policy leaves",
    "estimate": "estimate: at the most; the text decides",
}


def model_lines(plan: Plan) -> tuple[str, str, str]:
    """The model's id; its type and parameters; its layers and heads."""
    model = plan.model
    about = clean(cut(model.model_type, LONGEST_WORD))
    if model.parameters.total is not None:
        counted, used = model.parameters.total, model.parameters.active
        whole = parameters(counted)
        # Both are billions in most models: said once.
        active = (
            ""
            if used is None or used == counted
            else f", {parameters(used).removesuffix(whole.partition(' ')[2]).rstrip()} active"
        )
        about += f" · {whole} parameters{active} ({model.parameters.definition})"
        if model.parameters.mtp:
            about += f" + {parameters(model.parameters.mtp)} for multi-token prediction"
    counts: dict[str, int] = {}
    for layer in model.layers:
        counts[layer.kind] = counts.get(layer.kind, 0) + layer.count
    everything = {number for layer in model.layers for number in layer.layers}
    kinds = ", ".join(f"{count:,} {kind_title(kind)}" for kind, count in counts.items())
    # The dimensions of the attention layers; a range if layers differ.
    attention = [layer.dims for layer in model.layers if "num_attention_heads" in layer.dims or "index_head_dim" in layer.dims]
    spoken = []
    for name, words in _SPOKEN.items():
        values = sorted({int(dims[name]) for dims in attention if name in dims})
        if name == "v_head_dim" and all(dims.get("head_dim", dims.get(name)) == dims.get(name) for dims in attention):
            continue
        if values:
            low, high = f"{values[0]:,}", f"{values[-1]:,}"
            said = words.format(low if low == high else f"{low} or {high}" if len(values) == 2 else f"{low} to {high}")
            spoken.append(said.removesuffix("s") if said in ("1 heads", "1 KV heads") else said)
    shape = " · ".join(filter(None, (f"{plural(len(everything), 'layer')}: {kinds}", ", ".join(spoken))))
    return clean(cut(model.id, LONGEST_WORD)), about, shape


def request_lines(plan: Plan) -> list[str]:
    """Engine, length, batch, formats of weights and cache, the prompt, what is dropped of the cache, what sequences have in common, and other options.

    Where the name of a machine leaves open which it is, a second line says which is planned.
    """
    request = plan.request
    # Of unlike sequences the lengths, of which each has its share of them.
    tokens = f"{' or '.join(f'{one:,}' for one in request.lengths)} tokens" if request.lengths else plural(request.seq, "token")
    parts = [f"engine {' '.join(filter(None, (request.engine, request.engine_version)))}"]
    weights = weights_text(plan.memory.weights)
    parts += [f"{tokens} {TIMES} {plural(request.batch, unit_of(request))}", *([f"weights {weights}"] if weights else [])]
    parts.append(f"KV dtype {request.kv_dtype}")
    parts += filter(None, [layout_text(request)])
    parts += [] if request.state_dtype is None else [f"state dtype {request.state_dtype}"]
    parts += [] if request.encoder_seq is None else [plural(request.encoder_seq, "encoder token")]
    parts += [] if request.prompt is None else [f"prompt of {plural(request.prompt, 'token')}"]
    if request.policy is not None:
        parts.append(f"policy {clean(cut(request.policy, LONGEST_WORD))}")
        parts += [] if request.policy_rules in (None, "kvpress") else [f"rules of the {request.policy_rules}"]
        parts += [] if request.compaction in (None, "repack") else [f"compaction {request.compaction}"]
    parts += [] if request.shared_prefix is None else [f"{plural(request.shared_prefix, 'token')} shared by all"]
    several = (("samples", request.samples), ("beams", request.beams))
    parts += [f"{number:,} {name} of each" for name, number in several if number > 1]
    parts += [f"{_typed(name, clean(cut(value, LONGEST_WORD)))}" for name, value in request.options.items()]
    # Which machine it is, where the name leaves that open, bears on all that follows.
    return [" · ".join(parts), *(clean(note.message) for note in plan.notes if note.code == MEMORY_OPTION)]


def weights_text(weights: WeightsInfo) -> str:
    """The planned format of the weights, and in brackets what most bytes of published ones are in; empty where they are not known."""
    sizes = Counter[str]()
    for part in weights.parts:
        for form in part.formats:
            sizes[form.format] += form.bytes
    mostly = f" ({max(sizes, key=sizes.__getitem__)})" if sizes and weights.format == AS_PUBLISHED else ""
    return f"{weights.format}{mostly}"


def _typed(name: str, value: str) -> str:
    """An engine option as it is typed. ``--ram`` names a memory as it is sold, in GB of 2^30 bytes."""
    size = value.removesuffix("GiB")
    return f"ram={size}GB" if name == HOST_MEMORY and size != value else f"{name}={value}"


def source_line(plan: Plan) -> str:
    """The config's origin and its revision."""
    model = plan.model
    words = _SOURCES.get(model.source, model.source)
    location = clean(cut(model.location, LONGEST_WORD))
    where = location if words.lower() in location.lower() else f"{words}, {location}" if location else words
    return f"config from {where}" + (f", revision {clean(model.revision)}" if model.revision else "")


def definition(plan: Plan) -> str:
    """Words for what the numbers are: exact, an engine's, assumed."""
    engine = " ".join(filter(None, (plan.request.engine, plan.request.engine_version)))
    if plan.policy is not None and plan.policy.layers and not plan.policy.offered:
        return f"ASSUMED: {engine} lacks the policy; this is if it had it"
    if plan.policy is not None and plan.policy.layers and plan.cache.definition in _UNDER_POLICY:
        return _UNDER_POLICY[plan.cache.definition]
    return _OF_ONE_MODEL.get(plan.cache.definition, f"{plan.cache.definition}: what {engine} stores")


def figures(plan: Plan) -> list[tuple[str, int, str]]:
    """The headline numbers, smallest scope first: name, bytes and meaning of each."""
    cache, request, memory = plan.cache, plan.request, plan.memory
    out = [("per token", cache.bytes_per_token, _growth(plan))]
    if cache.state_bytes_per_sequence:
        out.append(("fixed state", cache.state_bytes_per_sequence, "per sequence, whatever its length"))
    copies = ""
    if cache.copied_bytes:
        copied = human_bytes(cache.copied_bytes * cache.bytes_per_sequence // cache.total_bytes)
        copies = f"; {copied} are copies on {request.tp:,} ranks"
    longest = "the longest, " if request.lengths else ""
    out.append(("per sequence", cache.bytes_per_sequence, f"{longest}{plural(request.seq, 'token')}{copies}"))
    out.append(("total", cache.total_bytes, plural(request.batch * request.samples * request.beams, "sequence")))
    if plan.policy is not None:
        out.append(("no policy", plan.policy.full_bytes, "the same with every token kept"))
    if plan.sharing is not None and plan.sharing.saved_bytes:
        out.append(("not shared", plan.sharing.unshared_bytes, "the same with every sequence by itself"))
    weights = memory.weights
    if weights.bytes is not None and memory.total_bytes is not None:
        out.append(("weights", weights.bytes, f"{weights.definition}: {clean(weights.source)}"))
        if memory.loaded_bytes is not None and memory.loaded_bytes != weights.bytes and not memory.devices:
            out.append(("loaded", memory.loaded_bytes, _loaded(plan)))
        of_gpu = _gpu_figures(plan)
        out += of_gpu or [("weights + cache", memory.total_bytes, "without activations and overhead")]
    return out


def _loaded(plan: Plan) -> str:
    """Words for what the engine makes of the weights: the parts on the fullest GPU, where a GPU is planned."""
    fit, gpus = plan.fit, plan.request.tp * plan.request.pp * plan.request.dp
    budget = None if fit is None else fit.budget
    parts = () if budget is None else tuple(part for part in budget.parts if part.section == "weights")
    where = f"on all {gpus:,} GPUs" if gpus > 1 else "on the GPU"
    named = ", ".join(f"{part.name} {human_bytes(part.expected)}" for part in parts)
    if not named:
        return f"the weights {where}"
    return f"{where}; the fullest: {named}" if gpus > 1 else f"{where}: {named}"


def _growth(plan: Plan) -> str:
    """Words for the bytes per token: the growth of the cache by the very next token, by the formulas."""
    strides = sorted({tensor.span.numbers[0] for tensor in plan.cache.tensors if isinstance(tensor.span, Strided)})
    if strides:
        every = " and ".join(f"{stride:,}" for stride in strides)
        return f"the next token of a sequence; some layers add an entry only every {every} tokens"
    if not plan.cache.bytes_per_token:
        return "no layer grows at this length" if plan.policy is None else "the next token adds nothing: the policy drops as many"
    by = "" if plan.request.engine == DEFAULT else ", by the formulas"
    which = "each further token of a sequence" if plan.policy is None else "the next token of a sequence, under the policy"
    return f"{which}{by}"


def _gpu_figures(plan: Plan) -> list[tuple[str, int, str]]:
    """Activations, overhead, and the total of a GPU and of the host; empty without hardware."""
    memory, fit = plan.memory, plan.fit
    if memory.activations is None or memory.overhead is None or fit is None:
        return []
    divided = len(memory.devices) > 1
    everywhere = "GPU and host; " if divided else f"on all {fit.gpus:,} GPUs; " if fit.gpus > 1 else ""
    out = []
    for name, part in (("activations", memory.activations), ("overhead", memory.overhead)):
        if part.definition == "measured":
            meaning = "measured on this machine"
        elif part.low == part.high == part.bytes:
            meaning = "what the engine sets aside" if part.bytes else "nothing is set aside"
        else:
            meaning = f"{part.definition}: {human_bytes(part.low)} to {human_bytes(part.high)}"
        out.append((name, part.bytes, everywhere + meaning))
    if memory.per_gpu.total is not None and (divided or not memory.devices):
        fullest = f"the fullest of {fit.gpus:,} GPUs" if fit.gpus > 1 else "of the one GPU"
        meaning = f"{fullest}: {span_text(*fullest_ends(fit)[0])}"
        out.append(("per GPU", memory.per_gpu.total, meaning))
    if memory.devices:
        host = memory.devices[-1]
        out.append(("host memory", host.total, f"{human_bytes(host.total_low)} to {human_bytes(host.total_high)}"))
    return out


def start_lines(plan: Plan) -> list[tuple[str, str, str]]:
    """Commands that start a plan that fits, each with its label and a remark, or why there is none; nothing without a GPU or an engine."""
    if plan.fit is None or plan.fit.gpu is None or plan.refutes or plan.request.engine == DEFAULT:
        return []
    from hwcalc.report.emit import commands_to_start

    return commands_to_start(plan)


def ask_line(plan: Plan, command: str) -> tuple[str, str] | None:
    """The command that asks whether the plan fits, and what else helps; with hardware, what a server holds; ``None`` if nothing would be said."""
    if command and plan.fit is not None:
        return _ask_server(plan, command)
    if not command or any(note.code == NO_VERDICT for note in plan.warnings):
        return None
    unweighed = any(note.code == NO_WEIGHTS for note in plan.notes)
    if plan.memory.weights.bytes is None and not unweighed:
        # A GPU alone would bring no verdict.
        return None
    guessed = _usual_parameters(plan) if unweighed else 0
    number = f"{guessed / 10**9:.2g}B" if guessed >= 10**9 else f"{guessed / 10**6:.2g}M"
    if unweighed:
        command = f"{command} --parameters {number}"
    change = f", with {number} parameters: give your own number" if unweighed else ""
    from hwcalc.hardware.local import gpu_in_sight

    if gpu_in_sight():
        return f"{command} --gpu local", f"whether it fits this machine's GPU{change}"
    from hwcalc.profiles.gpus import EXAMPLES, example_gpu

    request, memory = plan.request, plan.memory
    ranks = request.tp * request.pp * request.dcp
    if find_engine(request.engine)[0].facts.splits_layers and ranks == 1:
        helps = f"whether it fits, how many layers, and what to type{change}; a Mac: m4-24gb; no GPU: cpu-32gb"
        return f"{command} --gpu {_AT_HOME}", helps
    needed = plan.cache.total_bytes if memory.total_bytes is None else memory.total_bytes
    needed += 2 * guessed  # in 16 bits
    name, count = example_gpu(needed, ranks) or (EXAMPLES[-1][0], ranks)
    several = f" --gpus {count}" if count > ranks else ""
    return f"{command} --gpu {name}{several}", f"whether it fits{change}; other hardware: kvplan gpus"


def _usual_parameters(plan: Plan) -> int:
    """12 x layers x width², as many as dense layers usually have (Kaplan et al. 2020, arXiv:2001.08361), of the widest heads.

    40 layers of 40 heads of 128: 12 x 40 x 5,120² = 12.6 billion. 8 billion where no layer has heads.
    """
    width = max((one.dims.get("num_attention_heads", 0) * one.dims.get("head_dim", 0) for one in plan.model.layers), default=0)
    return 12 * sum(one.count for one in plan.model.layers) * width**2 or 8 * 10**9


def _ask_server(plan: Plan, command: str) -> tuple[str, str] | None:
    """The command that plans a server where the user named none; ``None`` where it does not fit, or no server is known to run there."""
    fit, request = plan.fit, plan.request
    if fit is None or fit.gpu is None or not fit.fits or request.engine != DEFAULT or " --engine " in f"{command} ":
        return None
    if plan.policy is not None or request.encoder_seq is not None:
        return None
    from hwcalc.hardware.named import gpu_named

    with suppress(KvplanError):
        gpu = gpu_named(fit.gpu)
        usual = usual_server(gpu)
        for name, does in sorted(_SERVERS.items(), key=lambda server: server[0] != usual):
            if runs_today(name, gpu):
                return f"{command} --engine {name}", f"what a server holds: {find_engine(name)[0].label} {does}"
    return None


_SERVERS: Final = {"vllm": "reserves more than the formulas", "llamacpp": "has its own rules for the cache"}
"""Servers to plan next, the usual one or the first that runs there, and why its numbers differ."""
_AT_HOME: Final = "rtx-4060-ti"
"""A card for engines that people run at home: what does not fit it stays in host memory."""

DEVICE_HEADER: Final = ("device", "layers", "weights", "cache", "activations", "overhead", "total")


def device_rows(plan: Plan, *, full: bool) -> list[tuple[str, ...]]:
    """A row for each device: its layers, and its bytes; in full all digits."""
    size = exact if full else human_bytes
    rows = []
    for one in plan.memory.devices:
        layers, experts = (numbers.text if full else abbreviated(numbers.text) for numbers in (one.layers, one.experts))
        held = [layers, "output" if one.output else "", f"experts of {experts}" if one.experts else ""]
        held.append("input" if one.device == "host" else "")
        sizes = (size(number) if number else "-" for number in (one.weights, one.cache, one.activations, one.overhead))
        rows.append((one.device, ", ".join(filter(None, held)) or "-", *sizes, size(one.total)))
    return rows


class LayerShare(Record):
    """The bytes of all layers of one kind with one length rule, for the whole batch."""

    title: str
    count: int
    layers: LayerNumbers
    rule: str
    dtypes: str
    bytes: int


def shares(plan: Plan) -> list[LayerShare]:
    """Layers grouped by kind and by how many positions they keep."""
    layers = stored(plan)
    # The numbers of tokens that a policy leaves in layers, from the least to the most.
    spans = {tensor.span for _, tensors in layers for tensor in tensors if isinstance(tensor.span, Kept)}
    kept = sorted(span.numbers[0] for span in spans)
    groups: dict[tuple[str, str], list[tuple[LayerInfo | None, tuple[TensorInfo, ...]]]] = {}
    for layer, tensors in layers:
        kind = layer.kind if layer is not None else "model"
        groups.setdefault((kind, _rule(tensors, kept)), []).append((layer, tensors))
    out = []
    for (kind, rule), members in groups.items():
        every = [tensor for _, tensors in members for tensor in tensors]
        out.append(
            LayerShare(
                title=kind_title(kind) if kind != "model" else beside_title(every),
                count=sum(layer.count for layer, _ in members if layer is not None),
                layers=LayerNumbers(sorted({number for layer, _ in members if layer is not None for number in layer.layers})),
                rule=rule,
                dtypes=", ".join(dict.fromkeys(tensor.dtype for tensor in every if not is_room(tensor))),
                bytes=sum(tensor.bytes for tensor in every),
            )
        )
    return out


def _rule(tensors: tuple[TensorInfo, ...], kept: list[int]) -> str:
    """The positions that the tensors keep: growing tensors first, then fixed state. ``kept`` are the numbers that a policy leaves."""
    if not tensors:
        return "nothing kept"
    fixed = {Role.STATE, Role.CONV}
    words = []
    for span in dict.fromkeys(tensor.span for tensor in tensors if tensor.role not in fixed and not is_room(tensor)):
        if isinstance(span, Kept) and len(kept) > _ALIKE:
            words.append(f"{kept[0]:,} to {kept[-1]:,} kept of n")
        else:
            words.append("every token" if isinstance(span, Full) or span.text == "n" else span.text)
    if any(tensor.role in fixed for tensor in tensors):
        words.append("fixed state")
    return " + ".join(dict.fromkeys(words))


_ALIKE: Final = 3
"""Lengths that a policy leaves in layers are told apart up to so many."""


def is_room(tensor: TensorInfo) -> bool:
    """True for bytes of blocks and of nothing in particular: neither a number of positions nor a dtype says anything of them."""
    return tensor.axes == ("bytes",)


FEW_NOTES: Final = 3
# Codes of notes whose subject changes the numbers most, and of those that name a default of ours.
_WEIGHTY: Final = frozenset(
    {
        "assumed", "unread-keys", "hub-unreachable", "user-profile", "unpinned", "version-unknown", "weights-unknown",
        "weights-approximate", "weights-unchecked", "budget-unknown", "gpu-memory-unknown", "gguf-not-read", "metal-limit",
        "no-own-cache", "encoder-only", "text-only", "per-replica", "dtype-ignored", "local-gpu", "instance", "needs-checkpoint", "shorter-context", LIBRARY_WEIGHTS,
        DEFAULT_WEIGHTS, NO_SMALLER,
    }
)  # fmt: skip
_INSTEAD: Final = {"hub-unreachable": "gguf-not-read"}
"""Notes that matter less where another one says what came of it."""
_DEFAULTS: Final = ("default-seq", "default-encoder-seq", "default-dtype", "default-gpu", "default-margin")


def hints_of(plan: Plan) -> list[str]:
    """Sentences on other ``--weights`` that stand beside the answer.

    They are about a format that makes nothing smaller, and about the checkpoint's own weights where these do not fit on the GPU.
    """
    if plan.fit is None:
        return []
    too_large = plan.refutes or plan.partly_on_host
    # How such a plan starts may say it already.
    known = not too_large or any("--weights" in remark for *_, remark in start_lines(plan))
    codes = {NO_SMALLER, *(() if known else (DEFAULT_WEIGHTS, LIBRARY_WEIGHTS))}
    return [clean(note.message) for note in plan.notes if note.code in codes]


def notes_of(plan: Plan, *, full: bool = False, hinted: bool = False) -> tuple[list[str], int]:
    """The notes, the most important first, and how many more there are. ``full`` gives all of them.

    With ``hinted``, the sentences of :func:`hints_of` stand elsewhere.
    """
    stated = {note.code for note in plan.notes}

    def rank(note: Note) -> int:
        if note.code in _WEIGHTY and not stated >= {note.code, _INSTEAD.get(note.code)}:
            return 0
        return 2 + _DEFAULTS.index(note.code) if note.code in _DEFAULTS else 1

    # The head has the sizes of memory.
    others = sorted((note for note in plan.notes if note.code != MEMORY_OPTION), key=rank)
    texts = [*(clean(note.message) for note in others), source_line(plan)]
    hints = hints_of(plan) if hinted else []
    texts = [text for text in texts if text not in hints]
    few = len(texts) if full or len(texts) <= FEW_NOTES + 1 else FEW_NOTES
    return texts[:few], len(texts) - few


def advice_command(one: Try) -> str:
    """The command of a change, which is one line however long, so that it can be pasted; the engine's own flags where only it is told."""
    return one.command or clean(one.flag)


def advice_pair(one: Try, engine: str) -> tuple[str, str]:
    """The command of a change; what it gives, and the engine's own flags where they are not the words of the command."""
    rules = find_engine(engine)[0]
    own = one.flag if one.command and type(rules.command).flag is not Command.flag else ""
    again = "give the config again: < FILE" if one.command.startswith("kvplan - ") else ""
    return advice_command(one), clean(" · ".join(filter(None, (one.effect, own and f"{rules.label}: {own}", again))))


def advice_items(suggestions: Iterable[Try], engine: str) -> str:
    """The same of several, as a list in Markdown."""
    pairs = [advice_pair(one, engine) for one in suggestions]
    return "".join(f"- try: {code(command)}\\\n  {escaped(about)}\n" for command, about in pairs)


def code(text: str) -> str:
    """``text`` as code in Markdown, whatever quotes it has."""
    fence = "`" * (1 + max((len(run) for run in "".join(c if c == "`" else " " for c in text).split()), default=0))
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{printable(text)}{pad}{fence}"


_MOST: Final = 5
"""Models that are named; JSON and CSV have the definition of each."""


def footnotes(named: Iterable[tuple[str, str | None]], view: View) -> str:
    """A line for each definition that needs one with the models that have it, from pairs of model and definition.

    Empty if all are as published.

    >>> print(footnotes([("a/b", "reconstructed"), ("a/c", "exact"), ("a/b", "reconstructed")], View()), end="")
    RECONSTRUCTED: the catalog's config is no copy of the published file, see kvplan help reconstructed (a/b)
    """
    models: dict[str, dict[str, None]] = {"reconstructed": {}, "assumed": {}}
    for model, definition in named:
        if definition in models:
            models[definition][model] = None
    out = ""
    for definition, those in models.items():
        if those:
            more = f" and {len(those) - _MOST:,} more" if len(those) > _MOST else ""
            text = clean(f"{_DEFINITIONS[definition]} ({', '.join(list(those)[:_MOST])}{more})")
            out += f"{escaped(text) if view.format == 'markdown' else filled(text, view.width)}\n"
    return out
