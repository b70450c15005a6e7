"""Requests to the Hub with huggingface_hub's session, address and token; the only module that imports it.

What huggingface_hub reads from the environment counts here: ``HF_ENDPOINT``, ``HF_TOKEN`` and the stored login, proxies, certificates,
``HF_HUB_DOWNLOAD_TIMEOUT``. Unlike its own downloads these are small and bounded: in bytes, in time, and in the number of tries.

The token is sent and never said: errors are made of the status and of words of this program, not of what the client or the server
wrote, and they hide the client's own exception, whose text may quote a header.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from hwcalc._version import __version__
from hwcalc.errors import HubAccessError, HubError, HubUnreachableError, UsageError
from hwcalc.formulas.frozen import frozen
from hwcalc.text import printable, shown

__all__ = ["PAUSES", "HubClient", "Reply"]

PAUSES: Final = (0.5, 1.0)
"""Seconds before the second and the third try."""

_LONGEST_WAIT: Final = 5
"""Seconds. A server that asks for more is not waited for."""
_SLOWEST: Final = 6
"""Time-outs that one whole answer may take: the client's own is for each piece."""
_PIECE: Final = 64 * 1024
_BUSY: Final = frozenset({408, 429, 500, 502, 503, 504})
_COMMIT: Final = re.compile(r"[0-9a-f]{7,64}")
_TOKEN: Final = re.compile(r"[!-~]{1,4096}")
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_RESET: Final = re.compile(r'"\s*;\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d{1,9})')
_ID_IN_ADDRESS: Final = re.compile(r"/([\w.-]+/[\w.-]+)/resolve/", re.ASCII)


class _TryAgainError(Exception):
    """Something that may pass. ``wait`` is what the server asked for, in seconds."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.wait = wait


@frozen
class Reply:
    """An answer of the Hub.

    ``code`` is its word for what is wrong (``EntryNotFound``), ``commit`` the commit that answered, ``file_bytes`` the whole file's
    size, ``id`` the name under which it answered, which differs from the one asked for if the repository was renamed.
    """

    status: int
    code: str
    body: bytes
    commit: str | None
    file_bytes: int | None
    id: str | None


class HubClient:
    """The Hub at one address, for one user.

    ``endpoint`` and ``token`` stand before what the environment says. Raises :class:`~hwcalc.errors.UsageError` if one of them can be
    none. Every request raises :class:`~hwcalc.errors.HubUnreachableError` if no usable answer came.
    """

    def __init__(self, endpoint: str | None = None, token: str | None = None) -> None:
        try:
            from huggingface_hub import constants, get_token
        except ValueError:
            raise UsageError(
                "huggingface_hub cannot be set up: one of its variables is not a number.",
                hint="Check HF_HUB_DOWNLOAD_TIMEOUT and HF_HUB_ETAG_TIMEOUT.",
            ) from None

        self.endpoint = _checked_endpoint(endpoint or os.environ.get("HF_ENDPOINT") or constants.ENDPOINT)
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

    @property
    def name(self) -> str:
        """The Hub in words: its address without a password in it."""
        parts = urlsplit(self.endpoint)
        host = (parts.hostname or "") + (f":{parts.port}" if parts.port else "")
        return "the Hugging Face Hub" if host == "huggingface.co" else f"the Hub at {printable(host)}"

    @property
    def page(self) -> str:
        """Its address for people, without a password in it."""
        parts = urlsplit(self.endpoint)
        return printable(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl())

    def file(self, model_id: str, revision: str, name: str, *, most: int, first: int | None = None) -> Reply:
        """A file: at most ``most`` bytes of it and one more, or with ``first`` exactly its bytes from there on, ``most`` of them."""
        from huggingface_hub import hf_hub_url

        address = hf_hub_url(model_id, name, revision=revision, endpoint=self.endpoint)
        return self._get(address, most, first)

    def listing(self, model_id: str, revision: str, *, most: int) -> Reply:
        """What the Hub knows of a repository: a JSON document with its files as ``siblings``."""
        from urllib.parse import quote

        return self._get(f"{self.endpoint}/api/models/{model_id}/revision/{quote(revision, safe='')}", most, None)

    def _get(self, address: str, most: int, first: int | None) -> Reply:
        for pause in (*PAUSES, None):
            try:
                return self._once(address, most, first)
            except _TryAgainError as error:
                wait = pause if error.wait is None else error.wait
                if pause is None or wait is None or wait > _LONGEST_WAIT:
                    asked = f", and asks to wait {error.wait:,.0f} seconds" if error.wait is not None else ""
                    raise self._unreachable(error.reason + asked) from None
            time.sleep(wait)
        raise AssertionError

    def _once(self, address: str, most: int, first: int | None) -> Reply:
        headers = dict(self._headers)
        if first is not None:
            headers["Range"] = f"bytes={first}-{first + most - 1}"
        try:
            with _opened(address, headers, self._timeout) as (response, pieces):
                return self._read(response, pieces, most, first)
        except (HubError, _TryAgainError):
            raise
        except Exception as error:  # noqa: BLE001 - three generations of clients, each with exceptions of its own
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
        """The bytes asked for and the file's size. What is sent beyond them is not read."""
        size = _number(response.headers.get("Content-Length"))
        if first is None:
            if size is not None and size > most:
                return b" " * (most + 1), size
            body, more = self._up_to(pieces, most + 1), most + 1
        elif response.status_code == 206:
            found = _CONTENT_RANGE.fullmatch(str(response.headers.get("Content-Range", "")).strip())
            if found is None or int(found[1]) != first:
                raise self._unreachable(f"{self.name} answers a request for a part of a file with another part")
            size, more = int(found[3]), min(most, int(found[3]) - first)
            body = self._up_to(pieces, more)
        else:  # it knows no ranges: the part is at the beginning, so little is lost
            more = first + most
            body = self._up_to(pieces, more)
        if len(body) < (more if size is None else min(more, size)) and (size is not None or first is not None):
            raise _TryAgainError(f"an answer of {self.name} broke off after {len(body):,} bytes")
        return (body if first is None or response.status_code == 206 else body[first:]), size

    def _up_to(self, pieces: Iterator[bytes], most: int) -> bytes:
        """At most ``most`` bytes, in bounded time: a server that drips is not waited for."""
        body = bytearray()
        end = time.monotonic() + _SLOWEST * self._timeout
        while len(body) < most:
            piece = next(pieces, b"")
            if not piece:
                break
            body += piece
            if time.monotonic() > end and len(body) < most:
                raise self._unreachable(
                    f"{self.name} sends too slowly: {len(body):,} bytes in {_SLOWEST * self._timeout:,.0f} seconds"
                )
        return bytes(body[:most])

    def _id(self, response: Any) -> str | None:
        """The repository's name in the last address on this Hub that has one: its own content store has none."""
        own = urlsplit(self.endpoint)
        for answer in (response, *reversed(response.history)):
            address = urlsplit(str(answer.url))
            if address.netloc.rpartition("@")[2] == own.netloc.rpartition("@")[2]:
                found = _ID_IN_ADDRESS.match(address.path.removeprefix(own.path))
                if found is not None:
                    return found[1]
        return None

    def _unreachable(self, reason: str) -> HubUnreachableError:
        words = reason if self.name in reason else f"{self.name} cannot be reached: {reason}"
        return HubUnreachableError(
            f"{words}.", hint="Try again later, give another address (--endpoint, HF_ENDPOINT), or a folder or config.json."
        )

    def refusal(self, reply: Reply, model_id: str) -> HubError:
        """The error for an answer that is neither the file nor a word that it is not there."""
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


def _checked_endpoint(text: str) -> str:
    try:
        parts = urlsplit(text.strip().rstrip("/"))
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and not parts.query and not parts.fragment
        good = good and (parts.port is None or parts.port > 0) and all("!" <= letter <= "~" for letter in parts.geturl())
    except ValueError:
        good = False
    if not good:
        raise UsageError("the Hub's address is not one.", hint="Write --endpoint (or HF_ENDPOINT) as https://huggingface.co")
    return parts.geturl()


@contextmanager
def _opened(address: str, headers: Mapping[str, str], timeout: float) -> Iterator[tuple[Any, Iterator[bytes]]]:
    """A response whose body is not read yet, and the pieces of it; huggingface_hub changed its client twice."""
    from huggingface_hub import get_session

    session: Any = get_session()
    if callable(getattr(session, "stream", None)):  # httpx, httpx2
        with session.stream("GET", address, headers=headers, timeout=timeout, follow_redirects=True) as response:
            yield response, response.iter_bytes()  # as they come, so that one who drips is noticed
    else:  # requests
        with session.get(address, headers=headers, timeout=timeout, stream=True) as response:
            read = getattr(response.raw, "read1", response.raw.read)
            yield response, iter(lambda: read(_PIECE), b"")


def _reason(error: Exception, timeout: float) -> tuple[str, bool]:
    """What a client's exception means, and whether another try may help. Its own text is not used: it may quote a header."""
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
    """Seconds that the server asks to wait."""
    word = str(headers.get("Retry-After") or "").strip()
    if word.isascii() and word.isdigit():
        return float(word[:9])
    found = _RESET.search(str(headers.get("RateLimit") or ""))
    return None if found is None else float(found[1])


def _commit(response: Any) -> str | None:
    """The commit; of a file that lies with a content network the Hub says it when it sends the client there."""
    for answer in (response, *reversed(response.history)):
        commit = str(answer.headers.get("X-Repo-Commit") or "")
        if _COMMIT.fullmatch(commit):
            return commit
    return None


def _word(text: object) -> str:
    return text if isinstance(text, str) and text.isascii() and text.isalpha() and len(text) < 64 else ""


def _number(text: object) -> int | None:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 19 else None
