"""What one plan of a catalog model loads: the command must start fast. How fast it starts is measured in ``benchmarks/startup.py``."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

import pytest

HEAVY: Final = ("torch", "transformers", "pandas", "matplotlib", "pyarrow", "huggingface_hub", "numpy")
ARGUMENTS: Final = ("Qwen/Qwen3-8B", "--seq", "32k", "--dtype", "fp8", "--json")
PROGRAM: Final = """
import atexit, sys
from hwcalc.cli import main
atexit.register(lambda: print(*sorted(set(name.partition(".")[0] for name in sys.modules)), file=sys.stderr))
sys.argv = ["kvplan", *{arguments!r}]
sys.exit(main())
"""


def test_json_of_a_catalog_model_loads_nothing_heavy() -> None:
    """The plan is printed, and none of the heavy packages was imported on the way."""
    program = PROGRAM.format(arguments=ARGUMENTS)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    # 36 layers x 8 heads x (128 + 128) x 1 byte
    assert json.loads(done.stdout)["cache"]["total_bytes"] == 36 * 32_768 * 8 * (128 + 128)
    assert not set(HEAVY) & set(done.stderr.split())


@pytest.mark.parametrize(
    "line",
    [
        "Qwen/Qwen3-8B --seq 32k --dtype fp8",
        "meta-llama/Llama-3.3-70B-Instruct --engine vllm --gpu h100 --gpus 4 --seq 32k --concurrency 20 --brief",
        "Qwen/Qwen3-14B --engine llamacpp --weights q6_k --seq 32k --gpu rtx-4060-ti-16gb --brief --quiet",
        "google/gemma-3-27b-it --engine sglang --gpu h200 --format markdown",
        "Qwen/Qwen3-8B --engine all",
        "explain Qwen/Qwen3-8B",
        "compare Qwen/Qwen3-8B --dtype bf16,fp8 --gpu l4",
        "diff Qwen/Qwen3-4B Qwen/Qwen3-8B",
        "recommend Qwen/Qwen3-8B --seq 32k --gpu l4,h100",
        "strategies Qwen/Qwen3-8B --lengths 1k,2k,8k",
        "gpus h100",
        "models qwen3-next",
        "dtypes",
        "policies snapkv",
        "schema plan",
        "no/such-model --offline",
    ],
)
def test_a_table_loads_nothing_heavy(line: str) -> None:
    """A table, a list or an error needs no package that takes long to import."""
    program = PROGRAM.format(arguments=tuple(line.split()))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode in {0, 1, 3}
    assert not set(HEAVY) & set(done.stderr.splitlines()[-1].split())


def test_the_library_loads_nothing_heavy() -> None:
    """Neither does ``from hwcalc import plan`` and a plan of a config."""
    program = (
        "import sys; from hwcalc import plan; plan({'model_type': 'llama', 'torch_dtype': 'bfloat16'}, seq=1);"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert not {*HEAVY} & set(done.stdout.split())
