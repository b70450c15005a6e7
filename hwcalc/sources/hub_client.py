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
from pathlib import Path
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
    """The content of gzip pieces, of one member or several, never more than 64 KiB at once: a short answer can unpack to gigabytes."""
    import zlib

    decoder = zlib.decompressobj(wbits=31)
    for piece in pieces:
        rest, more = piece, True
        while more:
            if decoder.eof:
                rest = decoder.unused_data + rest if rest is piece else decoder.unused_data
                if rest[:1] != _GZIP:
                    break  # the end, or what fills the file up
                decoder = zlib.decompressobj(wbits=31)
            content = decoder.decompress(rest, _PIECE)
            rest = decoder.unconsumed_tail
            more = bool(rest) or len(content) == _PIECE or decoder.eof
            if content:
                yield content


_GZIP: Final = b"\x1f"
"""The first byte of a member of gzip."""
_LONGEST_TIMEOUT: Final = 3600.0
"""Most seconds that a piece of an answer may be waited for."""
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
_MOST_TOKEN_BYTES: Final = 65_536
"""Of the file that a token is stored in."""
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
        host = (parts.hostname or "") + (f":{parts.port}" if parts.port else "")
        self.name = "the Hugging Face Hub" if host == "huggingface.co" else f"the Hub at {printable(host)}"
        """The name of the Hub for messages: its address without a password."""
        self.page = printable(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl())
        """The web address of the Hub, without a password."""
        if not token:
            try:
                _check_stored(Path(constants.HF_TOKEN_PATH))
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
        if not 0 < self._timeout <= _LONGEST_TIMEOUT:
            raise UsageError(
                f"HF_HUB_DOWNLOAD_TIMEOUT is {self._timeout:g}, and a request takes no such time.",
                hint=f"Write seconds, up to {_LONGEST_TIMEOUT:g}.",
            )
        self._end = time.monotonic() + _LONGEST_READING

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
            asked = str(response.headers.get("Retry-After") or "").strip()
            if not (asked.isascii() and asked.isdigit()):
                match = _RESET.search(str(response.headers.get("RateLimit") or ""))
                asked = "" if match is None else match[1]
            raise _TryAgainError(f"{self.name} {reason} (status {status})", float(asked[:9]) if asked else None)
        body, file_bytes = b"", None
        if status in {200, 206}:
            body, file_bytes = self._body(response, pieces, most, first)
        word = str(response.headers.get("X-Error-Code") or "")
        code = word if word.isascii() and word.isalpha() and len(word) < 64 else ""
        commit, repository, hub = None, None, urlsplit(self.endpoint)
        # If the Hub redirects to a content network, only the redirect names commit and repository, by its own address.
        for answer in (response, *reversed(response.history)):
            named = str(answer.headers.get("X-Repo-Commit") or "")
            if commit is None and _COMMIT.fullmatch(named):
                commit = named
            address = urlsplit(str(answer.url))
            if repository is None and address.netloc.rpartition("@")[2] == hub.netloc.rpartition("@")[2]:
                match = _ID_IN_ADDRESS.match(address.path.removeprefix(hub.path))
                repository = None if match is None else match[1]
        return Reply(status=status, code=code, body=body, commit=commit, file_bytes=file_bytes, id=repository)

    def _body(self, response: Any, pieces: Iterator[bytes], most: int, first: int | None) -> tuple[bytes, int | None]:
        """The requested bytes and the size of the file. Bytes after the requested ones are not read."""
        encoding = str(response.headers.get("Content-Encoding") or "identity").strip().lower()
        if encoding not in {"identity", "gzip"} or (encoding == "gzip" and response.status_code == 206):
            raise self._unreachable(f"{self.name} sends a compressed answer, which was not asked for")
        size, length = None, str(response.headers.get("Content-Length") or "")
        if encoding == "gzip":
            pieces = unzipped(pieces)
        elif length.isascii() and length.isdigit() and len(length) < 19:
            size = int(length)
        part = first is not None and response.status_code == 206
        if part:
            match = _CONTENT_RANGE.fullmatch(str(response.headers.get("Content-Range", "")).strip())
            if match is None or int(match[1]) != first:
                raise self._unreachable(f"{self.name} answers a request for a part of a file with another part")
            size, more = int(match[3]), min(most, int(match[3]) - first)
        elif first is None:
            if size is not None and size > most:
                return bytes(most + 1), size
            more = most + 1
        else:  # the server ignores ranges; parts are near the start of a file, so reading from the start costs little
            more = first + most
        body = bytearray()
        while len(body) < more and (piece := next(pieces, b"")):
            body += piece
        del body[more:]
        if len(body) < (more if size is None else min(more, size)) and (size is not None or first is not None):
            raise _TryAgainError(f"an answer of {self.name} broke off after {len(body):,} bytes")
        return bytes(body if first is None or part else body[first:]), size

    def _unreachable(self, reason: str) -> HubUnreachableError:
        words = reason if self.name in reason else f"{self.name} cannot be reached: {reason}"
        return HubUnreachableError(
            f"{words}.", hint="Try again later, give another address (--endpoint, HF_ENDPOINT), or a folder or config.json."
        )

    def refusal(self, reply: Reply, model_id: str) -> HubError:
        """The error for a status that means neither success nor a missing file."""
        page = f"{self.page}/{model_id}"
        if reply.status not in {401, 403}:
            what = f"{self.name} answers the request for {shown(model_id)} with status {reply.status}."
            return HubError(what, hint=f"See {page}")
        if reply.code == "GatedRepo":
            how = "then sign in: hf auth login, or --token."
            if self.has_token:
                how = "ask for access there with the account of your token."
            what = f"{shown(model_id)} is gated on {self.name}: its owner grants access."
            return HubAccessError(what, hint=f"Accept its terms at {page}; {how}")
        what = f"{self.name} refuses {shown(model_id)} (status {reply.status})"
        if self.has_token:
            what += ": your token gives no access to it, or is not valid."
            return HubAccessError(what, hint="Check the id and the token (hf auth whoami).")
        what += ": it is private, or there is no such model."
        return HubAccessError(what, hint="Check the id; for a private model sign in: hf auth login, or --token.")


def _check_stored(path: Path) -> None:
    """Raise :class:`OSError` for a stored token that huggingface_hub would read without end: a device, a pipe, or no token's length."""
    if path.exists() and not (path.is_file() and path.stat().st_size <= _MOST_TOKEN_BYTES):
        raise OSError(path)


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


def _reason(error: Exception, timeout: float) -> tuple[str, bool]:
    """The meaning of a client's exception, and whether another try may help. Its text is not used: it may quote a header."""
    names = {base.__name__ for base in type(error).__mro__}
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        names.add("SSLError")
    meanings = {
        "it redirects in a circle": {"TooManyRedirects"},
        f"no answer within {timeout:,.0f} seconds": {"TimeoutException", "Timeout", "ReadTimeoutError"},
        "the proxy refuses": {"ProxyError"},
        "HF_HUB_OFFLINE is set": {"OfflineModeIsEnabled"},
        "its certificate is not trusted": {"SSLError"},
        "no connection": {"ConnectError", "ConnectionError"},
        "SSL_CERT_FILE or another variable names a certificate that is not there": {"FileNotFoundError"},
        "the proxy of the environment needs a package that is not installed": {"ImportError"},
        "the answer broke off": {"ReadError", "RemoteProtocolError", "ProtocolError"},
    }
    reason = next((meaning for meaning, known in meanings.items() if names & known), None)
    return reason or f"the request failed ({type(error).__name__})", reason == "the answer broke off"


class Listing(Record):
    """The names of a repository's files, and the id of the base model (empty if the page does not name one)."""

    names: tuple[str, ...]
    base: str


class Repository:
    """One commit of one repository. A missing file is ``None``; a refused or failed request raises :class:`HubError`.

    ``asked`` is the id in the request, ``id`` the current name of the repository. ``commit`` is ``None`` if a mirror does not say
    it.
    """

    parallel = 8

    def __init__(self, client: HubClient, reply: Reply | None, model_id: str, revision: str) -> None:
        whole = re.fullmatch(r"[0-9a-f]{40}", revision)
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
        """The list of files and the base model in the reply; ``None`` if it is a 404."""
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
