"""The text of ``/metrics``, a line at a time: the one reader of it, whatever engine wrote it.

The format is that of Prometheus: https://prometheus.io/docs/instrumenting/exposition_formats.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from hwcalc.formulas.record import Record

_MOST_LABELS: Final = 1000
_LONGEST_LABEL: Final = 4096


class Sample(Record):
    """A line with a name and labels, and its value; a whole value is an integer. ``None`` is one that is cut off or no finite number."""

    name: str
    labels: Mapping[str, str]
    value: int | float | None


def sample(text: str) -> Sample:
    """The sample that a line is; that of a comment has an empty name.

    >>> sample('sglang:token_usage{tp_rank="0"} 0.25')
    Sample(name='sglang:token_usage', labels={'tp_rank': '0'}, value=0.25)
    """
    name = text.partition("{")[0].partition(" ")[0]
    if name.startswith("#"):
        return Sample(name="", labels={}, value=None)
    end = text.rfind("}") + 1 if text.startswith(f"{name}{{") else len(name)
    words = text[end:].split() if end else []
    try:
        value = float(words[0]) if words else math.nan
    except ValueError:
        value = math.nan
    whole: int | float = int(value) if value.is_integer() else value
    return Sample(name=name, labels=_labels(text), value=whole if math.isfinite(value) else None)


def _labels(text: str) -> dict[str, str]:
    r"""The labels of one sample. If the text is cut, only complete labels are returned.

    >>> _labels('vllm:cache_config_info{block_size="16",note="a\\"b",num_gpu_blocks="24') == {"block_size": "16", "note": 'a"b'}
    True
    """
    out: dict[str, str] = {}
    place = text.find("{") + 1
    while place and len(out) < _MOST_LABELS:
        equals = text.find('="', place)
        if equals < 0:
            break
        name = text[place:equals].strip(" ,")
        value, place = _quoted(text, equals + 2)
        if place < 0:
            break
        if len(name) <= _LONGEST_LABEL and len(value) <= _LONGEST_LABEL:
            out[name] = value
        if text[place : place + 1] == "}":
            break
    return out


def _quoted(text: str, start: int) -> tuple[str, int]:
    """The text up to the closing quote, and the position behind it, which is -1 if there is no closing quote."""
    letters: list[str] = []
    place = start
    while place < len(text):
        letter = text[place]
        if letter == '"':
            return "".join(letters), place + 1
        if letter == "\\" and place + 1 < len(text):
            place += 1
            letter = {"n": "\n"}.get(text[place], text[place])
        letters.append(letter)
        place += 1
    return "", -1
