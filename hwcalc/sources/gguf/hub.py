"""GGUF files on the Hugging Face Hub: only their headers are asked for, as parts of files that grow until the header ends.

What was read is kept (:mod:`hwcalc.sources.gguf.kept`), so that :mod:`hwcalc.sources.gguf.here` answers the next time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from hwcalc.errors import HubError, HubUnreachableError, ModelNotFoundError
from hwcalc.model import Note, RawModel
from hwcalc.sources.document import LARGEST_DOCUMENT
from hwcalc.sources.gguf.choose import choose, word_for
from hwcalc.sources.gguf.header import Header, read_header
from hwcalc.sources.gguf.kept import KeptHeaders, keep_headers
from hwcalc.sources.gguf.model import check_whole, joined, raw_model
from hwcalc.sources.gguf.names import is_gguf, part_of
from hwcalc.sources.gguf.window import Window
from hwcalc.sources.hub_client import HubClient, Reply
from hwcalc.sources.progress import tell
from hwcalc.sources.repository import Repository
from hwcalc.sources.wanted import Absent, Wanted
from hwcalc.text import printable, shown
from hwcalc.units import human_bytes

__all__ = ["described", "find_gguf_on_hub", "read_repository"]

FIRST: Final = 1024**2
"""Bytes of the first request for a file. The header of a model with a small vocabulary fits in; each further request is twice as long."""
FIRST_OF_MORE: Final = 128 * 1024
"""The same for the other files of a model in several: they have no vocabulary."""


def find_gguf_on_hub(wanted: Wanted) -> RawModel | Absent:
    """The model from the Hub, or :class:`Absent` if the Hub has no such repository or cannot be reached.

    Raises :class:`~hwcalc.errors.ModelNotFoundError` if the repository has no such file, :class:`~hwcalc.errors.HubError` if the Hub
    refuses, and :class:`~hwcalc.errors.ConfigError` for a damaged file.
    """
    client = HubClient(wanted.endpoint, wanted.token)
    tell(f"asking {client.name}")
    try:
        return _ask(client, wanted)
    except HubUnreachableError as error:
        return Absent(place=client.name, error=error)


def _ask(client: HubClient, wanted: Wanted) -> RawModel | Absent:
    revision = wanted.revision or "main"
    repository = Repository(client, None, wanted.id, revision)
    name = _first_part(wanted.file) if wanted.file is not None and is_gguf(wanted.file) else None
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
    reply = _first(repository, name)
    if reply is None:
        raise ModelNotFoundError(
            f"{repository.client.name} lists {shown(name)} in {shown(wanted.id)}, and does not have it.", hint="Try again later."
        )
    return _read(repository, reply, name, wanted)


def _first(repository: Repository, name: str) -> Reply | None:
    """The answer to the first request for a file; ``None`` if the repository does not have it."""
    return repository.reply(name, FIRST, 0)


def _read(asked: Repository, reply: Reply, name: str, wanted: Wanted) -> RawModel:
    repository = Repository(asked.client, reply, wanted.id, wanted.revision or "main")
    first = _header(repository, name, reply)
    part = part_of(name)
    if part is None:
        check_whole(first, None, _called(wanted, name))
        headers: tuple[Header, ...] = (first,)
    else:
        from hwcalc.sources.parallel import done_in_any_order

        others = part.names[1:]
        found = dict(done_in_any_order(lambda other: (other, _other(repository, other, wanted)), others, repository.parallel))
        headers = joined({_called(wanted, other): first if other == name else found[other] for other in part.names})
    header = replace(headers[0], tensors=tuple(tensor for one in headers for tensor in one.tensors))
    size = sum(one.file_bytes for one in headers)
    kept = KeptHeaders(commit=repository.commit, file=name, files=len(headers), file_bytes=size, header=header)
    raw = described(wanted, kept, f"its header comes from {repository.client.name}")
    keep_headers(wanted, kept)
    return raw


def _other(repository: Repository, name: str, wanted: Wanted) -> Header:
    reply = repository.reply(name, FIRST_OF_MORE, 0)
    if reply is None:
        raise ModelNotFoundError(
            f"{shown(wanted.id)} lacks {shown(name)}, a part of the model.", hint="Choose another file of the repository."
        )
    return _header(repository, name, reply)


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
    known = word_for(kept.file, wanted.file)
    return replace(
        raw_model(
            (kept.header,),
            id=f"{wanted.id}:{known}",
            location=wanted.name,
            name=_called(wanted, kept.file),
            revision=kept.commit,
            files=kept.files,
        ),
        notes=(Note(code="gguf-file", message=message),),
    )


def _first_part(name: str) -> str:
    part = part_of(name)
    return name if part is None else part.names[0]


def _called(wanted: Wanted, name: str) -> str:
    return printable(f"{name} of {wanted.id}")
