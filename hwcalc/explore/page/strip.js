// One cell a layer: its letter and colour say the kind, its strength the bytes at this length. The one that is pointed at, or that has the
// focus, is described below.

import { panel } from "./bars.js";
import { exact, html, human, details, tableOf, bytesCells } from "./tables.js";

const STRIP_COLORS = 8;
/** A cell with any bytes is never as pale as one with none. */
const LEAST_STRENGTH = 0.06;

/** "0-4,6" as numbers. @param {string} layers */
function layerNumbers(layers) {
  return layers.split(",").flatMap((part) => {
    const [first, last = first] = part.split("-").map(Number);
    if (first === undefined || last === undefined || Number.isNaN(first + last)) return [];
    return Array.from({ length: last - first + 1 }, (_, place) => first + place);
  });
}

/** @param {PlainTerm} term */
function kindOf(term) {
  return term.kind.replaceAll("_", " ");
}

/**
 * The layers of a model, each with its terms. Dimensions by hand have another number of them: then they follow each other.
 * @param {TermSizes[]} terms @param {boolean} byHand @returns {StripLayer[]}
 */
function layersOf(terms, byHand) {
  /** @type {Map<number, StripLayer>} */
  const layers = new Map();
  let next = 0;
  for (const sizes of terms) {
    const kind = kindOf(sizes.term);
    const named = layerNumbers(sizes.term.layers);
    const numbers = named.length > 0 && !byHand ? named : Array.from({ length: sizes.count }, (_, place) => next + place);
    if (byHand) next += sizes.count;
    for (const number of numbers) {
      const layer = layers.get(number) ?? { number, kind, bytes: 0, terms: [] };
      if (!layer.kind.split(" + ").includes(kind)) layer.kind += ` + ${kind}`;
      layer.bytes += sizes.bytes / numbers.length;
      layer.terms.push(sizes);
      layers.set(number, layer);
    }
  }
  return [...layers.values()].sort((one, other) => one.number - other.number);
}

/** A letter for each kind, of its own name where it is still free. @param {string[]} kinds @returns {Map<string, string>} */
function lettersOf(kinds) {
  /** @type {Map<string, string>} */
  const letters = new Map();
  for (const kind of kinds) {
    const taken = [...letters.values()];
    letters.set(kind, [...kind.toUpperCase().replace(/[^A-Z]/g, ""), ..."123456789"].find((letter) => !taken.includes(letter)) ?? "?");
  }
  return letters;
}

/** The rule of a layer with its numbers, a line for each term. @param {StripLayer} layer @param {number} seq */
function ruleLines(layer, seq) {
  return layer.terms.map(({ term, count, units, bytes }) => {
    const unit = term.unit_tokens === 1 ? "positions" : `blocks of ${exact(term.unit_tokens)} tokens`;
    const one = bytes / count;
    const product = `× ${exact(term.unit_bytes)} B = ${exact(one)} B (${human(one)}) a layer`;
    const kind = layer.kind.includes(" + ") ? `${kindOf(term)}: ` : "";
    if (!/\bn\b/.test(term.rule)) return { rule: `${kind}always ${term.rule}`, numbers: `At every length: ${exact(units)} ${product}` };
    return { rule: `${kind}${unit} = ${term.rule}`, numbers: `With n = ${exact(seq)}: ${exact(units)} ${unit} ${product}` };
  });
}

/** @param {HTMLElement} detail @param {StripLayer} layer @param {number} alike @param {State} state */
function describe(detail, layer, alike, state) {
  const lines = ruleLines(layer, state.seq).flatMap(({ rule, numbers }) => [html("p", { class: "rule" }, html("code", {}, rule)), html("p", {}, numbers)]);
  const others = alike === 1 ? "The only layer of its kind." : `${exact(alike)} layers are of this kind.`;
  const many = state.batch === 1 ? "" : ` For ${exact(state.batch)} sequences ${human(layer.bytes * state.batch)}.`;
  detail.replaceChildren(html("h3", {}, `Layer ${layer.number}: ${layer.kind}, ${human(layer.bytes)} a sequence`), ...lines, html("p", {}, `${others}${many}`));
}

/**
 * Moves the focus among cells by the arrow keys; only one of them is in the order of Tab.
 * @param {KeyboardEvent} event @param {HTMLElement[]} cells
 */
function moveFocus(event, cells) {
  const here = cells.indexOf(/** @type {HTMLElement} */ (event.target));
  const columns = cells.filter((cell) => cell.offsetTop === cells[0]?.offsetTop).length;
  /** @type {Record<string, number>} */
  const targets = { ArrowLeft: here - 1, ArrowRight: here + 1, ArrowUp: here - columns, ArrowDown: here + columns, Home: 0, End: cells.length - 1 };
  const target = cells[targets[event.key] ?? -1];
  if (here < 0 || target === undefined) return;
  event.preventDefault();
  target.focus();
}

/** @param {Page} page @returns {Section} */
export function stripSection(page) {
  const lead = html("p", { class: "lead" });
  const legend = html("ul", { class: "bar-legend" });
  const detail = html("div", { class: "strip-detail" });
  const table = details("Table: bytes of each layer");
  /** @type {HTMLButtonElement[]} */
  let cells = [];
  /** @type {StripLayer[]} */
  let layers = [];
  let chosen = 0;
  let made = "";
  const choose = (/** @type {number} */ place) => {
    chosen = Math.max(0, Math.min(place, layers.length - 1));
    for (const [other, cell] of cells.entries()) cell.tabIndex = other === chosen ? 0 : -1;
    const layer = layers[chosen];
    if (layer !== undefined) describe(detail, layer, layers.filter(({ kind }) => kind === layer.kind).length, page.state());
  };
  const strip = html("div", { class: "strip", role: "group", "aria-label": "Layers; arrow keys move", onkeydown: (/** @type {KeyboardEvent} */ event) => moveFocus(event, cells) });
  const element = panel("strip", "Layer by layer", lead, strip, detail, legend, table.element);

  /** New cells only for other layers: a slider must not take the focus away. */
  function cellsMade() {
    const kinds = [...new Set(layers.map((layer) => layer.kind))];
    const look = JSON.stringify(layers.map((layer) => [layer.number, layer.kind]));
    if (look === made) return;
    made = look;
    const letters = lettersOf(kinds);
    const color = (/** @type {string} */ kind) => `series-${(kinds.indexOf(kind) % STRIP_COLORS) + 1}`;
    cells = layers.map(({ kind, number }, place) =>
      html("button", { type: "button", name: "layer", value: number, class: `cell ${color(kind)}`, onfocus: () => choose(place), onpointerenter: () => choose(place) }, html("span", {}, letters.get(kind) ?? "")),
    );
    strip.replaceChildren(...cells);
    legend.replaceChildren(...kinds.map((kind) => html("li", {}, html("span", { class: `cell key ${color(kind)}`, "aria-hidden": "true" }, letters.get(kind)), `${kind}, ${exact(layers.filter((layer) => layer.kind === kind).length)} layers`)));
  }

  /** @param {State} state */
  function update(state) {
    const terms = page.terms(state);
    const refused = "refused" in terms;
    layers = refused ? [] : layersOf(terms, state.hand !== null);
    for (const part of [strip, detail, legend, table.element]) part.hidden = layers.length === 0;
    lead.classList.toggle("refused", refused);
    if (layers.length === 0) {
      lead.textContent = refused ? terms.refused : "No layer of this model keeps anything for its tokens.";
      return;
    }
    const most = layers.reduce((largest, layer) => Math.max(largest, layer.bytes), 0);
    lead.textContent = `${exact(layers.length)} layers that keep a cache, one cell each; the stronger and fuller the cell, the more bytes of one sequence of ${exact(state.seq)} tokens it has. The fullest has ${human(most)}.`;
    cellsMade();
    for (const [place, cell] of cells.entries()) {
      const { number, kind, bytes } = layers[place] ?? { number: 0, kind: "", bytes: 0 };
      const share = most > 0 ? bytes / most : 0;
      cell.style.setProperty("--share", bytes > 0 ? Math.max(LEAST_STRENGTH, share).toFixed(3) : "0");
      cell.setAttribute("aria-label", `Layer ${number}, ${kind}, ${human(bytes)}`);
    }
    choose(chosen);
    table.show(() =>
      tableOf({
        caption: `Bytes of each layer for one sequence of ${exact(state.seq)} tokens, on all GPUs together`,
        head: ["Layer", "Kind", "Rule", "Size", "Bytes"],
        numbers: [3, 4],
        rows: layers.map((layer) => [String(layer.number), layer.kind, layer.terms.map(({ term }) => term.rule).join("; "), ...bytesCells(layer.bytes)]),
      }),
    );
  }
  return { element, update };
}
