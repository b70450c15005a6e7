"""The formats of a cache by the names that engines take, in words and for JSON."""

from __future__ import annotations

from hwcalc.engines import ENGINES, find_engine
from hwcalc.report.records import EngineDTypeInfo
from hwcalc.report.text import broken, filled


def engine_formats() -> dict[str, list[EngineDTypeInfo]]:
    """Those of all engines: name -> what each engine that takes it stores."""
    out: dict[str, list[EngineDTypeInfo]] = {}
    for engine in ENGINES:
        for one in find_engine(engine)[0].facts.cache_formats:
            bits = round(one.bits, 2)
            found = EngineDTypeInfo(
                engine=engine, bits=bits, stored=one.stored, since=one.since, until=one.until, source=one.source
            )
            out.setdefault(one.name, []).append(found)
    return out


def cache_text(name: str, columns: int) -> str:
    """What a format of the cache is to the engines that take it by this name, in lines; empty where none does."""
    name = name.strip().lower()
    found = engine_formats().get(name, [])
    if not found:
        return ""
    lines = [filled(f"{name}: a format of the cache, --dtype {name}", columns)]
    said = (f"{in_words(one)}. Source: {one.source}" for one in found)
    return "\n".join([*lines, *(f"  {line}" for text in said for line in broken(text, columns - 2, 2))]) + "\n"


def in_words(one: EngineDTypeInfo) -> str:
    """A line on what an engine stores: since when, how many bits, and where the scales lie."""
    label = find_engine(one.engine)[0].label
    when = (f" since {one.since}" if one.since else "") + (f" until {one.until}" if one.until else "")
    return f"{label}{when}: {one.bits:g} bits a value, scales included: {one.stored}"
