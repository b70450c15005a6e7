// Memory against sequence length, all models on one chart of two logarithms.

import { panel } from "./bars.js";
import { curvesOf } from "./curves.js";
import { lineStyle, marksOf, pixelsOf } from "./marks.js";
import { details, exact, html, human, shortTokens, svg, tableOf } from "./tables.js";
import { onTheme } from "./theme.js";

const CHART_HEIGHT = 400;
const NARROW = 560;

/** Powers of a base in a range, and only so many of them. @param {number} least @param {number} most @param {number} room */
function powers(least, most, room) {
  const [first, last] = [Math.ceil(Math.log2(least)), Math.floor(Math.log2(most))];
  const step = Math.max(1, Math.ceil((last - first + 1) / room));
  const start = Math.ceil(first / step) * step;
  return Array.from({ length: Math.max(0, Math.floor((last - start) / step) + 1) }, (_, place) => 2 ** (start + place * step));
}

/** @param {Curves} curves @returns {[number, number]} */
function bytesRange({ lines, room }) {
  const values = [...lines.flatMap((line) => line.values), ...room].filter((value) => value !== null);
  const [least, most] = [values.reduce((one, other) => Math.min(one, other), Infinity), values.reduce((one, other) => Math.max(one, other), 0)];
  return most > 0 ? [least / 1.5, most * 2] : [1, 2];
}

/**
 * One entry of the legend: a button that shows a line or hides it.
 * @param {number} place @param {Model} model @param {() => void} toggle
 */
function legendEntry(place, model, toggle) {
  const { color, dash } = lineStyle(place);
  const line = svg("svg", { class: `line-swatch series-${color}`, width: 30, height: 12, "aria-hidden": "true" }, svg("line", { x1: 1, x2: 29, y1: 6, y2: 6, "stroke-dasharray": dash.join(" ") }));
  const value = html("span", { class: "legend-value" });
  const fits = html("span", { class: "legend-fits" });
  const button = html("button", { type: "button", class: "legend-entry", "aria-pressed": "true", onclick: toggle }, html("span", { class: "legend-place" }, place + 1), line, html("span", { class: "legend-name" }, model.id), value, fits);
  return { button, line, value, fits };
}

/** What the legend says of a length that fits. @param {CurveLine} line */
function fitsWords({ fits, end, sampled }) {
  const points = sampled ? " (known at sampled points only)" : "";
  if (fits >= end) return `fits to its end, ${shortTokens(end)}${points}`;
  return (fits === 0 ? "✕ fits at no length" : `✕ fits up to ${exact(fits)}`) + points;
}

/** @param {Page} page @returns {Section} */
export function lengthsSection(page) {
  /** @type {Curves} */
  let curves = { lengths: [], lines: [], room: [], refused: [] };
  /** @type {"cache" | "total"} */
  let shown = "cache";
  /** @type {State} */
  let state = page.state();
  /** @type {Set<string>} */
  const hidden = new Set();
  /** @type {Map<string, ReturnType<typeof legendEntry>>} */
  const entries = new Map();
  /** @type {uPlot | null} */
  let chart = null;
  /** @type {string[]} */
  let drawn = [];

  const lead = html("p", { class: "lead" });
  const box = html("div", { class: "chart", role: "img" });
  const legend = html("div", { class: "legend", role: "group", "aria-label": "Models in the chart: press to show or hide" });
  const reading = html("p", { class: "reading" });
  const refused = html("ul", { class: "refusals" });
  const table = details("Table: bytes at each length");
  const choice = (/** @type {"cache" | "total"} */ value, /** @type {string} */ words) =>
    html("label", {}, html("input", { type: "radio", name: "lengths-shown", value, checked: value === shown, onchange: () => { shown = value; update(state); } }), words);
  const switches = html("fieldset", { class: "switch" }, html("legend", {}, "Shown"), choice("cache", "cache"), choice("total", "everything on the GPU"));
  const element = panel("lengths", "Memory against sequence length", lead, switches, box, reading, legend, refused, table.element);

  const width = () => Math.max(280, box.clientWidth);
  const place = (/** @type {CurveLine} */ line) => page.payload.models.indexOf(line.model);
  const colors = () => [...entries.values()].map(({ line }) => getComputedStyle(line).color);

  /** What the legend's numbers are read at: the cursor, or the chosen length. @param {number} length */
  function read(length) {
    reading.textContent = `At ${exact(length)} tokens:`;
    for (const line of curves.lines) {
      const bytes = line.bytes(length);
      const entry = entries.get(line.model.id);
      if (entry !== undefined) entry.value.textContent = bytes === null ? (length > line.end ? "past its end" : "no value here") : human(bytes);
    }
  }

  /** A chart for these lines; uPlot keeps the number of them. */
  function make() {
    chart?.destroy();
    const palette = colors();
    const style = getComputedStyle(element);
    const [ink, grid, surface] = ["--ink-soft", "--grid", "--surface"].map((name) => pixelsOf(element, style.getPropertyValue(name)));
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1, size: 5 }, font: `12px ${style.fontFamily}` };
    const narrow = width() < NARROW;
    /** @type {import("./vendor/uPlot").Options} */
    const options = {
      width: width(),
      height: CHART_HEIGHT,
      padding: [14, narrow ? 14 : 24, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
      scales: {
        x: { time: false, distr: 3, log: 2, range: () => [page.payload.lengths.least, page.payload.lengths.most] },
        y: { distr: 3, log: 2, range: () => bytesRange({ ...curves, lines: curves.lines.filter((line) => !hidden.has(line.model.id)) }) },
      },
      axes: [
        { ...axis, size: 34, splits: (self) => powers(Number(self.scales["x"]?.min), Number(self.scales["x"]?.max), narrow ? 6 : 14), values: (_, splits) => splits.map(shortTokens) },
        { ...axis, size: narrow ? 58 : 70, splits: (self) => powers(Number(self.scales["y"]?.min), Number(self.scales["y"]?.max), 9), values: (_, splits) => splits.map((bytes) => human(bytes).replace(/\.00 /, " ")) },
      ],
      series: [
        {},
        { stroke: ink, width: 1.5, dash: [10, 3, 2, 3], points: { show: false }, spanGaps: true },
        ...curves.lines.map((line) => ({
          show: !hidden.has(line.model.id),
          stroke: palette[place(line)] ?? ink,
          width: line.model.id === state.model ? 3 : 1.5,
          dash: lineStyle(place(line)).dash,
          points: { show: false },
          spanGaps: true,
        })),
      ],
      hooks: {
        draw: [(self) => marksOf(self, { curves, state, shown, hidden, palette, place, ink: ink ?? "", surface: surface ?? "" })],
        setCursor: [(self) => read(curves.lengths[self.cursor.idx ?? -1] ?? state.seq)],
      },
    };
    chart = new uPlot(options, columns(), box);
    chart.over.addEventListener("click", () => {
      const length = curves.lengths[chart?.cursor.idx ?? -1];
      if (length !== undefined) page.set({ seq: length });
    });
  }

  /** @returns {import("./vendor/uPlot").AlignedData} */
  const columns = () => [curves.lengths, curves.room, ...curves.lines.map((line) => line.values)];

  function toggle(/** @type {Model} */ model) {
    if (!hidden.delete(model.id)) hidden.add(model.id);
    update(state);
  }

  function follow() {
    for (const model of page.payload.models) {
      let entry = entries.get(model.id);
      if (entry === undefined) {
        entry = legendEntry(entries.size, model, () => toggle(model));
        entries.set(model.id, entry);
        legend.append(entry.button);
      }
      const line = curves.lines.find((line) => line.model === model);
      entry.button.hidden = line === undefined;
      entry.button.setAttribute("aria-pressed", String(!hidden.has(model.id)));
      entry.button.classList.toggle("chosen", model.id === state.model);
      if (line !== undefined) entry.fits.textContent = fitsWords(line);
    }
  }

  function words() {
    const what = shown === "cache" ? "Bytes of the KV cache on the fullest GPU" : "All bytes on the fullest GPU: weights, cache, activations, overhead";
    const many = `${exact(state.batch)} ${state.batch === 1 ? "sequence" : "sequences"}`;
    const line = shown === "cache" ? `what the weights and the rest of ${state.model} leave for a cache` : "what may be used of the GPU";
    lead.textContent = `${what}, for ${many} of so many tokens. The line of dashes and dots is ${line}; ✕ marks where a model no longer fits. A line ends at the model's own maximum. Every point is exact; the lines join ${curves.lengths.length} of them.`;
    const own = curves.lines.find((line) => line.model.id === state.model);
    box.setAttribute("aria-label", own === undefined ? "No line for this model." : `${state.model}: ${human(own.bytes(state.seq) ?? 0)} at ${exact(state.seq)} tokens; ${fitsWords(own)}. All numbers are in the table below.`);
    refused.replaceChildren(...curves.refused.map(({ model, refused }) => html("li", {}, html("b", {}, model.id), ` has no line: ${refused}`)));
  }

  function tableMade() {
    const { least, most } = page.payload.lengths;
    const lengths = [...new Set([...powers(least, most, 99), state.seq])].sort((one, other) => one - other);
    const cell = (/** @type {number | null} */ bytes) => (bytes === null ? "-" : html("span", {}, human(bytes), html("small", {}, exact(bytes))));
    return tableOf({
      caption: `${shown === "cache" ? "Cache" : "Everything"} on the fullest GPU, ${exact(state.batch)} × so many tokens: sizes, and exact bytes below them`,
      head: ["Tokens", ...curves.lines.map((line) => line.model.id)],
      rows: [...lengths.map((length) => [exact(length), ...curves.lines.map((line) => cell(line.bytes(length)))]), ["Fits", ...curves.lines.map(fitsWords)]],
    });
  }

  /** @param {State} next */
  function update(next) {
    state = next;
    curves = curvesOf(page, state, shown);
    follow();
    words();
    const series = JSON.stringify([state.model, [...hidden], curves.lines.map((line) => line.model.id)]);
    if (chart === null || drawn[0] !== series) make();
    else chart.setData(columns());
    drawn = [series];
    read(state.seq);
    table.show(tableMade);
  }

  new ResizeObserver(() => chart !== null && chart.width !== width() && chart.setSize({ width: width(), height: CHART_HEIGHT })).observe(box);
  onTheme(() => chart !== null && make());
  return { element, update };
}
