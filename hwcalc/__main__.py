"""``python -m hwcalc`` is ``kvplan``."""

import sys

from hwcalc.cli import main

if __name__ == "__main__":
    sys.exit(main())
