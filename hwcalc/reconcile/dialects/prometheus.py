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
_MOST_LABELS: Final = 1000
_LONGEST_LABEL: Final = 4096


class PrometheusText(VllmLog):
    """Reads the text line by line."""

    name = "prometheus"
    sought = ("vllm:cache_config_info", "vllm:vllm_config_info", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")

    def read(self, text: str) -> None:
        """Add the facts that one line states."""
        if not text.startswith("vllm:"):
            return
        if text.startswith(_CONFIGS):
            config = labels(text)
            engine = config.get("engine") or config.get("engine_index")
            rank = f"engine {engine}" if engine is not None and engine.isdecimal() and len(engine) < 6 else None
            for name, value in config.items():
                section = next((section for section in _SECTIONS if name.startswith(section)), "")
                self._label(name.removeprefix(section), value, rank)
        elif text.startswith(_USAGE):
            used = number_at(text, text.rfind(" "))
            if used is not None and 0 <= used.value <= 1:
                engine = labels(text).get("engine")
                self.facts.add("usage_share", float(used.value), "share", rank=f"engine {engine[:6]}" if engine else None)

    def _label(self, name: str, value: str, rank: str | None) -> None:
        facts, printed = self.facts, number_at(value, 0)
        whole = printed if printed is not None and printed.end == len(value) else None
        if name in _OWN:
            fact, unit = _OWN[name]
            facts.add_count(fact, whole, unit, rank=rank)
        elif name == "kv_cache_max_concurrency":
            if printed is not None and printed.digits > 0:
                facts.add("concurrency", float(printed.value), "x", rank=rank)
        elif name == "gpu_memory_utilization":
            if printed is not None and 0 < printed.value <= 1:
                facts.add(name, float(printed.value), "share")
        elif name in NUMBERS:
            facts.add_count(NUMBERS[name], whole)
        elif name in WORDS or name == "cache_dtype":
            set_word(facts, WORDS.get(name, "kv_cache_dtype"), value)

    def inputs(self) -> tuple[dict[str, object], dict[str, str]]:
        """Keywords and engine options that the metrics state. If the longest request is missing, it is tokens / concurrency."""
        stated, options = super().inputs()
        tokens, concurrency = self.facts.smallest("tokens"), self.facts.smallest("concurrency")
        if "seq" not in stated and tokens is not None and concurrency is not None and tokens.rank == concurrency.rank:
            stated["seq"] = round(float(tokens.value) / float(concurrency.value))
        return stated, options


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
