"""``python -m hwcalc`` is ``kvplan``."""

import sys

from hwcalc.cli import main

sys.exit(main())
