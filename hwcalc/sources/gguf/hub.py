"""GGUF files on the Hugging Face Hub: only their headers are asked for, as parts of files that grow until the header ends.

Headers are kept in ``$XDG_CACHE_HOME/kvplan/headers/<org>--<name>/gguf/<key>.json``, so that the next plan of the model needs no
network. The key is made of the revision and of the name by which the model was asked for. If a file is missing, broken or cannot
be written, the Hub is asked again, without an error. Downloads in the Hugging Face cache are found too. For a file that cannot
be looked at, the catalog may know the model it was made from: its weights are then worked out by llama.cpp's rule.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.errors import HubError, KvplanError, ModelNotFoundError
from hwcalc.files import write_atomically
from hwcalc.formulas.record import Record
from hwcalc.model import GgufTensor, Note, RawModel
from hwcalc.profiles.catalog import list_models
from hwcalc.quantization.ggml import GGML_TYPES, KEPT_EXPERTS, MIXES
from hwcalc.sources.built_in import find_in_catalog, profile_errors
from hwcalc.sources.caches import facts_folder, snapshot
from hwcalc.sources.document import LARGEST_DOCUMENT, parse_document
from hwcalc.sources.gguf.header import Header, Window, read_header
from hwcalc.sources.gguf.local import check_whole, from_file, joined, raw_model
from hwcalc.sources.gguf.names import choose, is_gguf, matching, part_of, quantization_of, word_for
from hwcalc.sources.hub_client import HubClient, Reply, Repository
from hwcalc.sources.nearest import name_parts
from hwcalc.sources.request import Absent, Wanted, tell
from hwcalc.text import printable, shown
from hwcalc.units import human_bytes

_VERSION: Final = 1
_LONGEST: Final = 200
_BY_NAME: Final = {form.name: form for form in GGML_TYPES.values()}


class KeptHeaders(Record):
    """Headers read: of which commit, of which file (the first of several), in how many files of how many bytes."""

    commit: str | None
    file: str
    files: int
    file_bytes: int
    header: Header
    """The metadata of the first file, and the tensors of all."""


def kept_headers(wanted: Wanted) -> KeptHeaders | None:
    """The result of an earlier reading, or ``None``."""
    path = _path(wanted)
    if path is None:
        return None
    try:
        with open(path, "rb") as opened:
            document = parse_document(opened.read(LARGEST_DOCUMENT + 1), "")
        commit, file, keys, rows = (document[name] for name in ("commit", "file", "keys", "tensors"))
        numbers = [document[name] for name in ("files", "file_bytes", "version")]
        words = [file] if commit is None else [file, commit]
        if (
            document["schema_version"] != _VERSION
            or not all(isinstance(word, str) and 0 < len(word) <= _LONGEST and word.isprintable() for word in words)
            or not (isinstance(keys, dict) and isinstance(rows, list))
            or not all(type(number) is int and 0 < number < 2**63 for number in numbers)
        ):
            return None
        files, file_bytes, version = numbers
        tensors, big_endian = tuple(map(tensor_of, rows)), document["big_endian"] is True
    except (OSError, ValueError, KeyError, TypeError, KvplanError):
        return None
    header = Header(keys=keys, tensors=tensors, version=version, big_endian=big_endian, file_bytes=file_bytes)
    return KeptHeaders(commit=commit, file=file, files=files, file_bytes=file_bytes, header=header)


def keep_headers(wanted: Wanted, kept: KeptHeaders) -> None:
    """Store a reading. Nothing happens if the file cannot be written."""
    path = _path(wanted)
    if path is None:
        return
    header = kept.header
    document: dict[str, Any] = {"schema_version": _VERSION, "commit": kept.commit, "file": kept.file, "files": kept.files}
    document |= {"file_bytes": kept.file_bytes, "version": header.version, "big_endian": header.big_endian, "keys": header.keys}
    document["tensors"] = list(map(row_of, header.tensors))
    with suppress(OSError, ValueError):
        write_atomically(path, json.dumps(document).encode())


def _path(wanted: Wanted) -> Path | None:
    folder = facts_folder()
    if folder is None:
        return None
    asked = "\n".join((wanted.revision or "main", wanted.endpoint or "", (wanted.file or "").lower()))
    name = hashlib.sha256(asked.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return folder / wanted.id.replace("/", "--") / "gguf" / f"{name}.json"


def row_of(tensor: GgufTensor) -> list[str | int]:
    """A tensor as JSON: ``["output.weight", "q6_k", 4096, 128256]``."""
    return [tensor.name, tensor.type, *tensor.shape]


def tensor_of(row: Any) -> GgufTensor:
    """The tensor of :func:`row_of`. Raises ``ValueError``, ``TypeError`` or ``KeyError`` for a row that is none."""
    name, kind, *shape = row
    form = _BY_NAME[kind]
    elements = 1
    for size in shape:
        if type(size) is not int or size <= 0:
            raise ValueError
        elements *= size
    if not isinstance(name, str) or not shape or shape[0] % form.block or elements >= 2**63:
        raise ValueError
    return GgufTensor(name=name, type=kind, shape=tuple(shape), bytes=elements // form.block * form.block_bytes)


FIRST: Final = 1024**2
"""Bytes of the first request for a file. The header of a model with a small vocabulary fits in; each further request is twice as long."""
FIRST_OF_MORE: Final = 128 * 1024
"""The same for the other files of a model in several: they have no vocabulary."""


def find_gguf_on_hub(client: HubClient, wanted: Wanted) -> RawModel | Absent:
    """The model from the Hub, or :class:`Absent` if the Hub has no such repository.

    Raises :class:`~hwcalc.errors.ModelNotFoundError` if the repository has no such file, :class:`~hwcalc.errors.HubError` if the Hub
    refuses or cannot be reached, and :class:`~hwcalc.errors.ConfigError` for a damaged file.
    """
    revision = wanted.revision or "main"
    repository = Repository(client, None, wanted.id, revision)
    name = None
    if wanted.file is not None and is_gguf(wanted.file):
        part = part_of(wanted.file)
        name = wanted.file if part is None else part.names[0]
    try:
        reply = None if name is None else client.file(wanted.id, revision, name, most=FIRST, first=0)
    except ValueError:  # huggingface_hub rejects the id
        return Absent(place=client.name)
    if name is not None and reply is not None and reply.status != 404:
        if reply.status not in {200, 206}:
            raise client.refusal(reply, wanted.id)
        return _read(repository, reply, name, wanted)
    reply = client.listing(wanted.id, revision, most=LARGEST_DOCUMENT)
    if reply.status == 404 and reply.code == "RepoNotFound":
        return Absent(place=client.name)
    if reply.status == 404 and reply.code == "RevisionNotFound":
        return Absent(place=client.name, remark=f"{client.name} has {wanted.id}, but no revision {revision}")
    listing = repository.listed(reply)
    if listing is None:
        remark = f"{client.name} gives no list of the files of {wanted.id}; the whole name of a file needs none"
        return Absent(place=client.name, remark="" if name is not None else remark)
    return read_repository(repository, listing.names, wanted)


def read_repository(repository: Repository, names: Iterable[str], wanted: Wanted) -> RawModel:
    """The model that is meant among the files of a repository."""
    name = choose(names, wanted.file or "", wanted.id)
    reply = repository.reply(name, FIRST, 0)
    if reply is None:
        raise ModelNotFoundError(
            f"{repository.client.name} lists {shown(name)} in {shown(wanted.id)}, and does not have it.", hint="Try again later."
        )
    return _read(repository, reply, name, wanted)


def _read(asked: Repository, reply: Reply, name: str, wanted: Wanted) -> RawModel:
    repository = Repository(asked.client, reply, wanted.id, wanted.revision or "main")
    first = _header(repository, name, reply)
    part = part_of(name)
    if part is None:
        check_whole(first, _called(wanted, name))
        headers: tuple[Header, ...] = (first,)
    else:
        from hwcalc.sources.weights import done_in_any_order

        def other_header(other: str) -> tuple[str, Header]:
            reply = repository.reply(other, FIRST_OF_MORE, 0)
            if reply is None:
                message = f"{shown(wanted.id)} lacks {shown(other)}, a part of the model."
                raise ModelNotFoundError(message, hint="Choose another file of the repository.")
            return other, _header(repository, other, reply)

        found = dict(done_in_any_order(other_header, part.names[1:], repository.parallel))
        headers = joined({_called(wanted, other): first if other == name else found[other] for other in part.names})
    header = replace(headers[0], tensors=tuple(tensor for one in headers for tensor in one.tensors))
    size = sum(one.file_bytes for one in headers)
    kept = KeptHeaders(commit=repository.commit, file=name, files=len(headers), file_bytes=size, header=header)
    raw = described(wanted, kept, f"its header comes from {repository.client.name}")
    keep_headers(wanted, kept)
    return raw


def _header(repository: Repository, name: str, reply: Reply) -> Header:
    """The header of a file whose first bytes are ``reply``."""
    called = f"{shown(name)} of {shown(repository.asked)}"

    def read(first: int, end: int) -> bytes:
        size = reply.file_bytes
        if size is not None and first >= size:
            return b""
        tell(f"header of {name.rpartition('/')[2]}: {human_bytes(end)}")
        part = repository.part(name, first, end if size is None else min(end, size))
        if part is None:
            raise HubError(f"{repository.client.name} no longer has {called}.", hint="Try again.")
        return part.data

    first = len(reply.body)
    return read_header(Window(read, reply.file_bytes, 2 * max(first, FIRST_OF_MORE), reply.body), called)


def described(wanted: Wanted, kept: KeptHeaders, how: str) -> RawModel:
    """The model of headers that were read. ``how`` says in a note where they come from."""
    count = "" if kept.files == 1 else f" and {kept.files - 1:,} more"
    at = f", commit {kept.commit[:12]}" if kept.commit else ""
    message = f"Planned is {shown(kept.file)}{count} of {wanted.id}{at}, {human_bytes(kept.file_bytes)}: {how}."
    name, known = _called(wanted, kept.file), f"{wanted.id}:{word_for(kept.file, wanted.file)}"
    raw = raw_model((kept.header,), id=known, location=wanted.name, name=name, revision=kept.commit, files=kept.files)
    return replace(raw, notes=(Note(code="gguf-file", message=message),))


def _called(wanted: Wanted, name: str) -> str:
    return printable(f"{name} of {wanted.id}")


_MOST_LISTED: Final = 10_000
"""Most files of a snapshot that are looked at."""


def find_gguf_here(wanted: Wanted) -> RawModel | Absent:
    """The model from files that the Hugging Face cache has, or from headers that were read before.

    Without a file or quantisation in the name, a repository with a config is left to others.
    """
    found = snapshot(wanted.id, wanted.revision)
    if found is not None:
        folder, commit = found
        if wanted.file is None and os.path.lexists(folder / "config.json"):
            return Absent(place="")
        # The GGUF files of the snapshot, those in its folders too, that are there whole.
        files: list[str] = []
        for place, folders, names in os.walk(folder):
            folders.sort()
            paths = [Path(place, name) for name in names if is_gguf(name)]
            files += [path.relative_to(folder).as_posix() for path in paths if path.is_file()]
            if len(files) > _MOST_LISTED:
                break
        meant = matching(files, wanted.file or "")
        if len(meant) == 1:
            at = f"the Hugging Face cache, commit {commit[:12]}"
            note = Note(code="gguf-file", message=f"Planned is {shown(meant[0])} of {wanted.id}, as {at}, has it.")
            known = f"{wanted.id}:{word_for(meant[0], wanted.file)}"
            return replace(from_file(folder / meant[0], id=known, location=wanted.name, notes=(note,)), revision=commit)
    kept = kept_headers(wanted)
    if kept is None:
        # A bare id may mean models that are no GGUF files: only a name with a file says that one is wanted.
        return Absent(place="" if wanted.file is None else "the Hugging Face cache")
    return described(wanted, kept, "its header was read before")


_ENDING: Final = re.compile(r"(?:[-._](?:i1|imatrix|imat))?[-._]GGUF$", re.IGNORECASE)
"""Endings that publishers of GGUF files add to a name."""
_DEFAULT: Final = "Q4_K_M"


def find_base(wanted: Wanted) -> RawModel | Absent:
    """The catalog's model that a repository of GGUF files was made from, with the format of the file that is wanted.

    A note says that this is no look at the file.
    """
    models = base_models(wanted.id)
    if len(models) != 1 or wanted.revision is not None:
        return Absent(place="")
    found = find_in_catalog(Wanted(id=models[0]))
    if isinstance(found, Absent):
        return found
    # Of a checkpoint in mxfp4 the usual file is as it is published.
    published = str((found.config.get("quantization_config") or {}).get("quant_method"))
    word = wanted.file or (published.upper() if published in KEPT_EXPERTS else _DEFAULT)
    word = quantization_of(word) if is_gguf(word) else word
    form = format_of_file(word)
    if form is None:
        remark = f"the catalog has {models[0]}, but {shown(wanted.file or word)} names no quantisation that kvplan can work out"
        return Absent(place="", remark=remark)
    message = (
        f"The header of this file was not read: planned is {models[0]} of the catalog with --weights {form}, as llama.cpp's rule for "
        "that quantisation stores it. The file itself may differ by a few percent."
    )
    notes = (Note(code="gguf-not-read", message=message), *found.notes)
    return replace(found, id=f"{wanted.id}:{wanted.file or word}", weights=None, weights_format=form, notes=notes)


def format_of_file(word: str) -> str | None:
    """The format of ``--weights`` of a file that a word names; ``None`` if it names none.

    >>> format_of_file("Q4_K_M"), format_of_file("MXFP4"), format_of_file("UD-Q4_K_XL")
    ('q4_k_m', 'mxfp4_moe', None)
    """
    from hwcalc.quantization.planned import format_name

    try:
        form = format_name(word or None)
    except KvplanError:
        return None
    return KEPT_EXPERTS.get(form or "", form)


def other_format(word: str) -> tuple[str | None, bool]:
    """The format of ``--weights`` that a word names, and that it does; or the one that is meant, if it is like any."""
    from hwcalc.quantization.planned import format_name

    try:
        return format_name(word), True
    except KvplanError:
        bare = re.sub(r"[^a-z0-9]", "", word.lower())
        return next((name for name in MIXES if name.replace("_", "") == bare), None), False


def base_models(repository: str) -> tuple[str, ...]:
    """The models of the catalog that have the name of a repository without what makers of GGUF files add to it.

    >>> base_models("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF"), base_models("bartowski/Qwen_Qwen3-8B-GGUF")
    (('NousResearch/Meta-Llama-3.1-8B-Instruct',), ('Qwen/Qwen3-8B',))
    >>> base_models("TheBloke/Llama-2-7B-Chat-GGUF"), base_models("Qwen/Qwen3-8B")
    (('meta-llama/Llama-2-7b-chat-hf',), ())
    """
    name = repository.rpartition("/")[2]
    stem = _ENDING.sub("", name)
    if stem == name:
        return ()
    with profile_errors():
        known = list_models()
    # Some write the first publisher before the name: Qwen_Qwen3-8B.
    whole = tuple(model_id for model_id in known if model_id.lower().replace("/", "_") == stem.lower())
    parts = name_parts(stem)
    exact = whole or tuple(model_id for model_id in known if name_parts(model_id.rpartition("/")[2]) == parts)
    if exact:
        return exact
    # Words of its publisher's name may be missing, and hf at its end.
    found = []
    for model_id in known:
        publisher, _, name = model_id.partition("/")
        words = {*name_parts(publisher)}
        own, theirs = (tuple(part for part in one if part not in words) for one in (name_parts(name), parts))
        if own and theirs and (own == theirs or (own[-1] == "hf" and own[:-1] == theirs)):
            found.append(model_id)
    return tuple(found)
