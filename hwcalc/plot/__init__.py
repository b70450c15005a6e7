"""Pictures of a model's memory, in a file or in the terminal."""

from __future__ import annotations
