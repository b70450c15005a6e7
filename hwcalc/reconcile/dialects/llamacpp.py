"""The log of llama.cpp, of programs that run it (Ollama among them) and of ik_llama.cpp, and its buffers compared with the plan's.

llama.cpp states each buffer when it makes it, in MiB with two decimals, by device and kind: ``CUDA0 KV buffer size = 1024.00 MiB``. At the
end it prints a table in whole MiB. Names before the colon have changed over the years (``llm_load_tensors``, ``llama_new_context_with_model``,
``llama_kv_cache_unified_iswa``), so they are not looked at. Ollama's own engine writes ``msg="kv cache" device=CUDA0 size="1.0 GiB"``.
Caches and states are compared exactly, weights by tensors, compute buffers within their estimate. Several GPUs are compared together, since
no line says what was free on each. Source: llama.cpp 0c1e57098 src/llama-model.cpp, llama-context.cpp, llama-kv-cache.cpp,
llama-memory-recurrent.cpp, common/fit.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from hwcalc.engines.devices import DeviceShare, Placement
from hwcalc.engines.llamacpp.layers import divided
from hwcalc.engines.llamacpp.layout import Layout
from hwcalc.engines.llamacpp.occupancy import LlamacppOccupancy
from hwcalc.engines.memory import BudgetPart
from hwcalc.formulas import Role
from hwcalc.model import Note
from hwcalc.reconcile.dialects.dialect import Dialect
from hwcalc.reconcile.facts import BINARY, Fact, Facts, PrintedNumber, Range, Row, compared, number_after, number_at, spread
from hwcalc.units import GIB, MIB

_LONGEST: Final = 4096
_MOST_CACHES: Final = 64
_BUFFERS: Final[Mapping[str, str]] = {
    "model buffer size": "model_bytes", "KV buffer size": "kv_bytes", "RS buffer size": "state_bytes",
    "state buffer size": "state_bytes", "compute buffer size": "compute_bytes", "output buffer size": "output_bytes",
}  # fmt: skip
"""What stands between the device and its size -> the name of the fact. ik_llama.cpp's ``CUDA0 buffer size`` is a model's."""
_BUFFER: Final = re.compile(
    r"([A-Za-z][A-Za-z0-9_]{0,30}(?:\[[^\]\s]{1,60}\])?) +(?:DSV4 [a-z]{1,8} )?((?:model |KV |RS |state |compute |output )?buffer size) *[:=]"
)
_KV_TOTAL: Final = re.compile(
    r"size = {0,8}[0-9.]{1,20} MiB \( *([0-9]{1,12}) cells, *([0-9]{1,4}) layers, *([0-9]{1,4})(?:/([0-9]{1,4}))? seqs"
)
_KV_TYPES: Final = re.compile(r"\bK \(([a-z0-9_]{2,8})\): *[0-9.]{1,20} MiB, V \(([a-z0-9_]{2,8})\)")
_SELF: Final = re.compile(r"KV self size *= *[0-9.]{1,20} MiB, (?:K|c\^KV) \(([a-z0-9_]{2,8})\)")
_RECURRENT: Final = re.compile(r"seqs *([0-9]{1,4}) rs_seq\)")
_OFFLOADED: Final = re.compile(r"offloaded ([0-9]{1,5})/([0-9]{1,5}) layers to GPU")
_SETTING: Final = re.compile(
    r"\b(n_seq_max|n_ctx|n_ctx_seq|n_ctx_per_seq|n_batch|n_ubatch|flash_attn|kv_unified|n_rs_seq|n_outputs_max|mla_attn) *= *([0-9A-Za-z]{1,12})\b"
)
_SETTING_LINES: Final = ("llama_context:", "llama_new_context_with_model:", "llama_init_from_model:")
_CONTEXT: Final = re.compile(r"(?:llama_new_context_with_model|llama_init_from_model): n_ctx +=")
"""Older releases do not announce a context."""
_DRY_RUN: Final = re.compile(r"no_alloc *= *1\b")
_KV_INIT: Final = re.compile(r"type_k = '([a-z0-9_]{2,8})', type_v = '([a-z0-9_]{2,8})'")
_BREAKDOWN: Final = re.compile(r"\|\s+- ([^|]{1,80}?)\s*\|")
_GPU_ROW: Final = re.compile(
    r"\| *([0-9]{1,9}) = +(-?[0-9]{1,20}) \+ \( *([0-9]{1,9}) = +([0-9]{1,9}) \+ +([0-9]{1,9}) \+ +([0-9]{1,9})\) \+ +(-?[0-9]{1,20})"
)
_HOST_ROW: Final = re.compile(r"\| +([0-9]{1,9}) = +([0-9]{1,9}) \+ +([0-9]{1,9}) \+ +([0-9]{1,9}) +\|")
_BUILD: Final = re.compile(r"\bbuild(?:_info)?: (?:b)?([0-9]{1,6})\b")
_OLLAMA: Final = re.compile(
    r'msg="(model weights|kv cache|compute graph|total memory)"(?: [a-z_]{1,20}=[^ "]{1,40})*? (?:device|buffer|backend)=([A-Za-z0-9:_.-]{1,40}) (?:buffer_type=[^ ]{1,40} )?size="([^"]{1,20})"'
)
_OLLAMA_NAMES: Final = {"model weights": "model_bytes", "kv cache": "kv_bytes", "compute graph": "compute_bytes"}
_OLLAMA_COMMAND: Final = re.compile(
    r"--(ctx-size|batch-size|ubatch-size|n-gpu-layers|gpu-layers|parallel|kv-cache-type|cache-type-k|cache-type-v) ([A-Za-z0-9_]{1,12})\b"
)
_OLLAMA_SETTINGS: Final = {
    "ctx-size": "n_ctx", "batch-size": "n_batch", "ubatch-size": "n_ubatch", "n-gpu-layers": "n_gpu_layers",
    "gpu-layers": "n_gpu_layers", "parallel": "n_seq_max", "cache-type-k": "type_k", "cache-type-v": "type_v",
}  # fmt: skip
_SWITCHES: Final = {"1": "on", "0": "off", "true": "on", "false": "off", "enabled": "on", "disabled": "off", "auto": "auto"}
_TABLE: Final = ("total_bytes", "free_bytes", "self_bytes", "model_sum_bytes", "context_sum_bytes", "compute_sum_bytes")


class LlamacppLog(Dialect):
    """Reads the log line by line. Of a start only the first model and its first context count: a draft model comes after them."""

    name = "llamacpp"
    title = "llama.cpp, ik_llama.cpp or Ollama"
    engine = "llamacpp"
    sought = (
        "CUDA0 KV buffer size =  1024.00 MiB",
        "CUDA0 model buffer size =  4403.49 MiB",
        "CUDA0 compute buffer size =   258.50 MiB",
        "offloaded 33/33 layers to GPU",
        "n_ctx_seq     = 8192",
    )

    def __init__(self) -> None:
        super().__init__()
        self._aside = False
        """Whether the lines are about something else: a dry run of ``--fit``, a draft model, a further context."""
        self._contexts = 0
        self._caches = 0
        self._told = False

    def feed(self, number: int, text: str) -> None:
        """Read one line."""
        text = text[:_LONGEST]
        self._stage(text)
        if "memory breakdown" in text or "|   - " in text:
            self._breakdown(number, text)
        elif self._aside:
            return
        elif "buffer size" in text:
            self._buffer(number, text)
        elif "MiB (" in text and " cells," in text:
            self._cache(number, text)
        elif "KV self size" in text:
            self._kv_self(number, text)
        elif "msg=" in text:
            self._ollama(number, text)
        elif "offloaded " in text:
            self._offloaded(number, text)
        elif any(name in text for name in _SETTING_LINES):
            self._settings(number, text)
        else:
            self._model(number, text)

    def _stage(self, text: str) -> None:
        """Notice a new start, a dry run, a second model and a second context."""
        built = _BUILD.search(text)
        if built is not None or 'msg="starting runner"' in text or 'msg="starting llama-server"' in text:
            if self._contexts:
                self.starts += 1
                self.facts.clear()
            self._aside, self._contexts, self._caches = False, 0, 0
        elif "loaded meta data with" in text:
            self._aside = self._contexts > 0
        elif "no_alloc" in text and _DRY_RUN.search(text):
            self._aside = True
        elif "constructing llama_context" in text or _CONTEXT.search(text):
            self._contexts += not self._aside
            self._aside = self._aside or self._contexts > 1

    def _buffer(self, number: int, text: str) -> None:
        found = _BUFFER.search(text)
        printed = None if found is None else number_at(text, found.end())
        if found is None or printed is None:
            return
        device, name = found[1], _BUFFERS.get(found[2], "model_bytes")
        if device == "LoRA" or "LoRA" in text:
            return
        rank = f"{device} {self._caches + 1}" if name in ("kv_bytes", "state_bytes") and self._caches < _MOST_CACHES else device
        self.facts.add_bytes(name, printed, line=number, text=text, rank=rank)

    def _cache(self, number: int, text: str) -> None:
        """The sum of one cache over all devices, behind the lines of its buffers."""
        found = _KV_TOTAL.search(text)
        size = number_after(text, "size =")
        if found is None or size is None or self._caches >= _MOST_CACHES:
            return
        self._caches += 1
        recurrent = _RECURRENT.search(text)
        rank = str(self._caches)
        if "R (f32)" in text or recurrent is not None:
            self.facts.add_bytes("state_sum_bytes", size, line=number, text=text, rank=rank)
            if recurrent is not None:
                self.facts.add("n_rs_seq", int(recurrent[1]), line=number, text=text)
            return
        self.facts.add_bytes("kv_sum_bytes", size, line=number, text=text, rank=rank)
        self.facts.add("cells", int(found[1]), line=number, text=text, rank=rank)
        types = _KV_TYPES.search(text)
        if types is not None:
            self._types(types[1], types[2], number, text)

    def _kv_self(self, number: int, text: str) -> None:
        """The older sum over all caches. ik_llama.cpp writes ``c^KV`` for a latent."""
        self.facts.add_bytes("kv_sum_bytes", number_after(text, "KV self size"), line=number, text=text, rank="1")
        types = _KV_TYPES.search(text)
        latent = _SELF.search(text)
        if types is not None:
            self._types(types[1], types[2], number, text)
        elif latent is not None:
            self._types(latent[1], latent[1], number, text)

    def _types(self, key: str, value: str, number: int, text: str) -> None:
        self.facts.add("type_k", key, line=number, text=text)
        self.facts.add("type_v", value, line=number, text=text)

    def _offloaded(self, number: int, text: str) -> None:
        found = _OFFLOADED.search(text)
        if found is not None:
            self.facts.add("n_gpu_layers", int(found[1]), line=number, text=text)
            self.facts.add("all_layers", int(found[2]), line=number, text=text)

    def _settings(self, number: int, text: str) -> None:
        found = _SETTING.search(text)
        if found is None:
            return
        name, value = found[1], found[2].lower()
        name = "n_ctx_seq" if name == "n_ctx_per_seq" else name
        if name in ("flash_attn", "kv_unified"):
            if value in _SWITCHES:
                self.facts.add(name, _SWITCHES[value], line=number, text=text)
        elif value.isdecimal():
            self.facts.add(name, int(value), line=number, text=text)

    def _model(self, number: int, text: str) -> None:
        if "type_k = '" in text:
            types = _KV_INIT.search(text)
            if types is not None:
                self._types(types[1], types[2], number, text)
        elif "using full-size SWA cache" in text:
            self.facts.add("swa_full", "true", line=number, text=text)
        elif "file size" in text and ("print_info" in text or "llm_load_print_meta" in text):
            self.facts.add_bytes("file_bytes", number_after(text, "file size"), line=number, text=text)
        elif "model size" in text and "llm_load_print_meta" in text:
            self.facts.add_bytes("file_bytes", number_after(text, "model size"), line=number, text=text)
        elif "general.name" in text and "print_info" in text:
            self.facts.add("general_name", text.rpartition("=")[2].strip()[:80], line=number, text=text)

    def _ollama(self, number: int, text: str) -> None:
        found = _OLLAMA.search(text)
        if found is not None and found[1] in _OLLAMA_NAMES:
            printed = number_at(found[3], 0)
            if printed is not None and printed.unit in BINARY:
                name = _OLLAMA_NAMES[found[1]]
                rank = f"{found[2]} 1" if name == "kv_bytes" else found[2]
                value, low, high = _tenths(printed)
                self.facts.add(name, value, line=number, text=text, unit="bytes", low=low, high=high, rank=rank)
            return
        if "cmd=" in text:
            for setting in _OLLAMA_COMMAND.finditer(text):
                self._ollama_setting(setting[1], setting[2], number, text)
            if "--flash-attn" in text:
                self.facts.add("flash_attn", "on", line=number, text=text)

    def _ollama_setting(self, name: str, value: str, number: int, text: str) -> None:
        if name == "kv-cache-type":
            self._types(value.lower(), value.lower(), number, text)
        elif name.startswith("cache-type"):
            self.facts.add(_OLLAMA_SETTINGS[name], value.lower(), line=number, text=text)
        elif value.isdecimal():
            self.facts.add(_OLLAMA_SETTINGS[name], int(value), line=number, text=text)

    def _breakdown(self, number: int, text: str) -> None:
        """A row of the table that is printed at the end. Those of a dry run come before any context, and do not count."""
        device = _BREAKDOWN.search(text)
        if device is None or not self._contexts:
            return
        rank = device[1].split(" (")[0]
        names: tuple[str, ...] = _TABLE
        row = _GPU_ROW.search(text, device.end() - 1)
        if row is None:
            row, names = _HOST_ROW.search(text, device.end() - 1), _TABLE[2:]
        if row is None:
            return
        for name, whole in zip(names, row.groups(), strict=False):
            # Whole MiB, rounded down; what does not fit into a machine word is a known fault of the table's last column.
            low = int(whole) * MIB
            if 0 <= low < 2**50:
                self.facts.add(name, low, line=number, text=text, unit="bytes", low=low, high=low + MIB - 1, rank=rank)

    def inputs(self) -> tuple[dict[str, object], dict[str, str]]:
        """What the log states of a plan: the length of a slot and the slots, and llama.cpp's own options."""
        options = {
            name: str(value)
            for name in _OPTIONS
            if (value := self.facts.number(name) if self.facts.word(name) is None else self.facts.word(name)) is not None
        }
        unified = self.facts.word("kv_unified")
        if unified is not None:
            options["kv_unified"] = "true" if unified == "on" else "false"
        if self.facts.word("flash_attn") in ("on", "off"):
            options["flash_attn"] = str(self.facts.word("flash_attn"))
        if self.facts.word("swa_full") is not None:
            options["swa_full"] = "true"
        stated: dict[str, object] = {}
        slots, length = self.facts.number("n_seq_max"), self.facts.number("n_ctx_seq") or self.facts.number("n_ctx")
        if length is not None:
            stated["seq"] = int(length)
        if slots is not None:
            stated["batch"] = int(slots)
        return stated, options

    def compare(self, occupancy: LlamacppOccupancy, tolerance: float) -> tuple[list[Row], list[Note]]:
        """A row for every figure that the log and the plan have, and notes about what could not be compared."""
        from hwcalc.engines.llamacpp.settings import CELLS

        rows = [*_context(self.facts, occupancy), *_weights(self.facts, occupancy, tolerance)]
        notes: list[Note] = []
        if "mla_attn" in self.facts:
            message = "ik_llama.cpp keeps latents in ways of its own (-mla): its cache may differ from llama.cpp's."
            notes.append(Note(code="other-engine", message=message))
        cells = self.facts.number("n_ctx")
        if cells is not None and cells % CELLS:
            message = f"{cells:,} cells are no multiple of {CELLS}: an older build, which rounds otherwise than the rules of {occupancy.version}."
            notes.append(Note(code="older-build", message=message))
        placement = occupancy.placement()
        if placement is not None and placement.gpus:
            rows += _devices(self.facts, placement, tolerance)
            rows += _memory(self.facts, occupancy, tolerance)
        elif placement is not None or all(on_host(fact.rank) for fact in self.facts.ranks("model_bytes")):
            rows += _host(self.facts, occupancy, tolerance)
        else:
            message = "Name the GPU with --gpu to compare what each device holds, and the compute buffers."
            notes.append(Note(code="no-gpu", message=message))
        return rows, notes

    def batch_shape(self, occupancy: LlamacppOccupancy) -> tuple[int, int]:
        """Tokens of one pass, and tokens whose logits it computes."""
        one = occupancy.settings
        return one.n_ubatch, one.n_outputs

    def overheads(self, occupancy: LlamacppOccupancy) -> dict[str, int]:
        """What the table calls unaccounted: the driver's context, and whatever other programs hold of the same GPU."""
        sizes = []
        for total in self.facts.ranks("total_bytes"):
            rest = [self.facts.ranks(name) for name in ("free_bytes", "self_bytes")]
            known = [fact.value for each in rest for fact in each if fact.rank == total.rank and not isinstance(fact.value, str)]
            if len(known) == len(rest) and not isinstance(total.value, str):
                sizes.append(int(total.value) - sum(int(value) for value in known))
        fitting = [size for size in sizes if 0 < size < _LARGEST_CONTEXT]
        return {"context_bytes": max(fitting)} if fitting else {}


def _tenths(printed: PrintedNumber) -> tuple[int, int, int]:
    """A size with as many decimals as it has: Ollama prints one, and none for bytes."""
    scale, factor = 10**printed.decimals, BINARY[printed.unit]
    value = (2 * printed.digits * factor + scale) // (2 * scale)
    low, high = -(-(2 * printed.digits - 1) * factor // (2 * scale)), (2 * printed.digits + 1) * factor // (2 * scale)
    return (value, value, value) if factor == 1 else (value, low, high)


_OPTIONS: Final = ("n_ctx", "n_seq_max", "n_batch", "n_ubatch", "n_rs_seq", "type_k", "type_v", "n_gpu_layers")


_STATES: Final = (Role.STATE, Role.CONV)
_LARGEST_CONTEXT: Final = 8 * GIB
"""What is not accounted for is a process's own only up to here: beyond it other programs have it."""
_COMPUTE: Final = "compute buffer"
_OUTPUT: Final = "output buffer"


def on_host(rank: str | None) -> bool:
    """Whether a buffer of this name lies in the memory of the host: ``CPU_Mapped``, ``CUDA_Host``, ``Host``."""
    first = (rank or "").split(" ")[0]
    return first.startswith("CPU") or first.endswith("Host")


def _context(facts: Facts, occupancy: LlamacppOccupancy) -> list[Row]:
    """Cells, caches and states follow from llama.cpp's rules: they must be equal up to the rounding of the log."""
    one = occupancy.settings
    stored = [(group.count, tensor) for group in occupancy.stack.groups for tensor in occupancy.kind_tensors[group.kind]]
    stored += [(1, tensor) for tensor in occupancy.extras]
    states = sum(count * tensor.bytes for count, tensor in stored if tensor.role in _STATES)
    rows: list[Row] = []

    def row(name: str, fact: Fact | None, predicted: int, meaning: str) -> None:
        rows.extend(compared(name, fact, spread(predicted), 0.0, definition="engine", meaning=meaning))

    row("cells", facts.last("n_ctx"), one.n_ctx, "n_ctx after rounding, all slots together")
    row("cells of a slot", facts.last("n_ctx_seq"), one.n_ctx_seq, "n_ctx_seq: what one sequence can have")
    row("cache", _whole(facts, "kv_sum_bytes", "kv_bytes"), occupancy.stored_bytes - states, "keys and values of all layers")
    row("states", _whole(facts, "state_sum_bytes", "state_bytes"), states, "recurrent states of all slots, in 32 bits")
    return rows


def _weights(facts: Facts, occupancy: LlamacppOccupancy, tolerance: float) -> list[Row]:
    held = occupancy.deployment.model_weights()
    if held is None:
        return []
    meaning = "every tensor of the file once"
    return compared(
        "weights", facts.last("file_bytes"), spread(held.bytes), tolerance, definition=held.definition, meaning=meaning
    )


def _devices(facts: Facts, placement: Placement, tolerance: float) -> list[Row]:
    """What the GPUs hold, and the compute buffers; mapped files are left out: a mapping spans what lies between its tensors."""
    rows: list[Row] = []

    def row(name: str, fact: Fact | None, predicted: Range | None, definition: str, meaning: str) -> None:
        rows.extend(compared(name, fact, predicted, tolerance, definition=definition, meaning=meaning))

    if placement.all_layers is not None:
        row("layers", facts.last("all_layers"), spread(placement.all_layers), "engine", "layers that can be offloaded")
    weights = spread(sum(one.weights_bytes for one in placement.gpus))
    row("weights on GPUs", _whole_of(facts, ("model_bytes", "model_sum_bytes")), weights, "engine", "model buffers")
    cache = spread(sum(one.cache_bytes for one in placement.gpus))
    row("cache on GPUs", _whole_of(facts, ("context_sum_bytes",)), cache, "engine", "KV and state buffers")
    row(
        "compute on GPUs",
        _whole_of(facts, ("compute_bytes", "compute_sum_bytes")),
        _parts(placement.gpus, _COMPUTE),
        "estimate",
        "compute buffers",
    )
    host = _parts((placement.host,), _COMPUTE)
    row("compute on the host", _whole_of(facts, ("compute_bytes",), on_host), host, "estimate", "compute buffer of the host")
    outputs = _parts((placement.host,), _OUTPUT)
    row("output buffer", _whole_of(facts, ("output_bytes",), on_host), outputs, "estimate", "logits that the host keeps")
    return rows


def _host(facts: Facts, occupancy: LlamacppOccupancy, tolerance: float) -> list[Row]:
    """The buffers of a machine without a GPU, which holds everything in its own memory."""
    deployment = occupancy.deployment
    hosted = divided(deployment.hparams.n_layer_all, 0, deployment.ends)
    layout = Layout(deployment.pinned_at(hosted), occupancy.settings)
    parts = layout.buffers.parts(layout.host.part)
    rows: list[Row] = []
    for name, stated, meaning in (
        (_COMPUTE, "compute_bytes", "compute buffer"),
        (_OUTPUT, "output_bytes", "logits that are kept for the caller"),
    ):
        predicted = _range(part for part in parts if part.name == name)
        rows += compared(name, _whole(facts, stated), predicted, tolerance, definition="estimate", meaning=meaning)
    return rows


def _memory(facts: Facts, occupancy: LlamacppOccupancy, tolerance: float) -> list[Row]:
    from hwcalc.profiles.gpus import visible_memory

    gpu = occupancy.setup.hardware.gpu
    visible = None if gpu is None else visible_memory(gpu)
    if visible is None:
        return []
    total = Range(low=visible.low_bytes, expected=visible.expected_bytes, high=visible.high_bytes)
    meaning = "memory of the GPU that programs see"
    return compared("device memory", facts.smallest("total_bytes"), total, tolerance, definition="profile", meaning=meaning)


def _parts(devices: Iterable[DeviceShare], name: str) -> Range | None:
    return _range(part for one in devices for part in one.parts if part.name == name)


def _range(parts: Iterable[BudgetPart]) -> Range | None:
    found = list(parts)
    if not found:
        return None
    low, expected, high = (sum(getattr(part, end) for part in found) for end in ("low", "expected", "high"))
    return Range(low=low, expected=expected, high=high)


def _on_gpu(rank: str | None) -> bool:
    return not on_host(rank)


def _whole_of(facts: Facts, names: Iterable[str], where: Callable[[str | None], bool] = _on_gpu) -> Fact | None:
    """The sum over the devices of one place, of the first of these facts that the log states."""
    for name in names:
        fact = _sum(name, [fact for fact in facts.ranks(name) if where(fact.rank)])
        if fact is not None:
            return fact
    return None


def _whole(facts: Facts, *names: str) -> Fact | None:
    """The sum over all caches and devices, of the first of these facts that the log states."""
    return _whole_of(facts, names, lambda _: True)


def _sum(name: str, facts: list[Fact]) -> Fact | None:
    if not facts:
        return None
    value = low = high = 0
    for fact in facts:
        if isinstance(fact.value, str):
            return None
        value += int(fact.value)
        low += int(fact.value if fact.low is None else fact.low)
        high += int(fact.value if fact.high is None else fact.high)
    last = facts[-1]
    whole = Facts()
    whole.add(name, value, line=last.line, text=last.text, unit=last.unit, low=low, high=high)
    return whole.last(name)
