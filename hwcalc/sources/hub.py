"""The Hugging Face Hub as a source: ``config.json`` at a commit, and the headers of the weight files.

One request gives the config and the commit. The weights need one or two requests per file, each for a part of the file
(:mod:`hwcalc.sources.weights`). The config is then stored in the Hugging Face cache, where other programs find it too, and the
weight facts in kvplan's own cache. So the next plan of the model needs no network. Code in a repository never runs.

A repository without a ``config.json``: read ``params.json`` or a GGUF file instead, or explain what the repository contains.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.errors import HubAccessError, HubError, HubUnreachableError, KvplanError, ModelNotFoundError, UnsupportedError
from hwcalc.model import Note, RawModel, WeightFacts
from hwcalc.profiles.catalog import is_model_id
from hwcalc.sources.caches import cached_weights, keep_files, keep_weights
from hwcalc.sources.document import (
    LARGEST_DOCUMENT,
    QUANT_FILE,
    config_from_params,
    is_quantized,
    parse_document,
    with_quantization,
)
from hwcalc.sources.gguf.names import is_gguf
from hwcalc.sources.hub_client import HubClient, Repository
from hwcalc.sources.request import Absent, Wanted, tell
from hwcalc.sources.weights import read_weights
from hwcalc.text import operand, printable, shown

_STEMS: Final = {False: ("model",), True: ("consolidated", "model")}
"""Stems of the weight files. The key says whether the config is Mistral's ``params.json``."""
_UNQUANTISED: Final = frozenset({"F64", "F32", "F16", "BF16", "C64", "BOOL", "I64"})
_KEPT: Final = frozenset({"renamed", "weights"})
"""Codes of notes that are always true for a commit."""


def find_on_hub(wanted: Wanted) -> RawModel | Absent:
    """The model from the Hub, or :class:`Absent` if the Hub has no such model or cannot be reached.

    Raises :class:`~hwcalc.errors.HubAccessError` if the Hub refuses access, :class:`~hwcalc.errors.ModelNotFoundError` or
    :class:`~hwcalc.errors.UnsupportedError` if the repository holds no model that can be planned, and
    :class:`~hwcalc.errors.ConfigError` if its config cannot be read.
    """
    client = HubClient(wanted.endpoint, wanted.token)
    tell(f"asking {client.name}")
    try:
        if wanted.file is None:
            return _read(client, wanted)
        from hwcalc.sources.gguf.hub import find_gguf_on_hub

        return find_gguf_on_hub(client, wanted)
    except HubUnreachableError as error:
        return Absent(place=client.name, error=error)


def with_weights(raw: RawModel, wanted: Wanted, commit: str, *, params: bool) -> RawModel:
    """Add the weight facts of a commit from the Hub to a cached model. If the Hub does not answer, add a note instead."""
    notes: list[Note] = []
    try:
        client = HubClient(wanted.endpoint, wanted.token)
    except KvplanError as error:
        return replace(raw, notes=(*raw.notes, _unread(error)))
    tell(f"asking {client.name}")
    repository = Repository(client, None, wanted.id, commit)
    facts, _ = _weights(repository, _STEMS[params], notes)
    documents: dict[str, bytes] = {}
    config = _quantization(repository, dict(raw.config), facts, documents, notes)
    keep_files(wanted.id, commit, commit, documents)
    return replace(raw, config=config, weights=facts, notes=(*raw.notes, *notes))


def _read(client: HubClient, wanted: Wanted) -> RawModel | Absent:
    revision = wanted.revision or "main"
    try:
        reply = client.file(wanted.id, revision, "config.json", most=LARGEST_DOCUMENT)
    except ValueError:  # huggingface_hub rejects the id
        return Absent(place=client.name)
    if reply.status == 404 and reply.code == "RepoNotFound":
        return Absent(place=client.name)
    if reply.status == 404 and reply.code == "RevisionNotFound":
        return Absent(place=client.name, remark=f"{client.name} has {wanted.id}, but no revision {revision}")
    repository = Repository(client, reply, wanted.id, revision)
    if reply.status == 404:
        params = without_config(repository, wanted)
        if params is None:
            return Absent(place=client.name)
        if isinstance(params, RawModel):
            return params
        documents = {"params.json": params}
        config = config_from_params(parse_document(params, "params.json"), f"params.json of {wanted.id}")
    elif reply.status == 200:
        documents = {"config.json": reply.body}
        config = parse_document(reply.body, f"config.json of {wanted.id} on {client.name}")
    else:
        raise client.refusal(reply, wanted.id)
    commit = repository.commit
    notes: list[Note] = []
    if repository.id != repository.asked:
        name = f"{client.name[:1].upper()}{client.name[1:]}"
        notes.append(Note(code="renamed", message=f"{name} has {wanted.id} as {printable(repository.id)}."))
    if commit is None:
        message = "The address that was asked does not say which commit it gave: the plan cannot be repeated."
        notes.append(Note(code="unpinned", message=message))
    facts, reached = None, True
    if wanted.weights:
        facts, reached = _weights(repository, _STEMS["params.json" in documents], notes)
    config = _quantization(repository, config, facts, documents, notes)
    if commit is not None and reached:
        keep_files(wanted.id, wanted.revision or "main", commit, documents)
    at = f"commit {commit[:12]}" if commit else f"revision {repository.revision}"
    return RawModel(
        id=wanted.id,
        config=config,
        source="hub",
        location=f"{client.name.removeprefix('the ')}, {at}",
        revision=commit,
        weights=facts,
        notes=tuple(notes),
    )


def _weights(repository: Repository, stems: tuple[str, ...], notes: list[Note]) -> tuple[WeightFacts | None, bool]:
    """The weight facts, and whether this result is final. It is not final if a later request could succeed."""
    commit = repository.commit
    kept = None if commit is None else cached_weights(repository.asked, commit)
    if kept is not None and kept.facts is not None:
        codes = {note.code for note in notes}
        notes += (note for note in kept.notes if note.code not in codes)
        return kept.facts, True
    facts = None
    try:
        facts = read_weights(repository, stems)
    except KvplanError as error:
        notes.append(_unread(error))
        if isinstance(error, HubError):
            return None, isinstance(error, HubAccessError)
    if commit is not None:
        keep_weights(repository.asked, commit, facts, (note for note in notes if note.code in _KEPT))
    return facts, True


def _unread(error: KvplanError) -> Note:
    return Note(code="weights", message=f"The weight files could not be read: {error.message}")


def _quantization(
    repository: Repository, config: dict[str, Any], facts: WeightFacts | None, documents: dict[str, bytes], notes: list[Note]
) -> dict[str, Any]:
    """The config with the quantisation that older exports of ModelOpt keep in a second file, which is added to ``documents``.

    It is asked for only if the weight files have a dtype that unquantised models do not have, and the config says nothing of it.
    """
    if (
        facts is None
        or is_quantized(config)
        or all(dtype in _UNQUANTISED for dtype, size in facts.bytes_by_dtype.items() if size)
    ):
        return config
    try:
        data = repository.whole(QUANT_FILE, LARGEST_DOCUMENT)
        if data is None:
            return config
        document = parse_document(data, f"{QUANT_FILE} of {shown(repository.asked)}")
    except KvplanError as error:
        notes.append(Note(code="quantization", message=f"{QUANT_FILE} could not be read: {error.message}"))
        return config
    documents[QUANT_FILE] = data
    config, more = with_quantization(config, document)
    notes += more
    return config


def without_config(repository: Repository, wanted: Wanted) -> bytes | RawModel | None:
    """The content of ``params.json``, or the model of a GGUF file; ``None`` if the repository does not exist.

    Raises :class:`~hwcalc.errors.UnsupportedError` if the repository holds an adapter, and
    :class:`~hwcalc.errors.ModelNotFoundError` if it holds configs in folders or nothing that describes a model.
    """
    listing = repository.listing()
    if listing is None or "params.json" in listing.names:
        return repository.whole("params.json", LARGEST_DOCUMENT)
    names = listing.names
    what = f"{shown(repository.asked)} on {repository.client.name}"
    if "adapter_config.json" in names:
        base = listing.base
        with suppress(KvplanError):
            data = repository.whole("adapter_config.json", LARGEST_DOCUMENT)
            named = {} if data is None else parse_document(data, "adapter_config.json")
            path = named.get("base_model_name_or_path")
            base = path if isinstance(path, str) and is_model_id(path) else base
        raise UnsupportedError(
            f"{what} is an adapter{f' for {base}' if base else ''}: the model that it is loaded into has the cache.",
            hint=f"Plan the base model: kvplan {base}" if base else "Plan the base model that its page names.",
        )
    inner = [name.removesuffix("/config.json") for name in names if name.endswith("/config.json")]
    if inner:
        listed = ", ".join(shown(name) for name in inner[:6]) + (", ..." if len(inner) > 6 else "")
        many = "several configs, each" if len(inner) > 1 else "its config"
        file = operand(f"{inner[0]}/config.json")
        asked = repository.asked
        words = f"--local-dir . {asked} {file}" if inner[0].startswith("-") else f"{asked} {file} --local-dir ."
        hint = f"Choose one and plan it as a folder: hf download {words}"
        raise ModelNotFoundError(f"{what} has {many} in a folder: {listed}.", hint=hint)
    if any(is_gguf(name) for name in names):
        from hwcalc.sources.gguf.hub import read_repository

        return read_repository(repository, names, wanted)
    content = "is empty" if not set(names) - {".gitattributes", "README.md"} else "has no config.json"
    raise ModelNotFoundError(
        f"{what} {content}: nothing in it describes a model.",
        hint="Check the id; any model's folder or config.json will do as well.",
    )
