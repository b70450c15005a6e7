// Horizontal bars of SVG. What a segment is can be seen by its colour and by its pattern; what it is exactly stands in the table behind.

import { hint } from "./hints.js";
import { html, human, svg } from "./tables.js";

/** Drawn over the colour of a segment: a second sign beside it. @type {Record<string, [size: number, path: string]>} */
const PATTERNS = {
  cache: [7, "M-1 8 L8 -1 M-1 1 L1 -1 M6 8 L8 6"],
  state: [8, "M0 4 L4 0 L8 4 L4 8 Z"],
  activations: [6, "M1.5 3 a1.5 1.5 0 1 0 3 0 a1.5 1.5 0 1 0 -3 0"],
  overhead: [5, "M2.5 0 L2.5 5"],
  beyond: [8, "M-1 9 L9 -1 M-1 1 L1 -1 M7 9 L9 7"],
  without: [7, "M-1 8 L8 -1 M-1 1 L1 -1 M6 8 L8 6 M-1 -1 L8 8"],
};

const BAR_HEIGHT = 20;
/** Panels that nobody misses who does not look for them. */
const FOLDED = new Set(["strategies", "saved"]);

function makePatterns() {
  const patterns = Object.entries(PATTERNS).map(([kind, [size, path]]) =>
    svg("pattern", { id: `pattern-${kind}`, width: size, height: size, patternUnits: "userSpaceOnUse" }, svg("path", { d: path, class: "pattern-line" })),
  );
  document.body.append(svg("svg", { id: "patterns", width: 0, height: 0, "aria-hidden": "true", focusable: "false" }, svg("defs", {}, ...patterns)));
}

/** A rectangle in the colour of a kind, with its pattern over it. @param {string} kind @param {Record<string, string | number>} place */
function block(kind, place) {
  if (document.getElementById("patterns") === null) makePatterns();
  return svg("g", { class: `segment segment-${kind}` }, svg("rect", place), kind in PATTERNS ? svg("rect", { ...place, fill: `url(#pattern-${kind})`, class: "overlay" }) : null);
}

/**
 * One stacked bar as wide as its box. `limit` is a line across it, where a GPU is full.
 * @param {Segment[]} segments @param {number} most what the whole width stands for
 * @param {{ limit?: number | null, label?: string, height?: number }} [options]
 */
export function bar(segments, most, { limit = null, label, height = BAR_HEIGHT } = {}) {
  const percent = (/** @type {number} */ bytes) => `${most > 0 ? Math.min(100, (100 * bytes) / most) : 0}%`;
  let start = 0;
  const blocks = segments.map(({ kind, bytes, title = `${kind} ${human(bytes)}` }) => {
    const place = { x: percent(start), y: 0, width: percent(bytes), height };
    start += bytes;
    const drawn = block(kind, place);
    drawn.append(svg("title", {}, title));
    return drawn;
  });
  const mark = limit === null ? null : svg("line", { class: "limit", x1: percent(limit), x2: percent(limit), y1: -3, y2: height + 3 });
  const named = label === undefined ? { "aria-hidden": "true" } : { role: "img", "aria-label": label };
  return svg("svg", { class: "bar", width: "100%", height, ...named }, ...blocks, svg("line", { class: "start", x1: 0, x2: 0, y1: 0, y2: height }), mark);
}

/** A small picture in a legend. @param {...SVGElement} drawn */
export function swatch(...drawn) {
  return svg("svg", { class: "swatch", width: 18, height: 12, "aria-hidden": "true" }, ...drawn);
}

/** The swatch of a kind of segment. @param {string} kind */
export function kindSwatch(kind) {
  return swatch(block(kind, { x: 0, y: 0, width: 18, height: 12 }));
}

/** What the colours and patterns of bars mean. @param {[kind: string, words: string][]} kinds */
export function barLegend(kinds) {
  return html("ul", { class: "bar-legend" }, ...kinds.map(([kind, words]) => html("li", {}, kindSwatch(kind), words)));
}

/** A verdict in the words of the command line, with a sign before it (bars.css). @param {Page} page @param {Verdict} verdict */
export function verdictBadge({ payload }, verdict) {
  return html("span", { class: "verdict", "data-verdict": verdict }, payload.verdicts[verdict].words);
}

/** A badge that stays in the page while verdicts change, and explains them. @param {Page} page */
export function explainedVerdict({ payload }) {
  const element = hint(html("span", { class: "verdict" }), "");
  return {
    element,
    /** @param {Verdict} verdict */
    show(verdict) {
      element.setAttribute("data-verdict", verdict);
      const { words, meaning } = payload.verdicts[verdict];
      element.textContent = words;
      hint(element, meaning);
    },
  };
}

/**
 * Bars under each other on one scale. The numbers stand beside them as text, so the bars themselves are not read out.
 * @param {BarRow[]} rows @param {number | null} [limit]
 */
export function barRows(rows, limit = null) {
  const most = Math.max(1, limit ?? 0, ...rows.map((row) => row.limit ?? 0), ...rows.map((row) => row.segments.reduce((sum, segment) => sum + segment.bytes, 0)));
  const one = (/** @type {BarRow} */ row) =>
    html(
      "li",
      { class: row.chosen ? "bar-row chosen" : "bar-row", "aria-current": row.chosen ? "true" : null },
      html("span", { class: "bar-name" }, row.name),
      row.refused === undefined ? bar(row.segments, most, { limit: row.limit ?? limit }) : html("span", { class: "refused" }, row.refused),
      html("span", { class: "bar-value" }, row.value ?? human(row.segments.reduce((sum, segment) => sum + segment.bytes, 0)), row.badge),
      !row.note ? null : html("span", { class: "bar-note" }, row.note),
    );
  return html("ul", { class: "bars" }, ...rows.map(one));
}

/**
 * The frame that all charts share: a title that folds it, a sentence that says what is shown, the chart, and what stands behind it.
 * @param {string} id @param {string} title @param {...(Node | null)} children
 */
export function panel(id, title, ...children) {
  const body = html("div", { class: "panel-body", id: `${id}-body` }, ...children);
  const fold = html("button", { type: "button", class: "fold", name: "fold", value: id, "aria-expanded": "true", "aria-controls": body.id, onclick: () => folded(!body.hidden) }, title);
  const folded = (/** @type {boolean} */ hidden) => {
    body.hidden = hidden;
    fold.setAttribute("aria-expanded", String(!hidden));
  };
  folded(FOLDED.has(id));
  const element = html("section", { class: "panel", id, "aria-labelledby": `${id}-title` }, html("h2", { id: `${id}-title` }, fold), body);
  element.addEventListener("unfold", () => folded(false));
  return element;
}

/** @type {Partial<Record<keyof State, string>>} */
const SETTINGS = { seq: "tokens", batch: "sequences", dtype: "cache format", weights: "weight format", tp: "tp" };

/** What an engine or a model cannot take as it was chosen, and has instead. @param {State} wanted @param {State} own */
export function differences(wanted, own) {
  const names = /** @type {(keyof State)[]} */ (Object.keys(SETTINGS));
  return names.filter((name) => wanted[name] !== own[name] && own[name] !== "").map((name) => `${SETTINGS[name]} ${own[name]}`);
}
