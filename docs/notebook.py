"""How far does one GPU reach? Three models of about the same size, planned, swept into a frame, and drawn.

Runs as a script, or cell by cell where an editor knows ``# %%``. It needs pandas and matplotlib beside kvplan.
"""

# %% One plan: the answer, and what it is
import sys

import matplotlib.pyplot as plt
import pandas as pd

from hwcalc import plan, sweep

MODELS = ["Qwen/Qwen3-8B", "google/gemma-3-12b-it", "openai/gpt-oss-20b"]
GPU = "h100-sxm5-80gb"

one = plan("Qwen/Qwen3-8B", seq="32k", engine="vllm", gpu=GPU)
print(one)

# %% A grid: every model at every length, as rows
frame = pd.DataFrame(sweep(MODELS, seq="1k..128k", engine="vllm", gpu=GPU).records())
frame["cache_gib"] = frame["cache_total_bytes"] / 2**30
print(frame.pivot_table(index="seq", columns="model", values="cache_gib").round(2))

# %% A picture: what one sequence takes, by its length
figure, axes = plt.subplots(figsize=(7, 4))
for name, rows in frame.groupby("model"):
    axes.plot(rows["seq"], rows["cache_gib"], marker="o", label=name)
axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel="GiB for one sequence", title="Cache in vLLM")
axes.legend()
figure.tight_layout()
if len(sys.argv) > 1:
    figure.savefig(sys.argv[1])
