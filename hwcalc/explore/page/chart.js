// The chart of lengths on a canvas, by uPlot.

import { lineStyle, marksOf } from "./marks.js";
import { human, shortTokens } from "./tables.js";

const CHART_HEIGHT = 400;
const NARROW_PIXELS = 560;
/** Room for the names at the ends of lines. */
const NAME_PIXELS = 150;

/** Powers of two in a range, and only so many of them. @param {number} least @param {number} most @param {number} room */
export function powers(least, most, room) {
  const [first, last] = [Math.ceil(Math.log2(least)), Math.floor(Math.log2(most))];
  const step = Math.max(1, Math.ceil((last - first + 1) / room));
  const start = Math.ceil(first / step) * step;
  return Array.from({ length: Math.max(0, Math.floor((last - start) / step) + 1) }, (_, place) => 2 ** (start + place * step));
}

/** @param {Drawing} drawing @returns {[number, number]} */
function bytesRange({ curves, hidden, scale }) {
  let [least, most] = [Infinity, 0];
  for (const values of [curves.room, ...curves.lines.filter((line) => !hidden.has(line.model.id)).map((line) => line.values)]) {
    for (const value of values) {
      if (value === null) continue;
      least = Math.min(least, value);
      most = Math.max(most, value);
    }
  }
  if (most === 0) return scale === "log" ? [1, 2] : [0, 1];
  return scale === "log" ? [least / 1.5, most * 2] : [0, most * 1.08];
}

/** The last length of a linear axis: where the longest line that is shown ends. @param {Drawing} drawing @param {number} most */
function lastLength({ curves, hidden, state }, most) {
  const ends = curves.lines.filter((line) => !hidden.has(line.model.id)).map(({ end, model }) => (model.max_seq === null ? state.seq : end));
  return Math.min(most, Math.max(state.seq, ...ends) * 1.02);
}

/** Round numbers between two, of which there is room for so many. @param {number} low @param {number} high @param {number} room */
function evenly(low, high, room) {
  const step = 2 ** Math.ceil(Math.log2((high - low) / room));
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.max(0, Math.floor(high / step) - first + 1) }, (_, place) => (first + place) * step);
}

/** Whether lines have their names at their ends, where else they have numbers. @param {number} width */
function namesAtEnds(width) {
  return width >= 2 * NARROW_PIXELS - NAME_PIXELS;
}

/** @param {Curves} curves @returns {uPlot.AlignedData} */
function columns({ lengths, room, lines }) {
  return [lengths, room, ...lines.map((line) => line.values)];
}

/**
 * @param {() => Drawing} drawing @param {Palette} palette @param {Payload["lengths"]} lengths @param {number} width
 * @returns {uPlot.Options}
 */
function optionsOf(drawing, palette, { least, most }, width) {
  const narrow = width < NARROW_PIXELS;
  const { grid, ink, font } = palette;
  const axis = { filter: (/** @type {uPlot} */ _, /** @type {number[]} */ all) => all, stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1, size: 5 }, font: `12px ${font}` };
  const { curves, state, hidden, scale } = drawing();
  const ticks = scale === "log" ? powers : evenly;
  const splits = (/** @type {number} */ room) => (/** @type {uPlot} */ _, /** @type {number} */ __, /** @type {number} */ low, /** @type {number} */ high) => ticks(low, high, room);
  /** @type {uPlot.Scale} */
  const distribution = scale === "log" ? { distr: 3, log: 2 } : { distr: 1 };
  // Lines that are moved to whole pixels look like stairs that are not there.
  const line = { points: { show: false }, spanGaps: true, pxAlign: 0 };
  return {
    width,
    height: CHART_HEIGHT,
    pxAlign: 0,
    padding: [14, namesAtEnds(width) ? NAME_PIXELS : 24, 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
    scales: {
      x: { time: false, ...distribution, range: () => (scale === "log" ? [least, most] : [0, lastLength(drawing(), most)]) },
      y: { ...distribution, range: () => bytesRange(drawing()) },
    },
    axes: [
      { ...axis, size: 34, splits: splits(narrow ? 7 : 14), values: (_, tokens) => tokens.map(shortTokens) },
      { ...axis, size: narrow ? 58 : 70, splits: splits(9), values: (_, bytes) => bytes.map((size) => human(size).replace(/\.00 /, " ")) },
    ],
    series: [
      {},
      { ...line, stroke: ink, width: 1.5, dash: [10, 3, 2, 3] },
      ...curves.lines.map(({ model, place }) => ({
        ...line,
        show: !hidden.has(model.id),
        stroke: palette.lines[place] ?? ink,
        width: model.id === state.model ? 3 : 1.5,
        dash: lineStyle(place).dash,
      })),
    ],
    hooks: { draw: [(chart) => marksOf(chart, drawing(), palette, namesAtEnds(width))] },
  };
}

/**
 * A chart in a box, as wide as it. `pointed` hears of the length below the pointer (or null), `picked` of one that is pressed.
 * @param {HTMLElement} box @param {Payload["lengths"]} lengths @param {() => Drawing} drawing @param {() => Palette} palette
 * @param {{ pointed: (length: number | null) => void, picked: (length: number) => void }} listener
 */
export function lengthsChart(box, lengths, drawing, palette, { pointed, picked }) {
  /** @type {uPlot | null} */
  let chart = null;
  let lines = "";
  const width = () => Math.max(200, box.clientWidth);
  const length = () => drawing().curves.lengths[chart?.cursor.idx ?? -1] ?? null;
  const make = () => {
    chart?.destroy();
    const options = optionsOf(drawing, palette(), lengths, width());
    chart = new uPlot({ ...options, hooks: { ...options.hooks, setCursor: [() => pointed(length())] } }, columns(drawing().curves), box);
    chart.over.addEventListener("click", () => picked(length() ?? drawing().state.seq));
  };
  // A width of axes belongs to the width of the box, so the chart is made anew.
  new ResizeObserver(() => chart !== null && chart.width !== width() && make()).observe(box);
  return {
    /** After new colours. */
    renew: () => chart !== null && make(),
    draw() {
      const { curves, state, hidden, scale } = drawing();
      const shown = JSON.stringify([state.model, scale, [...hidden], curves.lines.map((line) => line.place)]);
      if (shown === lines) chart?.setData(columns(curves));
      else make();
      lines = shown;
    },
  };
}
