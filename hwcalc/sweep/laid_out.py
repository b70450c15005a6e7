"""The rows of a setting whose user names a number of GPUs alone: each point has the layout in which its plan runs.

That is the rule of :func:`hwcalc.planner.solve.best_layout`, row by row: the first layout that surely holds the sequences, else the
first that probably does, else the usual one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import asdict, replace

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.setup import Parallel
from hwcalc.model import ModelSpec
from hwcalc.planner.layouts import has_experts, layouts, node_of, sizes_for
from hwcalc.planner.verdict import Layout, Verdict
from hwcalc.sweep.blocks import COLUMNS, Column, RowBlock
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

        found = {self._usual: self._columns(self._usual, piece, axes)}
        verdicts: dict[Layout, Any] = {}
        chosen, holds = np.zeros(piece.size, dtype=int), np.zeros(piece.size, dtype=bool)
        batches = np.tile(np.array(piece.batches), len(piece.seqs))
        gpus, node = self._opened.setup.gpus, self._node
        # The order of layouts depends on whether all replicas have a sequence.
        busy = np.minimum(batches, gpus)
        for number in np.unique(busy).tolist():
            unsure = busy == number
            for layout in layouts(self._opened.sized(batch=number), gpus, node):
                if not unsure.any():
                    break
                if layout not in found:
                    found[layout] = self._columns(layout, piece, axes)
                if layout not in verdicts:
                    verdicts[layout] = objects_of(found[layout]["fits"], piece.size)
                surely = unsure & (verdicts[layout] == Verdict.FITS.value)
                better = surely | (unsure & ~holds & (verdicts[layout] == Verdict.PROBABLY.value))
                chosen[better] = list(found).index(layout)
                unsure, holds = unsure & ~surely, holds | better
        rows = list(found.values())
        columns = {name: _chosen([row[name] for row in rows], chosen) for name in COLUMNS}
        errors = objects_of(columns["error"], piece.size)
        failed = int((errors != None).sum())  # noqa: E711 - place by place
        yield RowBlock(size=piece.size, columns=columns, failed=failed, error=refusals.first if failed else None)

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
        return node_of(request.setup.hardware.gpu, None if asked.get("instance") is None else request.setup.gpus)

    @property
    def _usual(self) -> Layout:
        """The layout of points whose sequences no layout holds."""
        opened, asked = self._opened, self._setting[3]
        instance = asked.get("instance") is not None
        gpu, gpus = opened.setup.hardware.gpu, opened.setup.gpus
        sizes = sizes_for(opened.engine, opened.model, gpu, gpus, Parallel(), instance=instance)
        return Layout(tp=sizes.tp, pp=sizes.pp, dp=sizes.dp, ep=sizes.ep)

    def _in(self, layout: Layout) -> SettingRows:
        """The rows in one layout."""
        if layout not in self._laid_out:
            grid, model, setting, asked = self._setting
            self._laid_out[layout] = SettingRows(grid, model, setting, {**asked, **asdict(layout), "dcp": 1})
        return self._laid_out[layout]

    def _columns(self, layout: Layout, piece: Piece, axes: Axes) -> Mapping[str, Column]:
        """The columns of all points in a layout. If the engine refuses the layout, whole experts may be dealt out."""
        import numpy as np

        blocks = list(self._in(layout).of_piece(piece, axes))
        columns = blocks[0].columns
        if len(blocks) > 1:
            columns = {
                name: np.concatenate([objects_of(block.columns[name], block.size) for block in blocks]) for name in COLUMNS
            }
        dealt = replace(layout, ep=layout.tp * layout.dp)
        deals = layout.ep < dealt.ep and self._opened.deployment.deals_experts() and has_experts(self._opened.model)
        if not deals or layout == self._usual or not any(block.failed for block in blocks):
            return columns
        refused = objects_of(columns["error"], piece.size) != None  # noqa: E711 - place by place
        others = self._columns(dealt, piece, axes)
        return {name: _chosen([columns[name], others[name]], refused * 1) for name in COLUMNS}


def _chosen(columns: Sequence[Column], chosen: Any) -> Column:
    """The column with the value of ``columns[chosen]`` at each point."""
    import numpy as np

    used: list[int] = np.unique(chosen).tolist()
    if len(used) == 1:
        return columns[used[0]]
    objects = objects_of(columns[used[0]], chosen.size)
    for number in used[1:]:
        objects = np.where(chosen == number, objects_of(columns[number], chosen.size), objects)
    return column_of(objects.tolist())
