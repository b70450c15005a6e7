"""The ``/metrics`` text of a running vLLM server: its cache configuration, its block counts, and how much of the cache is in use.

Since vLLM's V1 engine, the label ``block_size`` is the smallest block of any group (vLLM issue 51163).
"""

from __future__ import annotations

from typing import Final

from hwcalc.reconcile.dialects.vllm import NUMBERS, WORDS, VllmLog, set_word
from hwcalc.reconcile.facts import number_at

_CONFIGS: Final = ("vllm:cache_config_info{", "vllm:vllm_config_info{")
_USAGE: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_SECTIONS: Final = ("cache_config_", "model_config_", "parallel_config_", "scheduler_config_")
_OWN: Final = {
    "num_gpu_blocks": ("blocks", "blocks"),
    "kv_cache_size_tokens": ("tokens", "tokens"),
    "block_size": ("smallest_block_tokens", "tokens"),
}
_RENAMED: Final = {"cache_dtype": "kv_cache_dtype"}
_MOST_LABELS: Final = 1000
_LONGEST_LABEL: Final = 4096


class PrometheusText(VllmLog):
    """Reads the text line by line."""

    name = "prometheus"
    title = "the /metrics text of a vLLM server"
    sought = ("vllm:cache_config_info", "vllm:vllm_config_info", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")

    def feed(self, number: int, text: str) -> None:
        """Read one line."""
        if not text.startswith("vllm:"):
            return
        if text.startswith(_CONFIGS):
            config = labels(text)
            engine = config.get("engine") or config.get("engine_index")
            rank = f"engine {engine}" if engine is not None and engine.isdecimal() and len(engine) < 6 else None
            for name, value in config.items():
                self._label(_short(name), value, rank, number, text)
        elif text.startswith(_USAGE):
            used = number_at(text, text.rfind(" "))
            if used is not None and 0 <= used.value <= 1:
                rank = labels(text).get("engine")
                named = f"engine {rank[:6]}" if rank else None
                self.facts.add("usage_share", float(used.value), line=number, text=text, unit="share", rank=named)

    def _label(self, name: str, value: str, rank: str | None, number: int, text: str) -> None:
        facts = self.facts
        printed = number_at(value, 0)
        whole = printed is not None and printed.decimals == 0 and printed.end == len(value) and printed.digits > 0
        if name in _OWN:
            fact, unit = _OWN[name]
            if whole and printed is not None:
                facts.add(fact, printed.digits, line=number, text=text, unit=unit, rank=rank)
        elif name == "kv_cache_max_concurrency":
            if printed is not None and printed.digits > 0:
                facts.add("concurrency", float(printed.value), line=number, text=text, unit="x", rank=rank)
        elif name == "gpu_memory_utilization":
            if printed is not None and 0 < printed.value <= 1:
                facts.add(name, float(printed.value), line=number, text=text, unit="share")
        elif name in NUMBERS:
            if whole and printed is not None:
                facts.add(NUMBERS[name], printed.digits, line=number, text=text)
        elif name in WORDS or name in _RENAMED:
            set_word(facts, _RENAMED.get(name) or WORDS[name], value, number, text)

    def inputs(self) -> tuple[dict[str, object], dict[str, str]]:
        """Keywords and engine options that the metrics state. If the longest request is missing, it is tokens / concurrency."""
        stated, options = super().inputs()
        tokens, concurrency = self.facts.smallest("tokens"), self.facts.smallest("concurrency")
        if "seq" not in stated and tokens is not None and concurrency is not None and tokens.rank == concurrency.rank:
            stated["seq"] = round(float(tokens.value) / float(concurrency.value))
        return stated, options


def _short(name: str) -> str:
    for section in _SECTIONS:
        if name.startswith(section):
            return name[len(section) :]
    return name


def labels(text: str) -> dict[str, str]:
    r"""The labels of one sample. If the text is cut, only complete labels are returned.

    >>> labels('vllm:cache_config_info{block_size="16",note="a\\"b",num_gpu_blocks="24') == {"block_size": "16", "note": 'a"b'}
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
