"""Compare an engine's own log with a plan: :func:`reconcile`; a running server: ``hwcalc.reconcile.server.Server``; and a benchmark
of one: ``hwcalc.reconcile.speeds.reconcile_bench``.
"""

from __future__ import annotations

from hwcalc.reconcile.core import reconcile
from hwcalc.reconcile.result import Reconciliation

__all__ = ["Reconciliation", "reconcile"]
