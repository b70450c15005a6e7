"""Every context that libllama made (``tests/golden/llamacpp.json``) is planned to the byte, cache by cache."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import pytest

from hwcalc import KvplanError, load_model, plan
from hwcalc.engines import find_engine
from hwcalc.engines.llamacpp.occupancy import LlamacppOccupancy
from hwcalc.engines.setup import Request
from hwcalc.engines.stored import StoredTensor
from hwcalc.formulas import Role
from tests.paths import GOLDEN

MIB: Final = 2**20
_STATE: Final = re.compile(r"DSV4 (\w+) state buffer size = +([0-9.]+) MiB")

Row = Mapping[str, Any]


@lru_cache(maxsize=1)
def rows() -> Mapping[str, Row]:
    """The rows by name."""
    cases = json.loads((GOLDEN / "llamacpp.json").read_text(encoding="utf-8"))["cases"]
    return {f"{number} {row['model']} {_spelled(row['options'])}": row for number, row in enumerate(cases)}


def _spelled(options: Mapping[str, object]) -> str:
    return ",".join(f"{name}={value}" for name, value in options.items())


def metadata(row: Row) -> dict[str, Any]:
    """The metadata of the row's file."""
    return {"general.architecture": row["arch"]} | {f"{row['arch']}.{key}": value for key, value in row["hparams"].items()}


def asked(row: Row) -> dict[str, Any]:
    """The options of the row. The library keeps no older states by itself, as llama-server does where it drafts."""
    return {"n_rs_seq": 0, **row["options"]} if "load_mtp" in row["options"] else row["options"]


def opened(row: Row) -> LlamacppOccupancy:
    """The request of the row, as the engine opens it."""
    options = {name: str(value) for name, value in asked(row).items()}
    engine, _ = find_engine("llamacpp")
    found = engine.open(load_model(metadata(row)), Request.of(seq=row["options"]["n_ctx"] or 1, options=options))
    assert isinstance(found, LlamacppOccupancy)
    return found


MADE: Final = [name for name, row in rows().items() if "refused" not in row]
REFUSED: Final = [name for name, row in rows().items() if "refused" in row]


def test_the_context_has_these_bytes() -> None:
    """The bytes of each row are those of llama.cpp's own breakdown."""
    wrong = {}
    for name in MADE:
        row = rows()[name]
        made = plan(metadata(row), engine="llamacpp", engine_options=asked(row))
        settings = {key: made.request.settings[key] for key in row["effective"]}
        said = made.cache.total_bytes, made.cache.definition, settings
        if said != (row["exact_bytes"]["context"], "engine", row["effective"]):
            wrong[name] = said

    assert wrong == {}


@pytest.mark.parametrize("name", MADE)
def test_settings_caches_and_states_are_those_of_the_log(name: str) -> None:
    """Each cache of the log is one of the plan, with its cells, keys and values."""
    row = rows()[name]
    made = opened(row)
    settings = made.settings
    assert row["effective"] == {key: getattr(settings, key) for key in row["effective"]}
    caches = _caches(made)
    for logged in row["logged"].get("kv", []):
        if logged["size_mib"]:
            assert (logged["cells"], logged["k_mib"], logged["v_mib"]) in caches
            assert logged["n_stream"] == settings.n_stream
            assert (logged["type_k"], logged["type_v"]) == (_ggml(settings.type_k.name), _ggml(settings.type_v.name))
    assert len([one for one in row["logged"].get("kv", []) if one["size_mib"]]) == len(caches)
    for logged in row["logged"].get("rs", []):
        assert logged["r_mib"] == _mib(_bytes(made, {"conv_state"}))
        assert logged["s_mib"] == _mib(_bytes(made, {"recurrent_state"}))
        assert logged["cells"] == settings.n_seq_max
    for which, size in _STATE.findall("\n".join(row["logged"].get("dsv4", []))):
        assert float(size) == _mib(_compressor_bytes(made, which))


@pytest.mark.parametrize("name", REFUSED)
def test_what_llama_cpp_refuses_is_refused_with_its_words(name: str) -> None:
    """A context that llama.cpp does not make is an error with a way out."""
    row = rows()[name]
    with pytest.raises(KvplanError, match="requires flash attention") as caught:
        opened(row)
    assert "flash_attn" in row["refused"]
    assert caught.value.hint


def test_the_file_has_all_rows() -> None:
    """No row is passed over."""
    assert (len(MADE), len(REFUSED)) == (208, 1)


def _ggml(name: str) -> str:
    return {"fp32": "f32", "fp16": "f16"}.get(name, name)


def _mib(count: int) -> float:
    return round(count / MIB, 2)


def _stored(made: LlamacppOccupancy) -> Iterable[tuple[int, StoredTensor]]:
    for group in made.stack.groups:
        for tensor in made.kind_tensors[group.kind]:
            yield group.count, tensor


def _bytes(made: LlamacppOccupancy, names: set[str]) -> int:
    return sum(count * tensor.bytes for count, tensor in _stored(made) if tensor.name in names)


def _compressor_bytes(made: LlamacppOccupancy, which: str) -> int:
    """The states that the log calls csa (ratio 4), hca (ratio 128) and lid (the indexer's)."""
    total = 0
    for group in made.stack.groups:
        ratio = group.kind.dims().get("compress_ratio")
        for tensor in made.kind_tensors[group.kind]:
            part = tensor.name.partition("_")[0]
            name = "lid" if part == "indexer" else {4: "csa", 128: "hca"}.get(ratio or 0)
            if tensor.role is Role.STATE and name == which:
                total += group.count * tensor.bytes
    return total


def _caches(made: LlamacppOccupancy) -> list[tuple[int, float, float]]:
    """Cells, MiB of keys and MiB of values of every cache that the context has."""
    sums: dict[tuple[str, bool, int], list[int]] = {}
    for group in made.stack.groups:
        slides = bool(group.kind.dims().keys() & {"window", "chunk"})
        for tensor in made.kind_tensors[group.kind]:
            if tensor.role in (Role.STATE, Role.CONV):
                continue
            cache = tensor.name.partition("_")[0] if "_" in tensor.name else "attention"
            place = sums.setdefault((cache, slides, tensor.positions), [0, 0])
            place[tensor.role is Role.VALUE] += group.count * tensor.bytes
    return [(cells, _mib(keys), _mib(values)) for (_, _, cells), (keys, values) in sums.items()]


def test_values_of_enumerations() -> None:
    """``LLAMA_FLASH_ATTN_TYPE_AUTO`` is -1, and ``llama_context_type`` counts from 0."""
    row = next(row for row in rows().values() if row["model"] == "llama-3.1-8b")
    for name, same in (("flash_attn", (-1, "auto")), ("ctx_type", (0, "default"))):
        plans = [plan(metadata(row), engine="llamacpp", engine_options={"n_ctx": 8192, name: value}) for value in same]
        assert plans[0].cache.total_bytes == plans[1].cache.total_bytes
