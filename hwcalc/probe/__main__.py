"""``torchrun --nproc-per-node 2 -m hwcalc.probe MODEL --tp 2`` is ``kvplan probe`` with one process for each rank."""

import sys

from hwcalc.cli import main

sys.exit(main(["probe", *sys.argv[1:]]))
