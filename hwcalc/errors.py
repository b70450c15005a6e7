"""One hierarchy of errors, each with its exit code.

A message says what was given and what is allowed; the hint says what to type next.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "ConfigError",
    "HubAccessError",
    "HubError",
    "HubUnreachableError",
    "KvplanError",
    "LogError",
    "ModelNotFoundError",
    "UnknownArchitectureError",
    "UnknownNameError",
    "UnreadKeysError",
    "UnsupportedError",
    "UsageError",
]


class KvplanError(Exception):
    """Base of everything that kvplan raises on purpose.

    ``exit_code`` is the command's exit status, ``type`` the stable name in JSON, ``hint`` the next thing to try.
    """

    exit_code: ClassVar[int] = 2
    type: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(KvplanError, ValueError):
    """An option or argument that is wrong by itself: exit 2."""

    type = "usage"


class UnknownNameError(UsageError):
    """A name that no model could have, such as that of an engine or a dtype: exit 2. ``option`` is what it was given as."""

    def __init__(self, message: str, *, option: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.option = option


class ModelNotFoundError(KvplanError, LookupError):
    """No source knows this model: exit 3."""

    exit_code = 3
    type = "model-not-found"


class ConfigError(KvplanError, ValueError):
    """A config that cannot be read or whose values make no sense: exit 3."""

    exit_code = 3
    type = "bad-config"


class LogError(KvplanError, ValueError):
    """An engine's log that cannot be read, or that states nothing that a plan can be compared with: exit 3."""

    exit_code = 3
    type = "bad-log"


class UnknownArchitectureError(ConfigError):
    """No parser claims this config: exit 3."""

    type = "unknown-architecture"


class UnreadKeysError(ConfigError):
    """The config has keys that bear on the cache and that its parser does not know: exit 3."""

    type = "unread-keys"

    def __init__(self, message: str, *, keys: tuple[str, ...], hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.keys = keys


class UnsupportedError(KvplanError):
    """The engine cannot run or store this model this way: exit 3."""

    exit_code = 3
    type = "unsupported"


class HubError(KvplanError, OSError):
    """The Hub did not give what it was asked for: exit 4."""

    exit_code = 4
    type = "hub"


class HubAccessError(HubError):
    """The Hub refuses: a gated or private model, or a token it does not accept: exit 4."""

    type = "hub-access"


class HubUnreachableError(HubError):
    """The Hub cannot be reached, or gives no usable answer in time: exit 4."""

    type = "hub-unreachable"
