// Elements and tables. Text gets into the page as text only, so a name of a model can never be markup.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";
const UNITS = /** @type {[number, string][]} */ ([[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"]]);
const KIB = 2 ** 10;
/** Numbers are written in one way, whatever the language of the browser. To make these takes far longer than to use them. */
const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
/** A half goes to the even digit, as Python rounds it: page and command line show the same bytes alike. @type {Intl.NumberFormatOptions & { roundingMode: string }} */
const TWO_DIGITS = { minimumFractionDigits: 2, maximumFractionDigits: 2, roundingMode: "halfEven" };
const HUNDREDTHS = new Intl.NumberFormat("en-US", TWO_DIGITS);

/** @typedef {string | number | boolean | null | undefined | ((event: any) => void)} Attribute */
/** @typedef {Node | string | number | null | undefined} Child */

/** @template {Element} E @param {E} element @param {Record<string, Attribute>} attributes @param {Child[]} children @returns {E} */
function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.replace(/^on/, ""), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

/**
 * An element of HTML. A function as an attribute listens: `{ onclick: () => ... }`.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} name @param {Record<string, Attribute>} [attributes] @param {Child[]} children @returns {HTMLElementTagNameMap[K]}
 */
export function html(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/**
 * An element of SVG.
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} name @param {Record<string, Attribute>} [attributes] @param {Child[]} children @returns {SVGElementTagNameMap[K]}
 */
export function svg(name, attributes = {}, ...children) {
  return filled(/** @type {SVGElementTagNameMap[K]} */ (document.createElementNS(SVG_NAMESPACE, name)), attributes, children);
}

/** A whole number with commas. @param {number | bigint} value */
export function exact(value) {
  return WHOLE.format(value);
}

/** Bytes in binary units, as the command line writes them: "4.00 GiB", "128 KiB". @param {number | bigint} bytes */
export function human(bytes) {
  const value = Number(bytes);
  const size = Math.abs(value);
  if (size < KIB) return `${value} B`;
  const [unit, name] = UNITS.find(([least]) => size >= least) ?? [KIB, "KiB"];
  const text = HUNDREDTHS.format(value / unit);
  return `${name === "KiB" ? text.replace(/\.00$/, "") : text} ${name}`;
}

/** Tokens as the options take them: 131072 is "128k". @param {number} tokens */
export function shortTokens(tokens) {
  if (tokens >= 2 ** 20 && tokens % 2 ** 20 === 0) return `${tokens / 2 ** 20}M`;
  return tokens >= KIB && tokens % KIB === 0 ? `${tokens / KIB}k` : exact(tokens);
}

/** Two cells of a table: the size for people, and its bytes. @param {number | bigint | null} bytes @returns {string[]} */
export function bytesCells(bytes) {
  return bytes === null ? ["-", "-"] : [human(bytes), exact(bytes)];
}

/** One cell: the size for people, and its bytes below it. @param {number | bigint | null | undefined} bytes */
export function sizeCell(bytes) {
  return bytes === null || bytes === undefined ? "-" : html("span", {}, human(bytes), html("small", {}, exact(bytes)));
}

/** "one sequence", "8 sequences". @param {number} batch */
export function sequencesWords(batch) {
  return batch === 1 ? "one sequence" : `${exact(batch)} sequences`;
}

/**
 * A table whose first column names the row. Columns of `numbers` stand at the right.
 * @param {{ caption: string, head: string[], rows: Child[][], numbers?: number[] }} table
 */
export function tableOf({ caption, head, rows, numbers = head.map((_, column) => column).slice(1) }) {
  const side = (/** @type {number} */ column) => (numbers.includes(column) ? "number" : null);
  return html(
    "table",
    {},
    html("caption", {}, caption),
    html("thead", {}, html("tr", {}, ...head.map((text, column) => html("th", { scope: "col", class: side(column) }, text)))),
    html(
      "tbody",
      {},
      ...rows.map((row) =>
        html("tr", {}, ...row.map((cell, column) => (column === 0 ? html("th", { scope: "row" }, cell) : html("td", { class: side(column) }, cell)))),
      ),
    ),
  );
}

/** A table behind a chart. It is not made before somebody opens it. @param {string} title @returns {Behind} */
export function details(title) {
  const box = html("div", { class: "table-box", role: "region", "aria-label": title, tabindex: 0 });
  let make = () => /** @type {HTMLElement} */ (html("p", {}, ""));
  const element = html("details", { class: "behind", ontoggle: () => renew() }, html("summary", {}, title), box);
  const renew = () => element.open && box.replaceChildren(make());
  return {
    element,
    show(maker) {
      make = maker;
      renew();
    },
  };
}
