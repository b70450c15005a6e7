// One cell a layer: its letter and colour say the kind, its strength the bytes at this length. The one that is pointed at, or that has the
// focus, is described below.

import { panel } from "./bars.js";
import { modelOf } from "./data.js";
import { exact, html, human, details, tableOf, bytesCells } from "./tables.js";

const STRIP_COLORS = 8;
const CELL_PIXELS = 26;
const CELL_GAP = 3;
/** A cell with any bytes is never as pale as one with none. */
const LEAST_STRENGTH = 0.06;
/** The letter of layers that keep nothing of their own, as in the strip of a plan. */
const NOTHING = "·";

/** "0-4,6" as numbers. @param {string} layers */
function layerNumbers(layers) {
  return layers.split(",").flatMap((part) => {
    const [first, last = first] = part.split("-").map(Number);
    if (first === undefined || last === undefined || Number.isNaN(first + last)) return [];
    return Array.from({ length: last - first + 1 }, (_, place) => first + place);
  });
}

/** What an engine stores beside the layers, such as unused space in blocks, is in none of them. @param {TermSizes} sizes */
function ofLayers({ term }) {
  return term.layers !== "";
}

/** What is kept beside the layers, each kind as one sum: keys and values have terms of their own. @param {TermSizes[]} terms */
export function besideWords(terms) {
  /** @type {Map<string, number>} */
  const sums = new Map();
  for (const { term, bytes } of terms.filter((sizes) => !ofLayers(sizes))) sums.set(term.kind, (sums.get(term.kind) ?? 0) + bytes);
  return [...sums].map(([kind, bytes]) => ` Beside the layers: ${human(bytes)} of ${kind}, kept once for the model.`).join("");
}

/**
 * The layers of a model, each with its terms. Dimensions by hand have another number of them: then they follow each other.
 * @param {TermSizes[]} terms @param {boolean} byHand @param {[kind: string, layers: string][]} own all layers of the model as it is
 * @returns {StripLayer[]}
 */
function layersOf(terms, byHand, own) {
  /** @type {Map<number, StripLayer>} */
  const layers = new Map();
  /** @type {Map<string, number>} */
  const starts = new Map();
  let next = 0;
  for (const sizes of terms.filter(ofLayers)) {
    const { kind, layers: named } = sizes.term;
    const start = starts.get(named) ?? next;
    starts.set(named, start);
    next = Math.max(next, start + sizes.count);
    const numbers = byHand ? Array.from({ length: sizes.count }, (_, place) => start + place) : layerNumbers(named);
    for (const number of numbers) {
      const layer = layers.get(number) ?? { number, kind, bytes: 0, terms: [] };
      if (!layer.kind.split(" + ").includes(kind)) layer.kind += ` + ${kind}`;
      layer.bytes += sizes.bytes / numbers.length;
      layer.terms.push(sizes);
      layers.set(number, layer);
    }
  }
  for (const [kind, numbers] of byHand ? [] : own) {
    for (const number of layerNumbers(numbers)) if (!layers.has(number)) layers.set(number, { number, kind, bytes: 0, terms: [] });
  }
  return [...layers.values()].sort((one, other) => one.number - other.number);
}

/**
 * A letter for each kind, of its own name where it is still free; a dot for kinds that keep nothing.
 * @param {string[]} kinds @param {(kind: string) => boolean} keeps @returns {Map<string, string>}
 */
function lettersOf(kinds, keeps) {
  /** @type {Map<string, string>} */
  const letters = new Map(kinds.filter((kind) => !keeps(kind)).map((kind) => [kind, NOTHING]));
  for (const kind of kinds.filter(keeps)) {
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
    const kind = layer.kind.includes(" + ") ? `${term.kind}: ` : "";
    if (/^[\d,]+$/.test(term.rule)) return { rule: `${kind}always ${term.rule}`, numbers: `At every length: ${exact(units)} ${product}` };
    return { rule: `${kind}${unit} = ${term.rule}`, numbers: `With n = ${exact(seq)}: ${exact(units)} ${unit} ${product}` };
  });
}

/** @param {HTMLElement} detail @param {StripLayer} layer @param {number} alike @param {State} state */
function describe(detail, layer, alike, state) {
  const nothing = layer.terms.length > 0 ? [] : [html("p", {}, "It keeps nothing of its own for a token.")];
  const lines = ruleLines(layer, state.seq).flatMap(({ rule, numbers }) => [html("p", { class: "rule" }, html("code", {}, rule)), html("p", {}, numbers)]);
  const others = alike === 1 ? "The only layer of its kind." : `${exact(alike)} layers are of this kind.`;
  const many = state.batch === 1 ? "" : ` For ${exact(state.batch)} sequences ${human(layer.bytes * state.batch)}.`;
  detail.replaceChildren(html("h3", {}, `Layer ${layer.number}: ${layer.kind}, ${human(layer.bytes)} a sequence`), ...lines, ...nothing, html("p", {}, `${others}${many}`));
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
  // As many cells in each row, so that none is left alone in the last.
  const balance = () => {
    const room = Math.max(1, Math.floor((strip.clientWidth + CELL_GAP) / (CELL_PIXELS + CELL_GAP)));
    if (strip.clientWidth > 0 && cells.length > 0) strip.style.gridTemplateColumns = `repeat(${Math.ceil(cells.length / Math.ceil(cells.length / room))}, minmax(0, 1fr))`;
  };
  new ResizeObserver(balance).observe(strip);
  const element = panel("strip", "Layer by layer", lead, strip, detail, legend, table.element);

  /** New cells only for other layers: a slider must not take the focus away. */
  function cellsMade() {
    const kinds = [...new Set(layers.map((layer) => layer.kind))];
    const look = JSON.stringify(layers.map((layer) => [layer.number, layer.kind]));
    if (look === made) return;
    made = look;
    const letters = lettersOf(kinds, (kind) => layers.some((layer) => layer.kind === kind && layer.terms.length > 0));
    const color = (/** @type {string} */ kind) => `series-${(kinds.indexOf(kind) % STRIP_COLORS) + 1}`;
    cells = layers.map(({ kind, number }, place) =>
      html("button", { type: "button", name: "layer", value: number, class: `cell ${color(kind)}`, onfocus: () => choose(place), onpointerenter: () => choose(place) }, html("span", {}, letters.get(kind) ?? "")),
    );
    strip.replaceChildren(...cells);
    balance();
    legend.replaceChildren(...kinds.map((kind) => html("li", {}, html("span", { class: `cell key ${color(kind)}${letters.get(kind) === NOTHING ? " nothing" : ""}`, "aria-hidden": "true" }, letters.get(kind)), `${kind}, ${exact(layers.filter((layer) => layer.kind === kind).length)} layers`)));
  }

  /** @param {State} state */
  function update(state) {
    const terms = page.terms(state);
    const refused = "refused" in terms;
    const model = modelOf(page.payload, state);
    const { texts } = page.pools(model);
    const own = model.layers.map(([kind, numbers]) => /** @type {[string, string]} */ ([texts[kind] ?? "", texts[numbers] ?? ""]));
    layers = refused ? [] : layersOf(terms, state.hand !== null, own);
    const keeping = layers.filter((layer) => layer.terms.length > 0).length;
    for (const part of [strip, detail, legend, table.element]) part.hidden = keeping === 0;
    lead.classList.toggle("refused", refused);
    if (refused || keeping === 0) {
      lead.textContent = refused ? terms.refused : "No layer of this model keeps anything for its tokens.";
      return;
    }
    const most = layers.reduce((largest, layer) => Math.max(largest, layer.bytes), 0);
    const beside = "refused" in terms ? "" : besideWords(terms);
    lead.textContent = `${exact(layers.length)} layers, one cell each${keeping < layers.length ? `; ${exact(keeping)} keep a cache` : ""}. The stronger and fuller the cell, the more bytes of one sequence of ${exact(state.seq)} tokens it has. The fullest has ${human(most)}.${beside}`;
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
        rows: layers.map((layer) => [String(layer.number), layer.kind, layer.terms.map(({ term }) => term.rule).join("; ") || "-", ...bytesCells(layer.bytes)]),
      }),
    );
  }
  return { element, update };
}
