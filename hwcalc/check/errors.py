"""What can be wrong with a check file and what lies beside it."""

from __future__ import annotations

from hwcalc.errors import KvplanError, UsageError

__all__ = ["BaselineError", "CheckFileError", "CheckUsageError", "LockError"]


class _PlacedError(KvplanError):
    """An error at a ``line`` and ``column`` of a check file, both from 1."""

    def __init__(self, message: str, *, hint: str = "", line: int = 1, column: int = 1) -> None:
        super().__init__(message, hint=hint)
        self.line = line
        self.column = column


class CheckFileError(_PlacedError, ValueError):
    """A check file that is not there, or is no YAML that can be read: exit 3."""

    exit_code = 3
    type = "bad-check-file"


class CheckUsageError(_PlacedError, UsageError):
    """A check file that can be read, but asks for something wrong: an unknown key, a value out of range. Exit 2."""

    type = "bad-check"


class LockError(KvplanError, ValueError):
    """A lock file that is broken, of another version, or lacks a model: exit 3."""

    exit_code = 3
    type = "lock"


class BaselineError(KvplanError, ValueError):
    """A baseline that cannot be read or is no document of kvplan: exit 3."""

    exit_code = 3
    type = "baseline"
