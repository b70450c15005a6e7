"""Save a probe as a file, and plan it again later.

A receipt holds the model's whole config, the request, and the measurements. :func:`verify` therefore needs no network: it plans the same
request with today's rules, and compares with the bytes that were measured.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any, Final

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION, document_of
from hwcalc.engines.deployment import Occupancy
from hwcalc.errors import ConfigError, KvplanError, UnwritableFileError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.model import RawModel
from hwcalc.planner.asked import read_options
from hwcalc.planner.options import OPTIONS
from hwcalc.probe.allocator import parse_settings, predict
from hwcalc.probe.result import MEASURED, Compared, Probed
from hwcalc.probe.run import More, rebuilt
from hwcalc.text import brief, shown

_LARGEST: Final = 8 * 1024**2
"""Characters. A receipt holds a whole config, of which the largest published one has less than a million."""
_MOST_DRIFT: Final = 20
_KEPT: Final = tuple(row for row in OPTIONS if row.in_receipt)
_DEFAULTS: Final = {row.name: row.default for row in _KEPT}
_ALWAYS: Final = ("seq", "batch", "engine")


class Receipt(Record):
    """``arguments`` are those of the request that are not the default; ``model_config`` is the model's config, whole, as is a draft's."""

    schema_version: str
    kvplan_version: str
    model_id: str
    model_revision: str | None
    model_config: dict[str, Any]
    arguments: dict[str, Any]
    probe: Probed
    more: More | None


class Verified(Record):
    """A receipt planned again. ``comparisons`` are today's predictions beside the bytes that were measured then."""

    schema_version: str
    kvplan_version: str
    receipt: str
    measured_with: str
    model: str
    device: str
    date: str
    comparisons: tuple[Compared, ...]
    drift: tuple[str, ...]
    agrees: bool


def make_receipt(opened: Occupancy, probed: Probed, more: More | None = None) -> Receipt:
    """The receipt of a probe. Its arguments are the options that differ from their defaults, as ``read_options`` reads them."""
    model, request = opened.model, opened.request
    gpu, margin, values = request.setup.hardware.gpu, request.setup.hardware.margin, request.flat()
    looked_up = {
        "engine": f"{probed.engine}@{probed.engine_version}" if probed.engine_version else probed.engine,
        "gpu": None if gpu is None else gpu.id,
        "margin": None if margin is None else str(margin),
        "lora": None if request.setup.lora is None else str(request.setup.lora),
        "draft": None if request.setup.draft is None else _finite(request.setup.draft.config),
        "engine_options": dict(request.setup.options) or None,
        "assume": model.assumption,
    }
    kept = {row.name: looked_up[row.name] if row.name in looked_up else values.get(row.name) for row in _KEPT}
    return Receipt(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        model_id=model.id,
        model_revision=model.revision,
        model_config=_finite(model.config),
        arguments={name: value for name, value in kept.items() if name in _ALWAYS or value not in (None, _DEFAULTS[name])},
        probe=probed,
        more=more,
    )


def check_path(path: str) -> None:
    """Raise :class:`~hwcalc.errors.UnwritableFileError` if a receipt cannot be written there, before anything is measured."""
    folder = os.path.dirname(os.path.abspath(path)) if path and "\0" not in path else None  # noqa: PTH100, PTH120 - pathlib is slow
    if folder is None:
        raise UsageError(f"--receipt {shown(path)} names no file.", hint="Write: --receipt FILE")
    if not os.path.isdir(folder) or os.path.isdir(path):  # noqa: PTH112
        raise UnwritableFileError(
            f"--receipt {shown(path)}: no file can be made there.", hint="Name a file in a folder that exists."
        )


def write_receipt(receipt: Receipt, path: str) -> None:
    """Write the receipt atomically. Raises :class:`~hwcalc.errors.UnwritableFileError` if the file cannot be written."""
    from hwcalc.documents import dumps
    from hwcalc.files import write_file

    write_file(path, dumps(document_of(receipt)).encode(), "--receipt")


def read_receipt(path: str) -> dict[str, Any]:
    """Read a receipt from a file, or from standard input (``-``), and check its top-level keys.

    Raises :class:`~hwcalc.errors.ConfigError` if it is not a receipt.
    """
    from hwcalc.files import decoded, opened, standard_input

    try:
        if path == "-":
            data = standard_input("Pipe a receipt in: kvplan probe --verify - < RECEIPT").read(_LARGEST + 1)
        else:
            with opened(path) as file:
                data = file.read(_LARGEST + 1)
        text = decoded(data) if isinstance(data, bytes) else data
        if len(text) > _LARGEST:
            raise ConfigError(f"{shown(path, 80)} is larger than {_LARGEST:,} characters: no receipt is.")
        document = json.loads(text, parse_constant=_no_number)
    except KvplanError:
        raise
    except OSError as error:
        raise ConfigError(f"{shown(path, 80)} could not be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{shown(path, 80)} is not a receipt: no JSON document.", hint="Make one: kvplan probe MODEL --receipt F"
        ) from error
    kinds: dict[str, type] = {"model_id": str, "model_config": dict, "arguments": dict, "probe": dict, "kvplan_version": str}
    for name, kind in kinds.items():
        _member(document, name, kind)
    if document.get("schema_version") != SCHEMA_VERSION:
        raise ConfigError(f"the receipt's schema_version is not {SCHEMA_VERSION!r}.", hint="It is of another release of kvplan.")
    return dict(document)


def verify(document: Mapping[str, Any], name: str) -> Verified:
    """Plan a receipt again and compare. Raises :class:`~hwcalc.errors.ConfigError` if it cannot be planned."""
    try:
        return _verify(document, name)
    except ConfigError:
        raise
    except KvplanError as error:
        raise ConfigError(f"the receipt cannot be planned: {error.message}", hint=error.hint) from error


def _verify(document: Mapping[str, Any], name: str) -> Verified:
    """The verdict of today's plan of the receipt's request on its measurements, rank by rank."""
    from hwcalc.library.plan import load_request
    from hwcalc.parsers.parse import parse
    from hwcalc.planner.context import open_request

    arguments = {key: value for key, value in document["arguments"].items() if key in _DEFAULTS}
    if "draft" in arguments:
        # The config of a draft must be in the receipt: a name would have to be looked up.
        _member(arguments, "draft", dict)
    raw = RawModel(id=document["model_id"][:200], config=document["model_config"], source="python")
    model, request = load_request(parse(raw, assume=arguments.pop("assume", None)), read_options(arguments))
    opened = open_request(model, **request)
    comparisons: list[Compared] = []
    drift: list[str] = []
    ranks = _member(document["probe"], "ranks", list)
    for rank in ranks:
        if _member(rank, "outcome", str) != MEASURED:
            drift.append(f"rank {rank.get('rank')}: nothing was measured ({brief(rank['outcome'], 40)}).")
            continue
        number = _member(rank, "rank", int)
        compared, changed = _rank_now(rank, opened, f"rank {number}: " if len(ranks) > 1 else "")
        comparisons += compared
        drift += changed
    comparisons += _policy_now(document, opened)
    first = _member(ranks[0], "environment", dict) if ranks else {}
    return Verified(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        receipt=name,
        measured_with=f"kvplan {brief(document['kvplan_version'], 40)}",
        model=raw.id,
        device=str(first.get("device_name", ""))[:80],
        date=str(first.get("date", ""))[:40],
        comparisons=tuple(comparisons),
        drift=tuple(drift[:_MOST_DRIFT]),
        agrees=bool(comparisons) and not drift and all(comparison.agrees for comparison in comparisons),
    )


def _rank_now(rank: Mapping[str, Any], opened: Occupancy, where: str) -> tuple[list[Compared], list[str]]:
    """Today's figures of a rank beside those that were measured, and sentences about the tensors that have changed."""
    stage = _member(rank, "stage", int)
    if not 0 <= stage < opened.setup.parallel.pp:
        raise ConfigError(f"the receipt has a stage {stage} of {opened.setup.parallel.pp}.")
    measured: list[tuple[str, tuple[int, ...], int]] = []
    for one in _member(rank, "tensors", list):
        shape = _member(one, "shape", list)
        if not all(type(size) is int and size >= 0 for size in shape):
            raise ConfigError("the receipt has a tensor whose shape is no list of whole numbers.")
        measured.append((_member(one, "name", str), tuple(shape), _member(one, "measured_bytes", int)))
    most = rank.get("most_bytes")
    blocks = measured[0][1][:1] if measured else ()
    planned = rebuilt(opened.allocation(stage), most if isinstance(most, int) else None, blocks)
    comparisons = [Compared.of(f"{where}tensors", sum(one.bytes for one in planned), sum(size for _, _, size in measured))]
    now = {one.name: (one.shape, one.bytes) for one in planned}
    then = {name: (shape, size) for name, shape, size in measured}
    drift = [f"{name} was measured and is not planned any more." for name in then if name not in now]
    drift += [f"{name} is planned and was not measured." for name in now if name not in then]
    drift += [
        f"{name} was {list(then[name][0])} of {then[name][1]:,} bytes and is planned as {list(now[name][0])} of {now[name][1]:,}."
        for name in now
        if name in then and now[name] != then[name]
    ]
    settings = parse_settings(_member(_member(rank, "environment", dict), "allocator", str))
    counted = predict((one.bytes for one in planned), settings)
    figures = {"memory_allocated": counted.allocated_bytes, "memory_reserved": counted.reserved_bytes}
    for figure in _member(rank, "comparisons", list):
        name = _member(figure, "name", str)
        if name in figures and isinstance(figure.get("tolerance_bytes"), int) and not settings.unmodelled:
            comparisons.append(Compared.of(where + name, figures[name], _member(figure, "measured_bytes", int)))
    return comparisons, [where + line[:200] for line in drift]


def _policy_now(document: Mapping[str, Any], opened: Occupancy) -> list[Compared]:
    """Today's figures of the policy beside those that were measured, where the whole plan was run."""
    more = document.get("more")
    run = more.get("policy") if isinstance(more, dict) else None
    if run is None or opened.evicted is None:
        return []
    if _member(run, "figures", list) and run.get("scaled") is not None:
        return []
    from hwcalc.planner.policy import policy_info
    from hwcalc.probe.policy_run import planned_figures

    now = planned_figures(opened, policy_info(opened, opened.evicted))
    found = []
    for figure in run["figures"]:
        name, measured = _member(figure, "name", str), figure.get("measured")
        if name in now and type(measured) is int and type(figure.get("least")) is int:
            found.append(Compared.of(name, int(now[name]), measured))
    return found


def _member(document: Any, name: str, kind: type) -> Any:
    value = document.get(name) if isinstance(document, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool) or (isinstance(value, int) and value < 0):
        raise ConfigError(f"the receipt has no {name}, or not of the kind that it should be.", hint="See: kvplan schema receipt")
    return value


def _no_number(word: str) -> Any:
    raise ValueError(word)


def _finite(value: Any) -> Any:
    """A config as strict JSON. Numbers that are not finite, such as the Infinity in ``time_step_limit``, become text."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
