"""Servers on loopback that answer as engines do, and what each engine answers.

The answers are written by hand after the engines' own code, for Llama-3.1-8B, whose cache takes 2 x 32 layers x 8 heads x 128 x 2 B =
131,072 B a token:

- vLLM 0.11: ``v1/metrics/loggers.py`` (PrometheusStatLogger), ``entrypoints/openai/api_server.py`` (show_version),
  ``entrypoints/openai/serving_models.py`` (show_available_models)
- SGLang 0.5.9: ``entrypoints/http_server.py`` (server_info), ``managers/scheduler.py`` (get_internal_state),
  ``observability/metrics_collector.py``
- llama.cpp: ``tools/server/server-context.cpp`` (get_props, get_slots, get_metrics), and the example of ``/v1/models`` in
  ``tools/server/README.md``, which has the size of the tensors
- TGI 3.3.6-dev0 (db931fc): ``router/src/lib.rs`` (Info), ``backends/v3/src/{lib,backend,queue}.rs``
- TensorRT-LLM 1.2: ``serve/openai_server.py``, ``metrics/collector.py``, ``executor/types.h`` (IterationStats, KvCacheStats)
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self

MODEL: Final = "meta-llama/Llama-3.1-8B-Instruct"
Answer = str | Mapping[str, Any] | list[Any] | Callable[[BaseHTTPRequestHandler], None]

VLLM: Final[dict[str, Answer]] = {
    "/metrics": """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="chat"} 20.0
vllm:num_requests_waiting{engine="0",model_name="chat"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="chat"} 0.5
vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.9",num_gpu_blocks="10001",num_gpu_blocks_override="None"} 1.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="chat"} 7.0
""",
    "/version": {"version": "0.11.0"},
    "/v1/models": {
        "object": "list",
        "data": [
            {"id": "adapter", "owned_by": "vllm", "root": "/adapters/a", "parent": "chat", "max_model_len": None},
            {"id": "chat", "owned_by": "vllm", "root": MODEL, "parent": None, "max_model_len": 8192},
        ],
    },
}  # fmt: skip
SGLANG: Final[dict[str, Answer]] = {
    "/server_info": {
        "model_path": MODEL, "tp_size": 1, "dp_size": 1, "page_size": 1, "mem_fraction_static": 0.84, "kv_cache_dtype": "auto",
        "attention_backend": "fa3", "device": "cuda", "context_length": None, "chunked_prefill_size": 8192, "api_key": "sesame-open-1234",
        "disable_radix_cache": False, "status": "ready", "max_total_num_tokens": 60_000, "version": "0.5.9",
        "internal_states": [
            {
                "memory_usage": {"weight": 14.98, "kvcache": 7.32, "token_capacity": 60_000, "graph": 0.4},
                "effective_max_running_requests_per_dp": 2048, "api_key": "sesame-open-1234",
            }
        ],
    },
    "/metrics": """sglang:num_running_reqs{engine_type="unified",model_name="chat",pp_rank="0",tp_rank="0"} 12.0
sglang:num_queue_reqs{engine_type="unified",model_name="chat",pp_rank="0",tp_rank="0"} 3.0
sglang:num_used_tokens{engine_type="unified",model_name="chat",pp_rank="0",tp_rank="0"} 15000.0
sglang:token_usage{engine_type="unified",model_name="chat",pp_rank="0",tp_rank="0"} 0.25
""",
}  # fmt: skip
LLAMACPP: Final[dict[str, Answer]] = {
    "/props": {
        "default_generation_settings": {"id": 0, "n_ctx": 8192, "params": {"temperature": 0.8}}, "total_slots": 4,
        "model_path": "../models/Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", "build_info": "b6700-a1b2c3d4", "chat_template": "{% if x %}",
    },
    "/slots": [
        {"id": 0, "n_ctx": 8192, "is_processing": False},
        {"id": 1, "n_ctx": 8192, "is_processing": True, "n_prompt_tokens": 900, "next_token": [{"n_decoded": 100, "has_next_token": True}]},
        {"id": 2, "n_ctx": 8192, "is_processing": False},
        {"id": 3, "n_ctx": 8192, "is_processing": False},
    ],
    "/v1/models": {
        "object": "list",
        "data": [{
            "id": "../models/Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", "object": "model", "owned_by": "llamacpp",
            "meta": {"n_vocab": 128_256, "n_ctx_train": 131_072, "n_embd": 4096, "n_params": 8_030_261_312, "size": 4_912_898_304},
        }],
    },
    "/metrics": "llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n",
}  # fmt: skip
TGI: Final[dict[str, Answer]] = {
    "/info": {
        "model_id": MODEL, "model_sha": "0e9e39f249a16976918f6564b8830bc894c89659", "model_pipeline_tag": "text-generation",
        "max_concurrent_requests": 128, "max_best_of": 2, "max_stop_sequences": 4, "max_input_tokens": 8191, "max_total_tokens": 8192,
        "validation_workers": 2, "max_client_batch_size": 4, "router": "text-generation-router", "version": "3.3.6-dev0", "sha": None,
        "docker_label": None,
    },
    "/metrics": """tgi_batch_max_total_tokens 65536
tgi_batch_current_size 2
tgi_batch_current_max_tokens 16384
tgi_queue_size 0
tgi_request_duration_bucket{le="0.005"} 0
""",
}  # fmt: skip
TENSORRT: Final[dict[str, Answer]] = {
    "/version": {"version": "1.2.0"},
    "/v1/models": {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "tensorrt_llm"}]},
    "/metrics": [
        {"iter": 6, "numActiveRequests": 9, "kvCacheStats": {"maxNumBlocks": 2048, "usedNumBlocks": 600, "tokensPerBlock": 32}},
        {
            "iter": 7, "numActiveRequests": 8, "numQueuedRequests": 2, "maxNumActiveRequests": 64,
            "kvCacheStats": {"maxNumBlocks": 2048, "freeNumBlocks": 1536, "usedNumBlocks": 512, "tokensPerBlock": 32},
        },
    ],
}  # fmt: skip


class Served:
    """A server on loopback. ``answers`` are by path, others are 404; ``headers`` are those of the last request."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.answers = dict(answers)
        self.asked: list[str] = []
        self.headers: dict[str, str] = {}
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                served.asked.append(self.path)
                served.headers = dict(self.headers)
                answer = served.answers.get(self.path)
                if callable(answer):
                    answer(self)
                    return
                send(self, 404 if answer is None else 200, answer if isinstance(answer, str) else json.dumps(answer))

            def log_message(self, *_words: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_words: None  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def address(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"


def send(handler: BaseHTTPRequestHandler, status: int, body: str | bytes, **headers: str) -> None:
    """Answer a request."""
    data = body.encode() if isinstance(body, str) else body
    handler.send_response(status)
    for name, value in {"Content_Length": str(len(data)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(data)
