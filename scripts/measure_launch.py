"""Measure how well commands and manifests are read: compare the readings of a corpus with what people read in it.

python scripts/measure_launch.py CORPUS.jsonl [--show] [--open] [--only ID ...]

A row of the corpus has ``id``, ``kind``, ``text``, and ``expected``: a list of servers with the keys of ``Server.to_dict()``. A row is exact if it
has as many servers, and each the same value for every key but ``unresolved``, which is prose: of that, the names of what is left open are compared
and counted apart.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hwcalc.errors import KvplanError
from hwcalc.launch.read import read_launch
from hwcalc.launch.server import KEYS

KNOWN: Mapping[str, str] = {
    "c120": "the row does not list --no-context-shift among the flags without effect; nothing is allocated for it",
    "f200": "VLLM_USE_V1=1 is what the release does anyway, and offloading before quantization is a fork's: neither is kept",
    "f289": "the row lists --seed among vLLM's flags, and it is one of `uv venv`",
    "f305": "the row lists two flags of a macro for a third server, which does not use that macro",
}
"""Rows that are not exact -> the reason."""
_EMPTY: tuple[Any, ...] = (None, [], {}, ())


def main(arguments: list[str] | None = None) -> int:
    """Print how many rows are exact, and what is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--show", action="store_true", help="print each difference")
    parser.add_argument("--open", action="store_true", help="print differences of what is left open, too")
    parser.add_argument("--only", nargs="*", default=None, help="ids of rows")
    asked = parser.parse_args(arguments)
    rows = [json.loads(line) for line in asked.corpus.read_text(encoding="utf-8").splitlines() if line.strip()]
    exact, settings_alone, named = 0, 0, 0
    missed: Counter[str] = Counter()
    chosen = [row for row in rows if asked.only is None or row["id"] in asked.only]
    for row in chosen:
        try:
            got = [server.to_dict() for server in read_launch(row["text"])]
        except KvplanError as error:
            got, error_text = [], str(error)
            print(f"{row['id']}: {error_text}")
        differences = differ(row["expected"], got)
        strict = [each for each in differences if each[0] != "unresolved"]
        exact += not strict
        settings_alone += not [each for each in strict if each[0] != "irrelevant"]
        named += not differences
        missed.update({name for name, *_ in differences})
        shown = differences if asked.open else strict
        if asked.show and shown:
            reason = KNOWN.get(row["id"]) if strict else None
            print(f"--- {row['id']} ({row['kind']})" + (f": {reason}" if reason else ""))
            for name, expected, found in shown:
                print(f"  {name}: expected {expected!r}\n  {'':{len(name)}}  read     {found!r}")
    count = len(chosen)
    if not count:
        print("no rows")
        return 2
    print(f"rows: {count}")
    print(f"exact in every key but unresolved: {exact} ({exact / count:.1%})")
    print(f"  and where dropped flags do not count: {settings_alone} ({settings_alone / count:.1%})")
    print(f"  and with the same names left open: {named} ({named / count:.1%})")
    for name, times in missed.most_common():
        print(f"  {name}: missed in {times} rows")
    return 0


def differ(expected: Sequence[Mapping[str, Any]], got: Sequence[Mapping[str, Any]]) -> list[tuple[str, Any, Any]]:
    """Each key that differs, with both values."""
    if len(expected) != len(got):
        return [("servers", [server.get("model") for server in expected], [server.get("model") for server in got])]
    out: list[tuple[str, Any, Any]] = []
    for one, other in zip(expected, got, strict=True):
        for key in (*KEYS, "extra"):
            wanted, found = one.get(key), other.get(key)
            if not same(wanted, found):
                out.append((key, wanted, found))
        if set(one.get("irrelevant") or ()) != set(other.get("irrelevant") or ()):
            wanted, found = set(one.get("irrelevant") or ()), set(other.get("irrelevant") or ())
            out.append(("irrelevant", sorted(wanted - found), sorted(found - wanted)))
        names, found_names = left_open(one.get("unresolved") or ()), left_open(other.get("unresolved") or ())
        if names != found_names:
            out.append(("unresolved", sorted(names - found_names), sorted(found_names - names)))
    return out


def same(one: Any, other: Any) -> bool:
    """True if two values are the same; nothing, an empty list and an empty mapping are."""
    if one in _EMPTY and other in _EMPTY:
        return True
    return (type(one) is type(other) and one == other) or (
        isinstance(one, (int, float)) and not isinstance(one, bool) and one == other
    )


def left_open(said: Sequence[str]) -> set[str]:
    """The subjects of the lines on open points: the words before the first sign."""
    return {re.split(r"[=:(]", each, maxsplit=1)[0].strip() or each for each in said}


if __name__ == "__main__":
    sys.exit(main())
