"""A server that runs, as far as kvplan asks it: GET of a path of one named host, bounded in bytes and in time.

Nothing is sent but the path and, where the user names one, an API key. Redirects are followed on the same host only, compressed answers are
refused, and proxies of the environment are not used. No message repeats what the server wrote, and a key that it sends back is hidden.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Final
from urllib.parse import SplitResult, urljoin, urlsplit

from hwcalc._version import __version__
from hwcalc.errors import ServerError, UsageError
from hwcalc.sources.hub_client import LateError, before
from hwcalc.sources.request import tell
from hwcalc.text import printable, shown

SECONDS: Final = 10.0
"""Most time for one answer, with its redirects."""
MOST_BYTES: Final = 8 * 1024**2
"""Most bytes of one answer. ``/metrics`` of a busy server has some hundred thousand."""
_MOST_REDIRECTS: Final = 3
_SCHEMES: Final[Mapping[str, type[HTTPConnection]]] = {"http": HTTPConnection, "https": HTTPSConnection}
_ENDINGS: Final = ("/metrics", "/v1/models", "/v1", "/props", "/slots", "/info", "/server_info", "/get_server_info", "/version")
"""Ends of an address that people copy; what is asked is put behind the rest."""
_KEY: Final = re.compile(r"[!-~]{1,4096}")
_REFUSED: Final = frozenset({401, 403})


def is_address(text: str) -> bool:
    """True if a word is the address of a server.

    >>> is_address("http://localhost:8000"), is_address("org/name"), is_address("server.log")
    (True, False, False)
    """
    return text.lower().startswith(("http://", "https://"))


class Endpoint:
    """One server. ``statuses`` are those of the paths that were asked. Raises :class:`~hwcalc.errors.UsageError` for a wrong address or key."""

    def __init__(self, address: str, key_variable: str | None = None) -> None:
        self._parts = _split(address)
        self._key = None if key_variable is None else _key_of(key_variable)
        self._named = key_variable is not None
        self.statuses: dict[str, int] = {}

    @property
    def address(self) -> str:
        """The address, for messages."""
        return printable(self._parts.geturl())

    def get(self, path: str) -> str | None:
        """The text of an answer with status 200; ``None`` for any other. Raises :class:`~hwcalc.errors.ServerError` without a usable answer."""
        tell(f"asking {self.address}{path}")
        end = time.monotonic() + SECONDS
        address = self._parts._replace(path=self._parts.path + path)
        for _ in range(_MOST_REDIRECTS):
            status, found, body = self._once(address, path, end)
            if not 300 <= status < 400:
                self.statuses[path] = status
                text = body.decode("utf-8", "replace") if status == 200 else None
                return text if text is None or self._key is None else text.replace(self._key, "***")
            target = _joined(address, found)
            if target is None or (target.scheme, target.netloc) != (address.scheme, address.netloc):
                raise self._error(
                    f"redirects {path} to another host, and only the named one is asked", "Name that host, if you trust it."
                )
            address = target
        raise self._error(f"redirects {path} in a circle")

    @property
    def refusal(self) -> ServerError | None:
        """The error of a server that refused every path for want of a key; ``None`` if it did not."""
        if not self.statuses or not _REFUSED & set(self.statuses.values()):
            return None
        if self._named:
            return self._error("refuses the API key", "Check the variable that --api-key-env names.")
        return self._error("wants an API key", "Put it into a variable, and name that: --api-key-env VLLM_API_KEY")

    def _once(self, address: SplitResult, path: str, end: float) -> tuple[int, str, bytes]:
        """The status, the target of a redirect and the body of one request."""
        headers = {"User-Agent": f"kvplan/{__version__}", "Accept-Encoding": "identity", "Connection": "close"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        connection = _SCHEMES[address.scheme](address.hostname or "", address.port, timeout=SECONDS)

        def ask() -> tuple[int, str, bytes]:
            connection.request("GET", address.path or "/", headers=headers)
            response = connection.getresponse()
            return response.status, response.getheader("Location") or "", self._body(response, path)

        with closing(connection):
            try:
                return before(end, ask)
            except ServerError:
                raise
            except (LateError, TimeoutError):
                raise self._error(f"sends no whole answer to {path} within {SECONDS:g} seconds") from None
            except (OSError, HTTPException, ValueError) as error:
                raise self._error(_reason(error)) from None

    def _body(self, response: HTTPResponse, path: str) -> bytes:
        if response.status != 200:
            return b""
        if (response.getheader("Content-Encoding") or "identity").strip().lower() != "identity":
            raise self._error(f"sends a compressed answer to {path}, which was not asked for")
        body = response.read(MOST_BYTES + 1)
        if len(body) > MOST_BYTES:
            raise self._error(f"answers {path} with more than {MOST_BYTES // 1024**2} MiB, as no engine does")
        if response.length:
            raise ConnectionResetError
        return body

    def _error(self, what: str, hint: str = "Check the address: kvplan reconcile http://localhost:8000") -> ServerError:
        return ServerError(f"{self.address} {what}.", hint=hint)


def _split(address: str) -> SplitResult:
    """The parts of an address, without the end that names a path of its server."""
    try:
        parts = urlsplit(address.strip())
        good = parts.scheme in _SCHEMES and bool(parts.hostname) and not parts.query and not parts.fragment and parts.port != 0
        good = good and all("!" <= letter <= "~" for letter in parts.geturl())
    except ValueError:
        good = False
    if not good:
        raise UsageError(
            f"{shown(address, 60)} is no address of a server.",
            hint="Write it as http://HOST:PORT or https://HOST, without ? and #.",
        )
    if "@" in parts.netloc:
        raise UsageError(
            "the address has a password in it.", hint="Put an API key into a variable, and name that: --api-key-env NAME"
        )
    path = parts.path.rstrip("/")
    ending = next((ending for ending in _ENDINGS if path.endswith(ending)), "")
    return parts._replace(path=path.removesuffix(ending))


def _joined(address: SplitResult, target: str) -> SplitResult | None:
    """The address of a redirect; ``None`` if it is none."""
    try:
        return urlsplit(urljoin(address.geturl(), target))
    except ValueError:
        return None


def _key_of(variable: str) -> str:
    """The API key that a variable of the environment has."""
    key = os.environ.get(variable, "").strip()
    if not key:
        # What was given may be the key itself.
        raise UsageError(
            "--api-key-env names a variable that is not set.", hint="Write: --api-key-env VLLM_API_KEY, the name and not the key."
        )
    if not _KEY.fullmatch(key):
        raise UsageError(
            "the API key in that variable has characters that no key has.", hint="Check it for blanks and line ends."
        )
    return key


def _reason(error: Exception) -> str:
    """The meaning of an exception of the connection. Its own text is not used."""
    from socket import gaierror
    from ssl import SSLCertVerificationError, SSLError

    meanings: tuple[tuple[type[Exception], str], ...] = (
        (SSLCertVerificationError, "has a certificate that is not trusted (SSL_CERT_FILE names others)"),
        (SSLError, "does not speak TLS: its address may begin with http:"),
        (gaierror, "has a name that nobody knows"),
        (ConnectionRefusedError, "cannot be reached: nobody listens there"),
        (ConnectionError, "ended the connection before its answer was whole"),
        (HTTPException, "does not answer as a web server does"),
    )
    return next((meaning for kind, meaning in meanings if isinstance(error, kind)), f"cannot be reached ({type(error).__name__})")
