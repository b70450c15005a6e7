"""What an engine's own log says, beside what was planned: :func:`reconcile`."""

from __future__ import annotations

from hwcalc.reconcile.core import reconcile
from hwcalc.reconcile.result import Reconciliation

__all__ = ["Reconciliation", "reconcile"]
