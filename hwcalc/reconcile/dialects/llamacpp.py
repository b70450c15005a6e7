"""The log of llama.cpp, of programs that run it (Ollama among them) and of ik_llama.cpp, and its buffers compared with the plan's.

llama.cpp states each buffer when it makes it, in MiB with two decimals, by device and kind: ``CUDA0 KV buffer size = 1024.00 MiB``. At the
end it prints a table in whole MiB. Names before the colon have changed over the years (``llm_load_tensors``, ``llama_new_context_with_model``,
``llama_kv_cache_unified_iswa``), so they are not looked at. Ollama's own engine writes ``msg="kv cache" device=CUDA0 size="1.0 GiB"``.
Caches and states are compared exactly, weights by tensors, compute buffers within their estimate. Several GPUs are compared together, since
no line says what was free on each. Source: llama.cpp 0c1e57098 src/llama-model.cpp, llama-context.cpp, llama-kv-cache.cpp,
llama-memory-recurrent.cpp, common/fit.cpp. What a running llama-server says: tools/server/server-context.cpp (get_props, get_slots,
get_models, get_metrics); ``/metrics`` only with ``--metrics``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.engines.devices import DeviceShare, Placement
from hwcalc.engines.llamacpp.builds import NEWEST, OLDEST, nearest, ollama_build
from hwcalc.engines.llamacpp.layers import divided
from hwcalc.engines.llamacpp.layout import Layout
from hwcalc.engines.llamacpp.occupancy import LlamacppOccupancy
from hwcalc.formulas import Role
from hwcalc.model import ModelSpec, Note
from hwcalc.reconcile.facts import (
    BINARY,
    Dialect,
    Fact,
    Facts,
    Range,
    Row,
    add_device,
    compared,
    device_memory,
    mix_in_words,
    number_after,
    number_at,
    served_model,
    total,
    without_none,
)
from hwcalc.units import GIB, MIB

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
_FILE: Final = re.compile(r"tensors from (.{1,1000}?) \(version ")
_USED: Final = re.compile(r"\busing device ([A-Za-z]{2,10}[0-9]{0,2}) \(")
_FILE_TYPE: Final = re.compile(r"(?:print_info|llm_load_print_meta): (?:file type|model ftype) *= *(.{1,60})")
_BUILD: Final = re.compile(r"\bbuild(?:_info)?: (?:b)?([0-9]{1,6})\b")
_OLLAMA_RELEASE: Final = re.compile(r'msg="Listening on [^ "]{1,60} \(version ([0-9]{1,3}(?:\.[0-9]{1,4}){1,2})')
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
    engine = "llamacpp"
    states_version = True
    sought = (
        "CUDA0 KV buffer size =  1024.00 MiB",
        "CUDA0 model buffer size =  4403.49 MiB",
        "CUDA0 compute buffer size =   258.50 MiB",
        "offloaded 33/33 layers to GPU",
        "n_ctx_seq     = 8192",
    )
    endpoints = ("/props", "/slots", "/v1/models", "/metrics")
    metrics = "llamacpp:"
    gauges = MappingProxyType({
        "llamacpp:requests_processing": "running_requests", "llamacpp:requests_deferred": "waiting_requests",
        "llamacpp:kv_cache_usage_ratio": "usage_share", "llamacpp:kv_cache_tokens": "used_tokens",
    })  # fmt: skip
    limit = ("n_seq_max", "n_seq_max")

    def __init__(self) -> None:
        super().__init__()
        self._aside = False
        """Whether the lines are about something else: a dry run of ``--fit``, a draft model, a further context."""
        self._contexts = 0
        self._caches = 0

    def read(self, text: str) -> None:
        """Add the facts that one line states."""
        facts = self.facts
        self._stage(text)
        if "memory breakdown" in text or "|   - " in text:
            self._breakdown(text)
        elif self._aside:
            return
        elif "buffer size" in text:
            found = _BUFFER.search(text)
            if found is not None and "LoRA" not in text:
                device, name = found[1], _BUFFERS.get(found[2], "model_bytes")
                cached = name in ("kv_bytes", "state_bytes") and self._caches < _MOST_CACHES
                rank = f"{device} {self._caches + 1}" if cached else device
                facts.add_bytes(name, number_at(text, found.end()), rank=rank)
        elif "MiB (" in text and " cells," in text:
            self._cache(text)
        elif "KV self size" in text:
            # The older sum over all caches. ik_llama.cpp writes ``c^KV`` for a latent.
            facts.add_bytes("kv_sum_bytes", number_after(text, "KV self size"), rank="1")
            types, latent = _KV_TYPES.search(text), _SELF.search(text)
            if types is not None:
                self._types(types[1], types[2])
            elif latent is not None:
                self._types(latent[1], latent[1])
        elif "msg=" in text:
            self._ollama(text)
        elif "offloaded " in text:
            found = _OFFLOADED.search(text)
            if found is not None:
                facts.add("n_gpu_layers", int(found[1]))
                facts.add("all_layers", int(found[2]))
        elif any(name in text for name in _SETTING_LINES):
            found = _SETTING.search(text)
            name, value = ("", "") if found is None else (found[1], found[2].lower())
            if name in ("flash_attn", "kv_unified") and value in _SWITCHES:
                facts.add(name, _SWITCHES[value])
            elif name not in ("flash_attn", "kv_unified") and value.isdecimal():
                facts.add("n_ctx_seq" if name == "n_ctx_per_seq" else name, int(value))
        else:
            self._model(text)

    def answered(self, path: str, document: Any) -> None:
        """Add the build, the slots and their length, the file, and the tokens of the slots that work."""
        facts = self.facts
        match path, document:
            case "/props", {"total_slots": slots, "default_generation_settings": {"n_ctx": length}}:
                facts.add_whole("n_seq_max", slots)
                facts.add_whole("n_ctx_seq", length, "tokens")
                build = re.match(r"b([0-9]{1,6})\b", str(document.get("build_info", "")))
                if build is not None and int(build[1]):
                    facts.add("version", f"b{int(build[1])}")
                if isinstance(file := document.get("model_path"), str):
                    facts.add("model", file)
            case "/slots", [{"is_processing": _}, *_]:
                busy = [slot for slot in document if isinstance(slot, dict) and slot.get("is_processing") is True]
                facts.add("running_requests", len(busy))
                facts.add_whole("used_tokens", sum(map(_tokens_of, busy)), "tokens", least=0)
            case "/v1/models", _:
                match served_model(document, "llamacpp"):
                    case {"meta": {"size": size}}:
                        facts.add_whole("file_bytes", size, "bytes")

    def _stage(self, text: str) -> None:
        """Notice a new start, a dry run, a second model and a second context."""
        built = _BUILD.search(text)
        if built is not None or 'msg="starting runner"' in text or 'msg="starting llama-server"' in text:
            if self._contexts:
                self.restart()
            self._aside, self._contexts, self._caches = False, 0, 0
            if built is not None and int(built[1]):
                self.facts.add("version", f"b{int(built[1])}")
        elif "(version " in text and (release := _OLLAMA_RELEASE.search(text)) is not None:
            self._ollama_release(release[1])
        elif "loaded meta data with" in text:
            self._aside = self._contexts > 0
        elif "no_alloc" in text and _DRY_RUN.search(text):
            self._aside = True
        elif "constructing llama_context" in text or _CONTEXT.search(text):
            self._contexts += not self._aside
            self._aside = self._aside or self._contexts > 1

    def _ollama_release(self, release: str) -> None:
        """The build of llama.cpp that a release of Ollama starts, or has in itself, if it is known."""
        build = ollama_build(release)
        if OLDEST <= build < NEWEST:
            self.facts.add("version", f"b{build}")

    def _cache(self, text: str) -> None:
        """The sum of one cache over all devices, behind the lines of its buffers."""
        found = _KV_TOTAL.search(text)
        size = number_after(text, "size =")
        if found is None or size is None or self._caches >= _MOST_CACHES:
            return
        self._caches += 1
        recurrent = _RECURRENT.search(text)
        rank = str(self._caches)
        if "R (f32)" in text or recurrent is not None:
            self.facts.add_bytes("state_sum_bytes", size, rank=rank)
            if recurrent is not None:
                self.facts.add("n_rs_seq", int(recurrent[1]))
            return
        self.facts.add_bytes("kv_sum_bytes", size, rank=rank)
        self.facts.add("cells", int(found[1]), rank=rank)
        types = _KV_TYPES.search(text)
        if types is not None:
            self._types(types[1], types[2])

    def _types(self, key: str, value: str) -> None:
        self.facts.add("type_k", key)
        self.facts.add("type_v", value)

    def _model(self, text: str) -> None:
        if "type_k = '" in text:
            types = _KV_INIT.search(text)
            if types is not None:
                self._types(types[1], types[2])
        elif "using full-size SWA cache" in text:
            self.facts.add("swa_full", "true")
        elif "file size" in text and ("print_info" in text or "llm_load_print_meta" in text):
            self.facts.add_bytes("file_bytes", number_after(text, "file size"))
        elif "model size" in text and "llm_load_print_meta" in text:
            self.facts.add_bytes("file_bytes", number_after(text, "model size"))
        elif "general.name " in text and " = " in text:
            self.facts.add("general_name", text.rpartition(" = ")[2].strip()[:80])
        elif "using device " in text and (used := _USED.search(text)) is not None:
            self.facts.add("used", used[1], rank=used[1])
            add_device(self.facts, text)
        elif "loaded meta data with" in text and (file := _FILE.search(text)) is not None:
            self.facts.add("model", file[1])
        elif "type" in text and (words := _FILE_TYPE.search(text)) is not None:
            self.facts.add("file_type", words[1].strip())

    def _ollama(self, text: str) -> None:
        found = _OLLAMA.search(text)
        if found is not None and found[1] in _OLLAMA_NAMES:
            printed = number_at(found[3], 0)
            if printed is not None and printed.unit in BINARY:
                name = _OLLAMA_NAMES[found[1]]
                # A size has as many decimals as it is printed with: Ollama prints one, and none for bytes.
                twice, factor, scale = 2 * printed.digits, BINARY[printed.unit], 2 * 10**printed.decimals
                value = (twice * factor + scale // 2) // scale
                low, high = -(-(twice - 1) * factor // scale), (twice + 1) * factor // scale
                if factor == 1:
                    low = high = value
                rank = f"{found[2]} 1" if name == "kv_bytes" else found[2]
                self.facts.add(name, value, "bytes", low=low, high=high, rank=rank)
        elif "cmd=" in text:
            for setting in _OLLAMA_COMMAND.finditer(text):
                name, word = setting[1], setting[2].lower()
                if name == "kv-cache-type":
                    self._types(word, word)
                elif name.startswith("cache-type"):
                    self.facts.add(_OLLAMA_SETTINGS[name], word)
                elif word.isdecimal():
                    self.facts.add(_OLLAMA_SETTINGS[name], int(word))
            if "--flash-attn" in text:
                self.facts.add("flash_attn", "on")

    def _breakdown(self, text: str) -> None:
        """A row of the table that is printed at the end. Those of a dry run come before any context, and do not count."""
        device = _BREAKDOWN.search(text)
        if device is None or not self._contexts:
            return
        names: tuple[str, ...] = _TABLE
        row = _GPU_ROW.search(text, device.end() - 1)
        if row is None:
            row, names = _HOST_ROW.search(text, device.end() - 1), _TABLE[2:]
        for name, whole in zip(names, () if row is None else row.groups(), strict=False):
            # Whole MiB, rounded down; what does not fit into a machine word is a known fault of the table's last column.
            if 0 <= int(whole) * MIB < 2**50:
                self.facts.add_floor(name, int(whole), MIB, rank=device[1].split(" (")[0])

    def nearest_version(self, said: str, known: Sequence[str]) -> str:
        return nearest(said)

    def online_format(self) -> str | None:
        """The format that the log states for its file, and the one that the file's name ends with; ``None`` where the two are not one.

        Mixes that are made by hand, such as ``UD-Q4_K_XL``, state the type of a mix that they are not.
        """
        from hwcalc.sources.gguf.hub import other_format
        from hwcalc.sources.gguf.names import is_gguf, quantization_of

        file = (self.facts.word("model") or "").replace("\\", "/")
        named = quantization_of(file) if is_gguf(file) else ""
        words = [word for word in (named, mix_in_words(self.facts.word("file_type"))) if word]
        forms = {form if known else None for form, known in map(other_format, words)}
        return forms.pop() if len(forms) == 1 else None

    def lacks_format(self, spec: ModelSpec) -> bool:
        """True but for a model that was read from a GGUF file, and one that has a format of its own."""
        return spec.quantization is None and spec.gguf is None and spec.weights_format is None and self.online_format() is None

    def inputs(self) -> tuple[dict[str, object], dict[str, str]]:
        """The options of a plan that the log states: the length of a slot and the slots, and llama.cpp's own options."""
        facts = self.facts
        options = {name: str(fact.value) for name in _OPTIONS if (fact := facts.last(name)) is not None}
        unified, flash = facts.word("kv_unified"), facts.word("flash_attn")
        options |= without_none(
            kv_unified=None if unified is None else "true" if unified == "on" else "false",
            flash_attn=flash if flash in ("on", "off") else None,
            swa_full=None if facts.word("swa_full") is None else "true",
        )
        return without_none(seq=facts.whole("n_ctx_seq") or facts.whole("n_ctx"), batch=facts.whole("n_seq_max")), options

    def compare(self, occupancy: LlamacppOccupancy, tolerance: float) -> tuple[list[Row], list[Note]]:
        """A row for every figure that the log and the plan have, and notes about what could not be compared."""
        from hwcalc.engines.llamacpp.settings import CELLS

        facts, rows = self.facts, _context(self.facts, occupancy)
        held, meaning = occupancy.deployment.model_weights(), "every tensor of the file once"
        if held is not None:
            rows += compared("weights", facts.last("file_bytes"), held.bytes, tolerance, held.definition, meaning)
        notes: list[Note] = []
        if "mla_attn" in facts:
            message = "ik_llama.cpp keeps latents in ways of its own (-mla): its cache may differ from llama.cpp's."
            notes.append(Note(code="other-engine", message=message))
        if self.source == "server" and (facts.number("n_seq_max") or 1) > 1:
            message = "The server does not say whether its slots share one buffer of cells (--kv-unified): each is planned with its own."
            notes.append(Note(code="kv-unified", message=message))
        cells = facts.number("n_ctx")
        if cells is not None and cells % CELLS and occupancy.settings.rules.cells == "context":
            message = f"{cells:,} cells are no multiple of {CELLS}: an older build, which rounds otherwise than the rules of {occupancy.deployment.version}."
            notes.append(Note(code="older-build", message=message))
        placement = occupancy.devices.placement()
        if placement is not None and placement.gpus:
            rows += _devices(facts, placement, tolerance)
            memory, meaning = device_memory(occupancy), "memory of the GPU that programs see"
            rows += compared("device memory", facts.smallest("total_bytes"), memory, tolerance, "profile", meaning)
        elif placement is not None or all(on_host(fact.rank) for fact in facts.ranks("model_bytes")):
            # A machine without a GPU holds everything in its own memory.
            deployment = occupancy.deployment
            hosted = divided(deployment.hparams.n_layer_all, 0, deployment.ends)
            layout = Layout(deployment.pinned_at(hosted), occupancy.settings)
            parts = layout.buffers.parts(layout.host.part)
            for name, stated, meaning in _HOSTED:
                predicted = total(part for part in parts if part.name == name)
                rows += compared(name, _whole(facts, stated), predicted, tolerance, "estimate", meaning)
        else:
            message = "Name the GPU with --gpu to compare what each device holds, and the compute buffers."
            notes.append(Note(code="no-gpu", message=message))
        return rows, notes

    def batch_shape(self, occupancy: LlamacppOccupancy) -> tuple[int, int]:
        """Tokens of one pass, and tokens whose logits it computes."""
        one = occupancy.settings
        return one.n_ubatch, one.n_outputs

    def overheads(self, occupancy: LlamacppOccupancy) -> dict[str, int]:
        """The bytes that the table calls unaccounted: the driver's context, and whatever other programs hold of the same GPU."""
        sizes = []
        for whole in self.facts.ranks("total_bytes"):
            stated = (fact for name in ("free_bytes", "self_bytes") for fact in self.facts.ranks(name) if fact.rank == whole.rank)
            known = [int(fact.value) for fact in stated if not isinstance(fact.value, str)]
            if len(known) == 2 and not isinstance(whole.value, str):
                sizes.append(int(whole.value) - sum(known))
        fitting = [size for size in sizes if 0 < size < _LARGEST_CONTEXT]
        return {"context_bytes": max(fitting)} if fitting else {}


_OPTIONS: Final = ("n_ctx", "n_seq_max", "n_batch", "n_ubatch", "n_rs_seq", "type_k", "type_v", "n_gpu_layers")


_STATES: Final = (Role.STATE, Role.CONV)
_LARGEST_CONTEXT: Final = 8 * GIB
"""What is not accounted for is a process's own only up to here: beyond it other programs have it."""
_COMPUTE: Final = "compute buffer"
_OUTPUT: Final = "output buffer"
_HOSTED: Final = (
    (_COMPUTE, "compute_bytes", "compute buffer"),
    (_OUTPUT, "output_bytes", "logits that are kept for the caller"),
)


def _tokens_of(slot: Mapping[str, Any]) -> int:
    """The tokens of a slot: those of its prompt, and those that it has answered. Newer builds have a list of the latter."""
    answered = slot.get("next_token", slot)
    counts = [slot.get("n_prompt_tokens")]
    counts += [one.get("n_decoded") for one in (answered if isinstance(answered, list) else [answered]) if isinstance(one, dict)]
    return sum(count for count in counts if type(count) is int and count > 0)


def on_host(rank: str | None) -> bool:
    """True if a buffer of this name lies in the memory of the host: ``CPU_Mapped``, ``CUDA_Host``, ``Host``."""
    first = (rank or "").split(" ")[0]
    return first.startswith("CPU") or first.endswith("Host")


def _context(facts: Facts, occupancy: LlamacppOccupancy) -> list[Row]:
    """Cells, caches and states follow from llama.cpp's rules: they must be equal up to the rounding of the log."""
    one = occupancy.settings
    stored = [(group.count, tensor) for group in occupancy.stack.groups for tensor in occupancy.kind_tensors[group.kind]]
    stored += [(1, tensor) for tensor in occupancy.extras]
    states = sum(count * tensor.bytes for count, tensor in stored if tensor.role in _STATES)
    cache, state = _whole(facts, "kv_sum_bytes", "kv_bytes"), _whole(facts, "state_sum_bytes", "state_bytes")
    rows = compared(
        "cells", facts.last("n_ctx"), one.n_ctx_logged, 0.0, "engine", "n_ctx as the build logs it, all slots together"
    )
    meaning = "n_ctx_seq: what one sequence can have"
    rows += compared("cells of a slot", facts.last("n_ctx_seq"), one.slot_tokens, 0.0, "engine", meaning)
    rows += compared("cache", cache, occupancy.stored_bytes - states, 0.0, "engine", "keys and values of all layers")
    rows += compared("states", state, states, 0.0, "engine", "recurrent states of all slots, in 32 bits")
    return rows


def _devices(facts: Facts, placement: Placement, tolerance: float) -> list[Row]:
    """Rows of what the GPUs hold, and of the compute buffers; mapped files are left out: a mapping spans what lies between its tensors."""
    gpus, host = placement.gpus, (placement.host,)
    weights, cache = sum(gpu.weights_bytes for gpu in gpus), sum(gpu.cache_bytes for gpu in gpus)
    rows: list[Row] = []

    def row(name: str, fact: Fact | None, predicted: Range | int | None, definition: str, meaning: str) -> None:
        rows.extend(compared(name, fact, predicted, tolerance, definition, meaning))

    def parts(devices: Iterable[DeviceShare], name: str) -> Range | None:
        return total(part for device in devices for part in device.parts if part.name == name)

    row("layers", facts.last("all_layers"), placement.all_layers, "engine", "layers that can be offloaded")
    model = _whole(facts, "model_bytes", "model_sum_bytes", hosted=False)
    row("weights on GPUs", model, weights, "engine", "model buffers")
    row("cache on GPUs", _whole(facts, "context_sum_bytes", hosted=False), cache, "engine", "KV and state buffers")
    compute = _whole(facts, "compute_bytes", "compute_sum_bytes", hosted=False)
    row("compute on GPUs", compute, parts(gpus, _COMPUTE), "estimate", "compute buffers")
    compute, outputs = (_whole(facts, name, hosted=True) for name in ("compute_bytes", "output_bytes"))
    row("compute on the host", compute, parts(host, _COMPUTE), "estimate", "compute buffer of the host")
    row("output buffer", outputs, parts(host, _OUTPUT), "estimate", "logits that the host keeps")
    return rows


def _whole(facts: Facts, *names: str, hosted: bool | None = None) -> Fact | None:
    """The sum over all caches and devices of the first of these facts that the log states.

    ``hosted`` limits it to what lies in the memory of the host, or to what lies elsewhere.
    """
    for name in names:
        found = [fact for fact in facts.ranks(name) if hosted is None or on_host(fact.rank) is hosted]
        if found and not any(isinstance(fact.value, str) for fact in found):
            value = sum(int(fact.value) for fact in found)
            low = sum(int(fact.value if fact.low is None else fact.low) for fact in found)
            high = sum(int(fact.value if fact.high is None else fact.high) for fact in found)
            return replace(found[-1], rank=None, value=value, low=low, high=high)
    return None
