"""One repository on the Hub at one commit, with its files."""

from __future__ import annotations

from hwcalc.errors import HubError
from hwcalc.formulas.record import Record
from hwcalc.profiles.catalog import is_model_id
from hwcalc.sources.document import LARGEST_DOCUMENT, parse_document
from hwcalc.sources.hub_client import HubClient, Reply
from hwcalc.sources.weights import FilePart
from hwcalc.text import shown

__all__ = ["Listing", "Repository"]

_PARALLEL = 8
_WHOLE_COMMIT = 40


class Listing(Record):
    """The names of a repository's files, and the id of the base model (empty if the page does not name one)."""

    names: tuple[str, ...]
    base: str


class Repository:
    """One commit of one repository. A missing file is ``None``; a refused or failed request raises :class:`HubError`.

    ``asked`` is the id in the request, ``id`` the current name of the repository. ``commit`` is ``None`` if a mirror does not say
    it.
    """

    parallel = _PARALLEL

    def __init__(self, client: HubClient, reply: Reply | None, model_id: str, revision: str) -> None:
        whole = len(revision) == _WHOLE_COMMIT and all(letter in "0123456789abcdef" for letter in revision)
        self.client = client
        self.asked = model_id
        self.id = (reply and reply.id) or model_id
        self.commit = (reply and reply.commit) or (revision if whole else None)
        self.revision = self.commit or revision

    def whole(self, name: str, most: int) -> bytes | None:
        """The content of a small file."""
        reply = self.reply(name, most, None)
        return None if reply is None else reply.body

    def part(self, name: str, first: int, end: int) -> FilePart | None:
        """The bytes of a file from ``first`` up to ``end``."""
        reply = self.reply(name, end - first, first)
        return None if reply is None else FilePart(data=reply.body, file_bytes=reply.file_bytes)

    def reply(self, name: str, most: int, first: int | None) -> Reply | None:
        """The answer to a request for a file, or for ``most`` bytes of it from ``first`` on."""
        try:
            reply = self.client.file(self.id, self.revision, name, most=most, first=first)
        except ValueError as error:  # huggingface_hub rejects the id
            raise HubError(f"{self.client.name} has no {shown(self.asked)}.") from error
        if reply.status == 404 and reply.code in {"RepoNotFound", "RevisionNotFound"}:
            raise HubError(f"{self.client.name} has no {shown(self.asked)} at revision {shown(self.revision)}.")
        if reply.status == 404:
            return None
        if reply.status not in {200, 206}:
            raise self.client.refusal(reply, self.asked)
        return reply

    def listing(self) -> Listing | None:
        """The list of files and the base model; ``None`` if the server has no such list, as some mirrors."""
        return self.listed(self.client.listing(self.id, self.revision, most=LARGEST_DOCUMENT))

    def listed(self, reply: Reply) -> Listing | None:
        """The same from an answer."""
        if reply.status == 404:
            return None
        if reply.status != 200:
            raise self.client.refusal(reply, self.asked)
        document = parse_document(reply.body, f"the list of files of {self.asked}")
        siblings, card = document.get("siblings"), document.get("cardData")
        rows = siblings if isinstance(siblings, list) else []
        names = (row.get("rfilename") for row in rows if isinstance(row, dict))
        base = card.get("base_model") if isinstance(card, dict) else None
        if isinstance(base, list) and base:
            base = base[0]
        return Listing(
            names=tuple(sorted(name for name in names if isinstance(name, str))),
            base=base if isinstance(base, str) and is_model_id(base) else "",
        )
