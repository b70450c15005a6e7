"""What a running vLLM server says: its ``/metrics`` with the cache configuration, the blocks and their use, its model and version.

Since vLLM's V1 engine, the label ``block_size`` is the smallest block of any group (vLLM issue 51163). Sources: vLLM
``v1/metrics/loggers.py``, ``entrypoints/openai/api_server.py``, ``entrypoints/serve/instrumentator``; ``/server_info`` is there under
``VLLM_SERVER_DEV_MODE=1`` and has the configuration in the words of the log.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final

from hwcalc.reconcile.dialects.vllm import NUMBERS, WORDS, VllmLog, read_arguments, set_word
from hwcalc.reconcile.facts import number_at, served_model
from hwcalc.reconcile.prometheus import Sample

_CONFIGS: Final = ("vllm:cache_config_info", "vllm:vllm_config_info")
_SECTIONS: Final = ("cache_config_", "model_config_", "parallel_config_", "scheduler_config_")
_OWN: Final = {
    "num_gpu_blocks": ("blocks", "blocks"),
    "kv_cache_size_tokens": ("tokens", "tokens"),
    "block_size": ("smallest_block_tokens", "tokens"),
}


class PrometheusText(VllmLog):
    """Reads the text line by line."""

    name = "prometheus"
    sought = ("vllm:cache_config_info", "vllm:vllm_config_info", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    endpoints = ("/metrics", "/v1/models", "/version", "/server_info")
    metrics = "vllm:"
    gauges = MappingProxyType({
        "vllm:num_requests_running": "running_requests", "vllm:num_requests_waiting": "waiting_requests",
        "vllm:kv_cache_usage_perc": "usage_share", "vllm:gpu_cache_usage_perc": "usage_share",
    })  # fmt: skip
    pool_of = "engine"
    limit = ("max_num_seqs", "max_num_seqs")

    def read(self, text: str) -> None:
        """Nothing: every line is a sample."""

    def sampled(self, sample: Sample) -> None:
        """Add the facts of a sample: a gauge, or the labels of a configuration."""
        super().sampled(sample)
        for name, value in sample.labels.items() if sample.name in _CONFIGS else ():
            section = next((section for section in _SECTIONS if name.startswith(section)), "")
            self._label(name.removeprefix(section), value, self.pool(sample))

    def answered(self, path: str, document: Any) -> None:
        """Add the model, the longest request and the version."""
        facts = self.facts
        match path, document:
            case "/version", {"version": str(version)}:
                facts.add_release(version)
            case "/server_info", {"vllm_config": str(config)}:
                read_arguments(facts, config[: self.longest])
            case "/v1/models", _:
                model = served_model(document, "vllm")
                set_word(facts, "model", str(model.get("root") or model.get("id") or ""))
                facts.add_whole("max_model_len", model.get("max_model_len"), "tokens")

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
