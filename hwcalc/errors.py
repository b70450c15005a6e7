"""All errors of the program. Each class has an exit code.

A message says what the input was and what is allowed. The hint says what to type next. Both are cleaned and cut when they are set, so that
no input in them controls a terminal or fills a log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hwcalc.text import in_python
from hwcalc.text import message as safe_message


def _bare(kind: type[KvplanError], *args: Any) -> KvplanError:
    """An error of this class whose attributes are not set."""
    return kind.__new__(kind, *args)


class KvplanError(Exception):
    """The base class of all errors that kvplan raises on purpose.

    ``exit_code`` is the exit status of the command, ``type`` is the stable name in JSON, ``hint`` is the next thing to try.
    """

    exit_code: ClassVar[int] = 2
    type: ClassVar[str] = "error"
    keywords: ClassVar[frozenset[str]] = frozenset({"kind", "out", "scale"})
    """Options that are keywords in Python. The table of options adds its own (:mod:`hwcalc.planner.options`)."""
    command: tuple[str, Mapping[str, str]] | None = None
    """A command line in the hint, and the options by which it differs from the one that was typed: ``--assume``, and a length where none is known."""
    left_out: tuple[str, ...] = ()
    """Options that were typed and that this command cannot have."""
    written: tuple[str, Mapping[str, str]] | None = None
    """A command line in the hint that writes layers down in place of the model, and its options."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = safe_message(message)
        self.hint = hint
        super().__init__(self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        # An error of a worker comes back with all that its class adds.
        return _bare, (type(self), *self.args), self.__dict__

    def __str__(self) -> str:
        """The message and the hint in the words of Python, where options are keywords. The command line has words of its own."""
        said = self.message if not self.hint or self.message.endswith((".", "?", ":", "*")) else f"{self.message}."
        return " ".join(in_python(text, self.keywords) for text in (said, self.hint) if text)

    @property
    def hint(self) -> str:
        """The next thing to try; empty if there is nothing."""
        return self._hint

    @hint.setter
    def hint(self, text: str) -> None:
        self._hint = safe_message(text)


class UsageError(KvplanError, ValueError):
    """An option or argument is wrong for every model, or it is an engine option or a parallel size that this model cannot have. Exit 2."""

    type = "usage"


class UnmadeFormatError(UsageError):
    """An engine does not make the planned format of the published weights: a checkpoint has to have it. Exit 2. ``weights`` is its name."""

    def __init__(self, message: str, *, weights: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.weights = weights


class NoRoomError(KvplanError):
    """The hardware leaves no memory for a cache, so that there is nothing to replay. Exit 1."""

    exit_code = 1
    type = "no-room"


class UnknownNameError(UsageError):
    """An unknown name of an engine, a dtype or the like. Exit 2. ``option`` is the option that has this value."""

    def __init__(self, message: str, *, option: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.option = option


class ModelNotFoundError(KvplanError, LookupError):
    """No source has this model. Exit 3."""

    exit_code = 3
    type = "model-not-found"


class ConfigError(KvplanError, ValueError):
    """A config cannot be read, or its values make no sense. Exit 3."""

    exit_code = 3
    type = "bad-config"


class LogError(KvplanError, ValueError):
    """An engine's log cannot be read, or it has nothing to compare with a plan. Exit 3."""

    exit_code = 3
    type = "bad-log"


class TraceError(KvplanError, ValueError):
    """A trace of requests cannot be read. Exit 3. The message has the file, and the line where there is one."""

    exit_code = 3
    type = "bad-trace"


class UnknownArchitectureError(ConfigError):
    """No parser reads configs of this architecture. Exit 3."""

    type = "unknown-architecture"


class UnreadKeysError(ConfigError):
    """The config has keys that may change the cache and that its parser does not know. Exit 3."""

    type = "unread-keys"

    def __init__(self, message: str, *, keys: tuple[str, ...], hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.keys = keys


class UnsupportedError(KvplanError):
    """The engine, or this release of it, cannot run this model or store it in this format. Exit 3."""

    exit_code = 3
    type = "unsupported"


class UncountedError(UnsupportedError):
    """The engine may run this, by rules of memory that kvplan does not know."""


class UnknownRulesError(UncountedError):
    """The engine may run on the accelerator, by rules of memory that kvplan does not know."""


class InstallationError(KvplanError):
    """A file of kvplan's own is missing, cannot be read, or is damaged. Exit 70: only a new installation helps."""

    exit_code = 70
    type = "installation"


class OutputError(KvplanError):
    """Standard output or a file cannot be written (a full disk, a folder that is not there). Exit 74, ``EX_IOERR`` of sysexits.h."""

    exit_code = 74
    type = "output"


class UnwritableFileError(OutputError):
    """A file cannot be written; standard output still can. Exit 74."""


class ServerError(KvplanError, OSError):
    """A running server cannot be reached, refuses, or sends no usable answer. Exit 4."""

    exit_code = 4
    type = "server"


class WorkerError(KvplanError):
    """Two workers that were given the same part of the work died, or no worker can do it. Exit 4."""

    exit_code = 4
    type = "worker"


class HubError(KvplanError, OSError):
    """A request to the Hub failed. Exit 4."""

    exit_code = 4
    type = "hub"


class HubAccessError(HubError):
    """The Hub refuses access: the model is gated or private, or the token is not valid. Exit 4."""

    type = "hub-access"


class HubUnreachableError(HubError):
    """The Hub cannot be reached, or it sends no usable answer in time. Exit 4."""

    type = "hub-unreachable"
