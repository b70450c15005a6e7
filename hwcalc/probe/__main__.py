"""``torchrun --nproc-per-node 2 -m hwcalc.probe MODEL --tp 2`` is ``kvplan probe`` with one process for each rank."""

import runpy
import sys

sys.argv.insert(1, "probe")
runpy.run_module("hwcalc", run_name="__main__")
