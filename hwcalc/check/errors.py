"""Errors of check files, locks and baselines."""

from __future__ import annotations

from hwcalc.errors import KvplanError, UsageError

__all__ = ["BaselineError", "CheckFileError", "CheckUsageError", "LockError", "NoVerdictError"]


class _PlacedError(KvplanError):
    """An error at a ``line`` and ``column`` of a check file, both counted from 1."""

    def __init__(self, message: str, *, hint: str = "", line: int = 1, column: int = 1) -> None:
        super().__init__(message, hint=hint)
        self.line = line
        self.column = column


class CheckFileError(_PlacedError, ValueError):
    """A check file is missing or cannot be read as YAML: exit 3."""

    exit_code = 3
    type = "bad-check-file"


class CheckUsageError(_PlacedError, UsageError):
    """A check file is readable but wrong, with an unknown key or a value out of range: exit 2.

    ``others`` are the further faults of the file.
    """

    type = "bad-check"
    others: tuple[CheckUsageError, ...] = ()


class LockError(KvplanError, ValueError):
    """A lock file is broken, has another version, or lacks a model: exit 3."""

    exit_code = 3
    type = "lock"


class BaselineError(KvplanError, ValueError):
    """A baseline cannot be read or is not a document of kvplan: exit 3."""

    exit_code = 3
    type = "baseline"


class NoVerdictError(KvplanError):
    """A check demands a verdict that nobody can give. Nothing was typed wrongly, and it is no pass: exit 1, as of a plan without one."""

    exit_code = 1
    type = "no-verdict"
