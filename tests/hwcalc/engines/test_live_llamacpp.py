"""Contexts that the library of the wheel ``xllamacpp`` makes are planned to the byte.

The models are metadata: ``tests/llamacpp/models.json`` has the numbers of published ones, cut to few layers, and one small model of every
other architecture that the library loads. The library makes up the tensors, and allocates nothing but recurrent states.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Final

import pytest

from hwcalc import KvplanError, load_model
from hwcalc.engines import find_engine
from hwcalc.engines.llamacpp.occupancy import LlamacppOccupancy
from hwcalc.engines.setup import Request
from hwcalc.formulas import Role
from hwcalc.parsers.gguf.architectures import ARCHITECTURES
from tests.effort import sample
from tests.llamacpp.library import wheel
from tests.paths import ROOT

pytestmark = pytest.mark.skipif(wheel() is None, reason="xllamacpp is not installed: pip install xllamacpp")

MODELS: Final = Path(__file__).parents[2] / "llamacpp" / "models.json"
REQUIRED: Final[Mapping[str, Any]] = {
    "attention.layer_norm_epsilon": 1e-5,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.group_norm_epsilon": 1e-5,
    "attention.group_norm_groups": 8,
    "use_parallel_residual": False,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
}
"""Keys that some architectures must have and that bear on no memory."""
VOCABULARY: Final = 128
CONTEXTS: Final[tuple[Mapping[str, Any], ...]] = (
    {"n_ctx": 4096, "swa_full": False},
    {"n_ctx": 10_000, "n_seq_max": 3, "n_ubatch": 256, "swa_full": False},
    {"n_ctx": 8192, "n_seq_max": 4, "kv_unified": True, "type_k": "q8_0", "type_v": "q8_0", "swa_full": False},
    {"n_ctx": 2000, "flash_attn": "off", "swa_full": True},
    {"n_ctx": 4096, "n_seq_max": 2, "n_rs_seq": 4, "type_k": "bf16", "type_v": "bf16", "swa_full": False},
)
DRAFTS: Final = {"n_ctx": 4096, "ctx_type": "mtp", "swa_full": False}
DEFAULTS: Final = {
    "n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1, "type_k": 1, "type_v": 1, "flash_attn": -1, "n_rs_seq": 0,
}  # fmt: skip
"""What the library gives to the fields that are set here, if they lie where they are looked for."""
_SIZE: Final = re.compile(r"size = +([0-9.]+) MiB \( *(\d+) cells")


@lru_cache(maxsize=1)
def models() -> dict[str, dict[str, Any]]:
    """The models by name."""
    found: dict[str, dict[str, Any]] = json.loads(MODELS.read_text(encoding="utf-8"))
    return found


def contexts_of(arch: str) -> tuple[Mapping[str, Any], ...]:
    """The contexts that are asked for."""
    return (*CONTEXTS, DRAFTS) if ARCHITECTURES[arch].drafts else CONTEXTS


def write(path: Path, arch: str, keys: Mapping[str, Any]) -> None:
    """Write metadata as a GGUF file without tensors."""
    import gguf

    writer = gguf.GGUFWriter(path, arch)
    for name, value in {**REQUIRED, **keys}.items():
        _add(writer, name if name.startswith("tokenizer.") else f"{arch}.{name}", value)
    writer.add_string("tokenizer.ggml.model", "test")
    writer.add_array("tokenizer.ggml.tokens", [f"t{number}" for number in range(VOCABULARY)])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def _add(writer: Any, name: str, value: Any) -> None:
    import gguf

    kinds = {bool: gguf.GGUFValueType.BOOL, int: gguf.GGUFValueType.UINT32, float: gguf.GGUFValueType.FLOAT32}
    kinds |= {str: gguf.GGUFValueType.STRING}
    if isinstance(value, list):
        writer.add_key_value(name, value, gguf.GGUFValueType.ARRAY, sub_type=kinds[type(value[0])])
    else:
        writer.add_key_value(name, value, kinds[type(value)])


@pytest.fixture(scope="module")
def library() -> Iterator[Library]:
    """A process that makes contexts, and that lives on when one of them ends it."""
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1", "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path))}
    command = [sys.executable, "-m", "tests.llamacpp.library"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        found = Library(process.stdin, process.stdout)
        assert found.answer() == DEFAULTS, "llama_context_params has other fields: see tests/llamacpp/library.py"
        yield found
        process.stdin.close()


class Library:
    """The two ends of that process."""

    def __init__(self, asks: IO[str], answers: IO[str]) -> None:
        self._asks = asks
        self._answers = answers

    def answer(self) -> Any:
        """The next answer."""
        return json.loads(self._answers.readline())

    def contexts(self, path: Path, options: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """What comes of each context of the model in a file."""
        self._asks.write(json.dumps({"path": str(path), "mtp": True, "contexts": options}) + "\n")
        self._asks.flush()
        found = self.answer()
        assert found["status"] == "loaded", found
        contexts: list[dict[str, Any]] = found["contexts"]
        return contexts


def planned(name: str, options: Mapping[str, Any]) -> LlamacppOccupancy:
    """The same context as kvplan plans it."""
    model = models()[name]
    arch = model["arch"]
    keys = {"general.architecture": arch, f"{arch}.vocab_size": VOCABULARY}
    keys |= {key if key.startswith("tokenizer.") else f"{arch}.{key}": value for key, value in model["keys"].items()}
    words = {option: str(value).lower() for option, value in options.items()}
    engine, _ = find_engine("llamacpp")
    request = Request.of(seq=options["n_ctx"], options={"defaults": "api", **words})
    found = engine.open(load_model(keys), request)
    assert isinstance(found, LlamacppOccupancy)
    return found


@pytest.mark.parametrize("name", sample(models(), 54))
def test_the_contexts_of_a_model_are_planned_to_the_byte(name: str, library: Library, tmp_path: Path) -> None:
    """Bytes, settings and cells are those of the library; what it refuses is refused.

    A graph that llama.cpp cannot build for made-up sizes ends the process and says nothing of the memory.
    """
    arch, keys = models()[name]["arch"], models()[name]["keys"]
    path, asked = tmp_path / "model.gguf", contexts_of(arch)
    write(path, arch, keys)
    answers = library.contexts(path, asked)
    assert any(one["status"] == "made" for one in answers)
    for options, one in zip(asked, answers, strict=True):
        if one["status"] == "refused":
            with pytest.raises(KvplanError):
                planned(name, options)
        elif one["status"] == "made":
            _compare(planned(name, options), one)


def _compare(own: LlamacppOccupancy, one: Mapping[str, Any]) -> None:
    assert own.stored_bytes == one["bytes"]
    settings = own.settings
    assert {key: getattr(settings, key) for key in one["settings"]} == one["settings"]
    logged = {int(cells) for line in one["log"] for size, cells in _SIZE.findall(line) if float(size)}
    assert logged - {settings.n_seq_max} == _cells(own) - {settings.n_seq_max}


def _cells(own: LlamacppOccupancy) -> set[int]:
    kept = (tensor for group in own.stack.groups for tensor in own.kind_tensors[group.kind])
    # A size under 5 KiB is logged as 0.00 MiB.
    return {tensor.positions for tensor in kept if tensor.role not in (Role.STATE, Role.CONV) and tensor.bytes >= 2**13}


def test_the_models_are_of_many_architectures() -> None:
    """Nearly every architecture that llama.cpp loads is among them."""
    assert len({model["arch"] for model in models().values()}) >= 140
