// Memory against sequence length, all models on one chart.

import { panel } from "./bars.js";
import { lengthsChart, powers } from "./chart.js";
import { curvesOf } from "./curves.js";
import { lineStyle, pixelsOf } from "./marks.js";
import { details, exact, html, human, sequencesWords, shortTokens, sizeCell, svg, tableOf } from "./tables.js";
import { onTheme } from "./theme.js";

/** How far a line's model fits. @param {CurveLine} line */
function fitsWords({ fits, end }) {
  if (fits >= end) return `fits to its end, ${shortTokens(end)}`;
  return fits === 0 ? "✕ fits at no length" : `✕ fits up to ${exact(fits)}`;
}

/**
 * One entry of the legend: a button that shows a line or hides it.
 * @param {number} place @param {Model} model @param {() => void} toggle
 */
function legendEntry(place, model, toggle) {
  const { color, dash } = lineStyle(place);
  const stroke = svg("line", { x1: 1, x2: 29, y1: 6, y2: 6, "stroke-dasharray": dash.join(" ") });
  const line = svg("svg", { class: `line-swatch series-${color}`, width: 30, height: 12, "aria-hidden": "true" }, stroke);
  const value = html("span", { class: "legend-value" });
  const fits = html("span", { class: "legend-fits" });
  const name = html("span", { class: "legend-name" }, model.id);
  const number = html("span", { class: "legend-place" }, place + 1);
  const button = html("button", { type: "button", class: "legend-entry", name: "line", value: model.id, onclick: toggle }, number, line, name, value, fits);
  return { button, line, value, fits };
}

/** The legend of all models, those that come later too. @param {Page} page @param {(model: Model) => void} toggle */
function legendOf(page, toggle) {
  /** @type {Map<string, ReturnType<typeof legendEntry>>} */
  const entries = new Map();
  const element = html("div", { class: "legend", role: "group", "aria-label": "Models in the chart: press a name to hide or show its line" });
  const entryOf = (/** @type {Model} */ model) => {
    const known = entries.get(model.id);
    if (known !== undefined) return known;
    const made = legendEntry(entries.size, model, () => toggle(model));
    entries.set(model.id, made);
    element.append(made.button);
    return made;
  };
  return {
    element,
    colors: () => [...entries.values()].map(({ line }) => getComputedStyle(line).color),
    /** @param {Drawing} drawing */
    follow({ curves, state, hidden }) {
      for (const model of page.payload.models) {
        const { button, fits } = entryOf(model);
        const line = curves.lines.find((line) => line.model === model);
        button.hidden = line === undefined;
        button.setAttribute("aria-pressed", String(!hidden.has(model.id)));
        button.classList.toggle("chosen", model.id === state.model);
        if (line !== undefined) fits.textContent = fitsWords(line);
      }
    },
    /** @param {Curves} curves @param {number} length */
    read(curves, length) {
      for (const line of curves.lines) {
        const bytes = line.bytes(length);
        entryOf(line.model).value.textContent = bytes === null ? "beyond its maximum" : human(bytes);
      }
    },
  };
}

/** @param {Drawing} drawing */
function leadOf({ curves, state, shown }) {
  const what = shown === "cache" ? "Bytes of the cache on the fullest GPU" : "All bytes on the fullest GPU: weights, cache, activations and overhead";
  const line = shown === "cache" ? `what is left for a cache beside ${state.model}` : "what may be used of the GPU";
  const room = curves.room.some((bytes) => bytes !== null) ? `Dashes and dots are ${line}` : "Nothing is left for a cache on this GPU";
  return `${what}, for ${sequencesWords(state.batch)}, at each length. ${room}; ✕ is the last length at which a model is expected to fit. A line ends at the model's own maximum. Its points are exact; press a point to choose that length.`;
}

/** @param {Drawing} drawing @param {Payload["lengths"]} lengths */
function lengthsTable({ curves, state, shown }, { least, most }) {
  const rows = [...new Set([...powers(least, most, Infinity), state.seq])].sort((one, other) => one - other);
  return tableOf({
    caption: `${shown === "cache" ? "Cache" : "All bytes"} on the fullest GPU for ${exact(state.batch)} × so many tokens: the size, and below it the exact bytes`,
    head: ["Tokens", ...curves.lines.map((line) => line.model.id)],
    rows: [...rows.map((length) => [exact(length), ...curves.lines.map((line) => sizeCell(line.bytes(length)))]), ["Fits", ...curves.lines.map(fitsWords)]],
  });
}

/** @param {Page} page @returns {Section} */
export function lengthsSection(page) {
  /** @type {Drawing} */
  const drawing = { curves: { lengths: [], lines: [], room: [], refused: [] }, state: page.state(), shown: "cache", scale: "log", hidden: new Set() };
  const lead = html("p", { class: "lead" });
  const box = html("div", { class: "chart", role: "img" });
  const reading = html("p", { class: "reading" });
  const refused = html("ul", { class: "refusals" });
  const table = details("Table: bytes at each length");
  const legend = legendOf(page, ({ id }) => {
    if (!drawing.hidden.delete(id)) drawing.hidden.add(id);
    update(drawing.state);
  });
  const choice = (/** @type {"cache" | "total"} */ value, /** @type {string} */ words) => {
    const onchange = () => {
      drawing.shown = value;
      update(drawing.state);
    };
    return html("label", {}, html("input", { type: "radio", name: "lengths-shown", value, checked: value === drawing.shown, onchange }), words);
  };
  const scale = (/** @type {Drawing["scale"]} */ value, /** @type {string} */ words) => {
    const onchange = () => {
      drawing.scale = value;
      update(drawing.state);
    };
    return html("label", {}, html("input", { type: "radio", name: "lengths-scale", value, checked: value === drawing.scale, onchange }), words);
  };
  const switches = html(
    "div",
    { class: "switches" },
    html("fieldset", { class: "switch" }, html("legend", {}, "Show"), choice("cache", "the cache"), choice("total", "all on the GPU")),
    html("fieldset", { class: "switch" }, html("legend", {}, "Scale"), scale("log", "powers"), scale("linear", "linear")),
  );
  const element = panel("lengths", "Memory against sequence length", lead, switches, box, reading, legend.element, refused, table.element);
  const color = (/** @type {string} */ name) => pixelsOf(element, `var(--${name})`);
  /** @returns {Palette} */
  const palette = () => ({ ink: color("ink-soft"), grid: color("grid"), surface: color("surface"), font: getComputedStyle(element).fontFamily, lines: legend.colors() });
  const read = (/** @type {number} */ length) => {
    reading.textContent = `At ${exact(length)} tokens:`;
    legend.read(drawing.curves, length);
  };
  const chart = lengthsChart(box, page.payload.lengths, () => drawing, palette, {
    pointed: (length) => read(length ?? drawing.state.seq),
    picked: (seq) => page.set({ seq }),
  });
  onTheme(chart.renew);

  /** @param {State} state */
  function update(state) {
    drawing.state = state;
    drawing.curves = curvesOf(page, state, drawing.shown);
    legend.follow(drawing);
    chart.draw();
    read(state.seq);
    lead.textContent = leadOf(drawing);
    const own = drawing.curves.lines.find((line) => line.model.id === state.model);
    const words = own === undefined ? "No line for the chosen model." : `${state.model}: ${human(own.bytes(state.seq) ?? 0)} at ${exact(state.seq)} tokens, ${fitsWords(own)}.`;
    box.setAttribute("aria-label", `${words} All numbers are in the table below.`);
    refused.replaceChildren(...drawing.curves.refused.map(({ model, refused }) => html("li", {}, html("b", {}, model.id), ` has no line: ${refused}`)));
    table.show(() => lengthsTable(drawing, page.payload.lengths));
  }
  return { element, update };
}
