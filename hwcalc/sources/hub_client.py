"""Requests to the Hub, and a repository at one commit. No other module imports huggingface_hub.

The environment of huggingface_hub is respected: ``HF_ENDPOINT``, ``HF_TOKEN`` and the stored login, proxies, certificates,
``HF_HUB_DOWNLOAD_TIMEOUT``. Its downloads have no limits, but the requests here do: in bytes, in time, in the number of tries
and in the memory of compressed answers. The time limit holds for a whole request, with its redirects, its tries and the headers
of its answer.

No message contains the token. Messages consist of the status and of words of this program. They do not repeat what the client or
the server wrote, and they hide the exception of the client, whose text may quote a header.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from hwcalc._version import __version__
from hwcalc.errors import HubAccessError, HubError, HubUnreachableError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.profiles.catalog import is_model_id
from hwcalc.sources.document import LARGEST_DOCUMENT, parse_document
from hwcalc.sources.weights import FilePart
from hwcalc.text import printable, shown

T = TypeVar("T")


class LateError(Exception):
    """The time is over. ``received`` is the number of bytes that came in time."""

    def __init__(self, received: int = 0) -> None:
        super().__init__("late")
        self.received = received


def before(end: float, work: Callable[[], T]) -> T:
    """The result of ``work``, or :class:`LateError` when the monotonic clock reaches ``end``.

    The work runs in a thread of its own, because an HTTP client waits for each piece of the headers anew: a server that sends a line of
    them every few seconds meets every time-out. Late work is left behind. It ends when its server does, and never keeps the program
    from ending.
    """
    results: SimpleQueue[tuple[T] | BaseException] = SimpleQueue()

    def run() -> None:
        try:
            results.put((work(),))
        except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
            results.put(error)

    Thread(target=run, name="kvplan-request", daemon=True).start()
    try:
        result = results.get(timeout=max(0.0, end - time.monotonic()))
    except Empty:
        raise LateError from None
    if isinstance(result, BaseException):
        raise result
    return result[0]


def timely(pieces: Iterator[bytes], end: float) -> Iterator[bytes]:
    """The pieces that arrive before ``end``. Raises :class:`LateError` at the first one that does not."""
    received = 0
    for piece in pieces:
        yield piece
        received += len(piece)
        if time.monotonic() > end:
            raise LateError(received)


def unzipped(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The content of gzip pieces, never more than 64 KiB at once: a short answer can unpack to gigabytes."""
    import zlib

    decoder = zlib.decompressobj(wbits=31)
    for piece in pieces:
        rest, more = piece, True
        while more and not decoder.eof:
            content = decoder.decompress(rest, _PIECE)
            rest = decoder.unconsumed_tail
            more = bool(rest) or len(content) == _PIECE
            if content:
                yield content


PAUSES: Final = (0.5, 1.0)
"""Seconds before the second and the third try."""

_LONGEST_WAIT: Final = 5
"""Most seconds to wait for a server. If it asks for more, the request fails."""
_SLOWEST: Final = 6
"""Most time for a request, in time-outs. The client's time-out is for each piece."""
_LONGEST_READING: Final = 600.0
"""Most seconds for all requests for one model together."""
_PIECE: Final = 64 * 1024
_BUSY: Final = frozenset({408, 429, 500, 502, 503, 504})
_COMMIT: Final = re.compile(r"[0-9a-f]{7,64}")
_TOKEN: Final = re.compile(r"[!-~]{1,4096}")
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_RESET: Final = re.compile(r'"\s*;\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d{1,9})')
_ID_IN_ADDRESS: Final = re.compile(r"/([\w.-]+/[\w.-]+)/resolve/", re.ASCII)


class _TryAgainError(Exception):
    """A temporary failure. ``wait`` is the number of seconds that the server asked for."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.wait = wait


class Reply(Record):
    """An answer of the Hub.

    ``code`` is the Hub's name of the error (``EntryNotFound``), ``commit`` is the commit of the answer, and ``file_bytes`` is
    the size of the whole file. ``id`` is the present name of the repository, which may differ from the requested id.
    """

    status: int
    code: str
    body: bytes
    commit: str | None
    file_bytes: int | None
    id: str | None


class HubClient:
    """The Hub at one address, for one user.

    ``endpoint`` and ``token`` override the environment. Raises :class:`~hwcalc.errors.UsageError` if one of them is malformed.
    Every request raises :class:`~hwcalc.errors.HubUnreachableError` if there is no usable answer.
    """

    def __init__(self, endpoint: str | None = None, token: str | None = None) -> None:
        try:
            from huggingface_hub import constants, get_token
        except ValueError:
            raise UsageError(
                "huggingface_hub cannot be set up: one of its variables is not a number.",
                hint="Check HF_HUB_DOWNLOAD_TIMEOUT and HF_HUB_ETAG_TIMEOUT.",
            ) from None

        try:
            parts = urlsplit((endpoint or os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).strip().rstrip("/"))
            good = parts.scheme in {"http", "https"} and bool(parts.hostname) and not parts.query and not parts.fragment
            good = good and (parts.port is None or parts.port > 0) and all("!" <= letter <= "~" for letter in parts.geturl())
        except ValueError:
            good = False
        if not good:
            raise UsageError("the Hub's address is not one.", hint="Write --endpoint (or HF_ENDPOINT) as https://huggingface.co")
        self.endpoint = parts.geturl()
        if not token:
            try:
                token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
            except (OSError, ValueError):
                raise UsageError(
                    f"the stored Hub token cannot be read: {printable(str(constants.HF_TOKEN_PATH))} is no text file, or not yours.",
                    hint="Check HF_HOME and HF_TOKEN_PATH, or sign in anew: hf auth login",
                ) from None
        if token is not None and not _TOKEN.fullmatch(token):
            raise UsageError(
                "the Hub token is not one: it has characters that no token has.",
                hint="Check HF_TOKEN, or sign in anew: hf auth login",
            )
        self.has_token = token is not None
        self._headers = {"User-Agent": f"kvplan/{__version__}", "Accept-Encoding": "identity"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._timeout = float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
        self._end = time.monotonic() + _LONGEST_READING

    @property
    def name(self) -> str:
        """The name of the Hub for messages: its address without a password."""
        parts = urlsplit(self.endpoint)
        host = (parts.hostname or "") + (f":{parts.port}" if parts.port else "")
        return "the Hugging Face Hub" if host == "huggingface.co" else f"the Hub at {printable(host)}"

    @property
    def page(self) -> str:
        """The web address of the Hub, without a password."""
        parts = urlsplit(self.endpoint)
        return printable(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl())

    def file(self, model_id: str, revision: str, name: str, *, most: int, first: int | None = None) -> Reply:
        """A file, or a part of it.

        Without ``first`` the reply has at most ``most`` + 1 bytes; the one more shows that the file is too large. With ``first``
        it has the ``most`` bytes from this position on.
        """
        from huggingface_hub import hf_hub_url

        address = hf_hub_url(model_id, name, revision=revision, endpoint=self.endpoint)
        return self._get(address, most, first)

    def listing(self, model_id: str, revision: str, *, most: int) -> Reply:
        """The Hub's description of a repository: a JSON document with the files as ``siblings``."""
        from urllib.parse import quote

        return self._get(f"{self.endpoint}/api/models/{model_id}/revision/{quote(revision, safe='')}", most, None)

    def _get(self, address: str, most: int, first: int | None) -> Reply:
        end = min(time.monotonic() + _SLOWEST * self._timeout, self._end)
        for pause in (*PAUSES, None):
            try:
                return self._once(address, most, first, end)
            except _TryAgainError as error:
                wait = pause if error.wait is None else error.wait
                if pause is None or wait is None or wait > _LONGEST_WAIT or time.monotonic() + wait > end:
                    asked = f", and asks to wait {error.wait:,.0f} seconds" if error.wait is not None else ""
                    raise self._unreachable(error.reason + asked) from None
            time.sleep(wait)
        raise AssertionError

    def _once(self, address: str, most: int, first: int | None, end: float) -> Reply:
        headers = dict(self._headers)
        if first is not None:
            headers["Range"] = f"bytes={first}-{first + most - 1}"
        try:
            from huggingface_hub import get_session

            session = get_session()

            def ask() -> Reply:
                with _opened(session, address, headers, self._timeout) as (response, pieces):
                    return self._read(response, timely(pieces, end), most, first)

            return before(end, ask)
        except (HubError, _TryAgainError):
            raise
        except LateError as error:
            received = f": {error.received:,} bytes came in time" if error.received else ""
            raise self._unreachable(f"{self.name} sends too slowly{received}") from None
        except Exception as error:  # noqa: BLE001 - the three supported clients all have different exceptions
            reason, again = _reason(error, self._timeout)
        if again:
            raise _TryAgainError(reason) from None
        raise self._unreachable(reason) from None

    def _read(self, response: Any, pieces: Iterator[bytes], most: int, first: int | None) -> Reply:
        status = int(response.status_code)
        if status in _BUSY:
            reason = "is asked too often" if status == 429 else "is out of order"
            raise _TryAgainError(f"{self.name} {reason} (status {status})", _wait(response.headers))
        body, file_bytes = b"", None
        if status in {200, 206}:
            body, file_bytes = self._body(response, pieces, most, first)
        return Reply(
            status=status,
            code=_word(response.headers.get("X-Error-Code")),
            body=body,
            commit=_commit(response),
            file_bytes=file_bytes,
            id=self._id(response),
        )

    def _body(self, response: Any, pieces: Iterator[bytes], most: int, first: int | None) -> tuple[bytes, int | None]:
        """The requested bytes and the size of the file. Bytes after the requested ones are not read."""
        encoding = str(response.headers.get("Content-Encoding") or "identity").strip().lower()
        if encoding not in {"identity", "gzip"} or (encoding == "gzip" and response.status_code == 206):
            raise self._unreachable(f"{self.name} sends a compressed answer, which was not asked for")
        size = None
        if encoding == "gzip":
            pieces = unzipped(pieces)
        else:
            size = _number(response.headers.get("Content-Length"))
        if first is None:
            if size is not None and size > most:
                return bytes(most + 1), size
            body, more = _up_to(pieces, most + 1), most + 1
        elif response.status_code == 206:
            match = _CONTENT_RANGE.fullmatch(str(response.headers.get("Content-Range", "")).strip())
            if match is None or int(match[1]) != first:
                raise self._unreachable(f"{self.name} answers a request for a part of a file with another part")
            size, more = int(match[3]), min(most, int(match[3]) - first)
            body = _up_to(pieces, more)
        else:  # the server ignores ranges; parts are near the start of a file, so reading from the start costs little
            more = first + most
            body = _up_to(pieces, more)
        if len(body) < (more if size is None else min(more, size)) and (size is not None or first is not None):
            raise _TryAgainError(f"an answer of {self.name} broke off after {len(body):,} bytes")
        return (body if first is None or response.status_code == 206 else body[first:]), size

    def _id(self, response: Any) -> str | None:
        """The name of the repository, from the last address on this Hub that contains one. Addresses of its store do not."""
        hub = urlsplit(self.endpoint)
        for answer in (response, *reversed(response.history)):
            address = urlsplit(str(answer.url))
            if address.netloc.rpartition("@")[2] == hub.netloc.rpartition("@")[2]:
                match = _ID_IN_ADDRESS.match(address.path.removeprefix(hub.path))
                if match is not None:
                    return match[1]
        return None

    def _unreachable(self, reason: str) -> HubUnreachableError:
        words = reason if self.name in reason else f"{self.name} cannot be reached: {reason}"
        return HubUnreachableError(
            f"{words}.", hint="Try again later, give another address (--endpoint, HF_ENDPOINT), or a folder or config.json."
        )

    def refusal(self, reply: Reply, model_id: str) -> HubError:
        """The error for a status that means neither success nor a missing file."""
        page = f"{self.page}/{model_id}"
        if reply.status in {401, 403}:
            if reply.code == "GatedRepo":
                how = (
                    "ask for access there with the account of your token."
                    if self.has_token
                    else "then sign in: hf auth login, or --token."
                )
                return HubAccessError(
                    f"{shown(model_id)} is gated on {self.name}: its owner grants access.",
                    hint=f"Accept its terms at {page}; {how}",
                )
            if self.has_token:
                return HubAccessError(
                    f"{self.name} refuses {shown(model_id)} (status {reply.status}): your token gives no access to it, or is not valid.",
                    hint="Check the id and the token (hf auth whoami).",
                )
            return HubAccessError(
                f"{self.name} refuses {shown(model_id)} (status {reply.status}): it is private, or there is no such model.",
                hint="Check the id; for a private model sign in: hf auth login, or --token.",
            )
        return HubError(f"{self.name} answers the request for {shown(model_id)} with status {reply.status}.", hint=f"See {page}")


@contextmanager
def _opened(session: Any, address: str, headers: Mapping[str, str], timeout: float) -> Iterator[tuple[Any, Iterator[bytes]]]:
    """Open a response without reading its body, and return it with the pieces of the body as they arrive, still compressed.

    huggingface_hub has changed its HTTP client twice, so both interfaces are supported.
    """
    if callable(getattr(session, "stream", None)):  # httpx, httpx2
        with session.stream("GET", address, headers=headers, timeout=timeout, follow_redirects=True) as response:
            yield response, response.iter_raw()
    else:  # requests
        with session.get(address, headers=headers, timeout=timeout, stream=True) as response:
            read = getattr(response.raw, "read1", response.raw.read)
            yield response, iter(lambda: read(_PIECE), b"")


def _up_to(pieces: Iterator[bytes], most: int) -> bytes:
    """At most ``most`` bytes."""
    body = bytearray()
    while len(body) < most and (piece := next(pieces, b"")):
        body += piece
    del body[most:]
    return bytes(body)


def _reason(error: Exception, timeout: float) -> tuple[str, bool]:
    """The meaning of a client's exception, and whether another try may help. Its text is not used: it may quote a header."""
    names = {base.__name__ for base in type(error).__mro__}
    if "TooManyRedirects" in names:
        return "it redirects in a circle", False
    if names & {"TimeoutException", "Timeout", "ReadTimeoutError"}:
        return f"no answer within {timeout:,.0f} seconds", False
    if "ProxyError" in names:
        return "the proxy refuses", False
    if "OfflineModeIsEnabled" in names:
        return "HF_HUB_OFFLINE is set", False
    if "SSLError" in names or "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "its certificate is not trusted", False
    if names & {"ConnectError", "ConnectionError"}:
        return "no connection", False
    if names & {"ReadError", "RemoteProtocolError", "ProtocolError"}:
        return "the answer broke off", True
    return f"the request failed ({type(error).__name__})", False


def _wait(headers: Mapping[str, str]) -> float | None:
    """The seconds that the server asks to wait, or ``None``."""
    word = str(headers.get("Retry-After") or "").strip()
    if word.isascii() and word.isdigit():
        return float(word[:9])
    match = _RESET.search(str(headers.get("RateLimit") or ""))
    return None if match is None else float(match[1])


def _commit(response: Any) -> str | None:
    """The commit of the answer. If the Hub redirects to a content network, only the redirect names the commit."""
    for answer in (response, *reversed(response.history)):
        commit = str(answer.headers.get("X-Repo-Commit") or "")
        if _COMMIT.fullmatch(commit):
            return commit
    return None


def _word(text: object) -> str:
    return text if isinstance(text, str) and text.isascii() and text.isalpha() and len(text) < 64 else ""


def _number(text: object) -> int | None:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 19 else None


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
