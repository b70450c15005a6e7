"""The rows of a setting whose user names a number of GPUs alone: each point has the layout in which its plan runs.

That is the rule of :func:`hwcalc.planner.solve.best_layout`, row by row: the first layout that surely holds the sequences, else the
first that probably does, else the usual one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec.structs import asdict, replace

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.setup import Parallel
from hwcalc.model import ModelSpec
from hwcalc.planner.layouts import has_experts, layouts, node_of, sizes_for
from hwcalc.planner.verdict import Layout, Verdict
from hwcalc.sweep.blocks import COLUMNS, RowBlock
from hwcalc.sweep.grid import Axes, Grid, Piece, Setting
from hwcalc.sweep.setting import SettingRows, column_of, objects_of

_SIZES: Final = ("tp", "pp", "dp", "dcp", "ep")


def rows_of(grid: Grid, model: ModelSpec, setting: Setting, asked: Mapping[str, Any], *, few: bool = False) -> SettingRows:
    """The rows of one model in one setting, of which ``asked`` are the parsed keywords. ``few`` are planned one by one."""
    named = any((asked.get(name) or 1) > 1 for name in _SIZES)
    several = (asked.get("gpus") or 1) > 1 or (asked.get("instance") is not None and asked.get("gpus") is None)
    chosen = LaidOutRows if several and not named and asked.get("kv_memory") is None else SettingRows
    return chosen(grid, model, setting, asked, few=few)


class LaidOutRows(SettingRows):
    """The rows of a setting in which every point may have another layout."""

    def __init__(self, grid: Grid, model: ModelSpec, setting: Setting, asked: Mapping[str, Any], *, few: bool = False) -> None:
        super().__init__(grid, model, setting, asked, few=few)
        self._setting = grid, model, setting, asked
        self._laid_out: dict[Layout, SettingRows] = {}

    def are_arrays(self, piece: Piece) -> bool:
        refusals = self._requests.refusals(piece)
        if refusals is None or refusals.all or not self._has_layouts:
            return super().are_arrays(piece)
        return self._in(self._usual).are_arrays(piece)

    def of_piece(self, piece: Piece, axes: Axes) -> Iterator[RowBlock]:
        refusals = self._requests.refusals(piece)
        if refusals is None or refusals.all or not self._has_layouts:
            yield from super().of_piece(piece, axes)
            return
        import numpy as np

        rows = dict(self._columns(self._usual, piece, axes))
        found: dict[Layout, Mapping[str, Any]] = {self._usual: rows}
        certain, holds = np.zeros(piece.size, dtype=bool), np.zeros(piece.size, dtype=bool)
        batches = np.tile(np.array(piece.batches), len(piece.seqs))
        gpus, node = self._opened.request.gpus, self._node
        # The order of layouts depends on whether all replicas have a sequence.
        busy = np.minimum(batches, gpus)
        for number in np.unique(busy).tolist():
            for layout in layouts(self._opened.sized(batch=number), gpus, node):
                if layout not in found:
                    found[layout] = self._columns(layout, piece, axes)
                columns = found[layout]
                surely = (busy == number) & ~certain & (columns["fits"] == Verdict.FITS.value)
                better = surely | ((busy == number) & ~certain & ~holds & (columns["fits"] == Verdict.PROBABLY.value))
                rows = {name: np.where(better, columns[name], rows[name]) for name in COLUMNS}
                certain, holds = certain | surely, holds | better
        failed = int((rows["error"] != None).sum())  # noqa: E711 - place by place
        yield RowBlock(
            size=piece.size,
            columns={name: column_of(column.tolist()) for name, column in rows.items()},
            failed=failed,
            error=refusals.first if failed else None,
        )

    @property
    def _opened(self) -> Occupancy:
        """An occupancy of some point that the engine accepts."""
        assert self._requests.first is not None
        return self._requests.first

    @property
    def _has_layouts(self) -> bool:
        from hwcalc.planner.solve import has_layouts

        return has_layouts(self._opened.engine, self._opened.request)

    @property
    def _node(self) -> int:
        request, asked = self._opened.request, self._setting[3]
        return node_of(request.hardware.gpu, None if asked.get("instance") is None else request.gpus)

    @property
    def _usual(self) -> Layout:
        """The layout of points whose sequences no layout holds."""
        opened, asked = self._opened, self._setting[3]
        instance = asked.get("instance") is not None
        gpu, gpus = opened.request.hardware.gpu, opened.request.gpus
        sizes = sizes_for(opened.engine, opened.model, gpu, gpus, Parallel(), instance=instance)
        return Layout(tp=sizes.tp, pp=sizes.pp, dp=sizes.dp, ep=sizes.ep)

    def _in(self, layout: Layout) -> SettingRows:
        """The rows in one layout."""
        if layout not in self._laid_out:
            grid, model, setting, asked = self._setting
            self._laid_out[layout] = SettingRows(grid, model, setting, {**asked, **asdict(layout), "dcp": 1})
        return self._laid_out[layout]

    def _columns(self, layout: Layout, piece: Piece, axes: Axes) -> Mapping[str, Any]:
        """The columns of all points in a layout, as arrays. If the engine refuses the layout, whole experts may be dealt out."""
        import numpy as np

        blocks = list(self._in(layout).of_piece(piece, axes))
        columns = {name: np.concatenate([objects_of(block.columns[name], block.size) for block in blocks]) for name in COLUMNS}
        dealt = replace(layout, ep=layout.tp * layout.dp)
        refused = columns["error"] != None  # noqa: E711 - place by place
        deals = layout.ep < dealt.ep and self._opened.deployment.deals_experts() and has_experts(self._opened.model)
        if not deals or layout == self._usual or not refused.any():
            return columns
        others = self._columns(dealt, piece, axes)
        return {name: np.where(refused, others[name], columns[name]) for name in COLUMNS}
