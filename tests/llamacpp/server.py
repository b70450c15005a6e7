"""``llama-server`` as the wheel of ``xllamacpp`` has it, started on one file: its log goes to standard error.

``python -m tests.llamacpp.server FILE NAME=VALUE ...``; the names are those of ``common_params`` (common/common.h). It ends when it runs;
with ``serve`` in front of FILE it prints its address and ends with its standard input.
"""

from __future__ import annotations

import os
import sys

__all__: list[str] = []


def main() -> None:
    """Start it, and end as soon as it runs, or when nobody needs it any more."""
    from importlib import import_module

    xllamacpp = import_module("xllamacpp")
    serves = sys.argv[1] == "serve"
    path, *words = sys.argv[1 + serves :]
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.warmup = params.fit_params = False
    params.cache_ram_mib = params.port = 0
    params.no_perf = True
    for name, _, value in (word.partition("=") for word in words):
        if name.startswith("cache_type"):
            setattr(params, name, getattr(xllamacpp.ggml_type, f"GGML_TYPE_{value.upper()}"))
        elif value in ("true", "false"):
            setattr(params, name, value == "true")
        else:
            setattr(params, name, int(value))
    server = xllamacpp.Server(params)
    sys.stderr.flush()
    if serves:
        print(server.listening_address, flush=True)  # noqa: T201 - the caller reads it
        sys.stdin.read()
    # Its threads are not waited for, as they are when it is dropped.
    assert server is not None
    os._exit(0)


if __name__ == "__main__":
    main()
