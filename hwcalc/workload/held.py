"""How long sequences are while they are served: what ``--avg-seq`` names, as a distribution of lengths."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from hwcalc.errors import UsageError
from hwcalc.text import shown
from hwcalc.units import parse_token_list, parse_tokens
from hwcalc.workload.lengths import Geometric, Lengths, Listed, read_lengths
from hwcalc.workload.made import words_of
from hwcalc.workload.opening import workload

if TYPE_CHECKING:
    from hwcalc.workload.request import Workload

MOST_HELD: Final = 1 << 23
"""The longest sequence of which every length is told apart."""
MADE: Final = 100_000
"""Requests that are made to see how long they are, where words make them."""


_MOST_LISTED: Final = 100_000


def check_words(value: Any, name: str) -> str:
    """The words of lengths as text. Raises :class:`~hwcalc.errors.UsageError` for those that name none; files are not read yet."""
    if isinstance(value, Lengths):
        return value.text
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, parse_token_list(value, name, _MOST_LISTED)))
    words = value.strip() if isinstance(value, str) else str(parse_tokens(value, name))
    if not _names_requests(words) and not _may_be_file(words):
        read_lengths(words, name)
    return words


def _names_requests(words: str) -> bool:
    return "=" in words and " " in words


def _may_be_file(words: str) -> bool:
    import os

    if os.path.lexists(words):
        return True
    return "=" not in words and (
        any(letter in words for letter in "/\\") or words.endswith((".csv", ".jsonl", ".json", ".parquet"))
    )


def held_lengths(words: str, longest: int, name: str = "avg_seq") -> tuple[Lengths, str]:
    """The distribution of the tokens that a sequence holds, at most ``longest``, and in words what it is.

    A bare number is a mean; of lengths, sequences are at their full length. Of requests with a prompt and an output (words, or a trace), they
    are at a random moment of their decoding: long outputs take long, so they are seen more often.

    >>> held_lengths("4k", 32768)[1]
    'geometric with a mean of 4,096, at most 32,768'
    """
    if longest > MOST_HELD:
        raise UsageError(f"--avg-seq with sequences of {longest:,} tokens.", hint=f"At most {MOST_HELD:,}: give --seq.")
    if _names_requests(words):
        return _of_requests(workload(words_of(words) | _many(words)), longest), f"{words}; at a random moment of decoding"
    if _may_be_file(words):
        return _of_file(words, longest, name)
    lengths = read_lengths(words, name, longest=longest, mean=True)
    if isinstance(lengths, Geometric):
        return lengths, f"geometric with a mean of {lengths.mean:,.0f}, at most {lengths.longest:,}"
    return lengths, f"{lengths.text}, at most {lengths.longest:,}"


def _many(words: str) -> dict[str, Any]:
    return {} if "requests=" in words else {"requests": MADE}


def _of_file(path: str, longest: int, name: str) -> tuple[Lengths, str]:
    """The lengths of a file that has one in each line, or those of the requests of a trace."""
    from hwcalc.workload.reading import read_lines

    first = next(
        (line.partition("#")[0].strip() for _, line in read_lines(path, f"{name} ") if line.partition("#")[0].strip()), ""
    )
    if first[:1].isdigit() and "," not in first:
        lengths = read_lengths(path, name, longest=longest)
        return lengths, f"lengths of {path}, at most {lengths.longest:,}"
    opened = workload(path)
    return _of_requests(opened, longest), f"requests of {opened.name}, at a random moment of decoding"


def _of_requests(requests: Workload, longest: int) -> Lengths:
    """The tokens that are stored at a random step of a random request: prompt, and the output before the step.

    A request of 100 + 3 tokens stores 100, 101 and 102 tokens in its three steps. Those beyond the longest count as the longest.
    """
    steps = Counter[int]()
    for request in requests:
        low = min(request.prompt_tokens, longest)
        high = min(request.prompt_tokens + request.output_tokens - 1, longest)
        # As differences: a step at each length from low to high, and all the others at the longest.
        steps[low] += request.samples
        steps[high + 1] -= request.samples
        beyond = request.output_tokens - (high - low + 1)
        steps[longest] += request.samples * beyond
        steps[longest + 1] -= request.samples * beyond
    counted, now = dict[int, int](), 0
    edges = sorted(steps)
    if not edges:
        raise UsageError(f"{shown(requests.name, 60)} has no requests.", hint="A trace has a line for each request.")
    for edge, after in zip(edges, [*edges[1:], edges[-1] + 1], strict=True):
        now += steps[edge]
        if now:
            counted |= dict.fromkeys(range(edge, after), now)
    return Listed.of(counted, requests.name)
