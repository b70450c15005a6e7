// What leaves the page: a link, the numbers as CSV, the pictures. Everything is made here, and saved by the browser.

import { modelOf } from "./data.js";
import { ratesOf } from "./speed.js";
import { fragmentOf } from "./state.js";
import { html } from "./tables.js";

/** @param {string} text @param {HTMLElement} shown what is selected where there is no clipboard */
export async function copyText(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    getSelection()?.selectAllChildren(shown);
    return document.execCommand("copy");
  }
}

/** @param {Blob} blob @param {string} name */
function save(blob, name) {
  const link = html("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** A cell as a spreadsheet reads it back: a text never begins a formula. @param {unknown} value */
function cell(value) {
  const text = String(value ?? "");
  const safe = /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** The choice and the answer, a line for each number. @param {Page} page @param {State} state */
function csvOf(page, state) {
  const answer = page.answer(state);
  const { hand, ...rest } = state;
  /** @type {[string, unknown][]} */
  const rows = [["name", "value"], ...Object.entries({ ...rest, ...hand })];
  if ("refused" in answer) rows.push(["refused", answer.refused]);
  else {
    const told = { ...answer, ...ratesOf(page, state, answer) };
    for (const [section, values] of Object.entries(told)) for (const [name, value] of Object.entries(values ?? {})) rows.push([`${section}.${name}`, value]);
  }
  rows.push(["command", page.command(state)]);
  return `${rows.map((row) => row.map(cell).join(",")).join("\r\n")}\r\n`;
}

const DRAWN = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity"];

/** A picture that looks alike outside the page: with its colours in it. @param {SVGElement} drawn @param {string} title */
function standalone(drawn, title) {
  const { width, height } = drawn.getBoundingClientRect();
  const copy = /** @type {SVGElement} */ (drawn.cloneNode(true));
  const [from, to] = [[...drawn.querySelectorAll("*")], [...copy.querySelectorAll("*")]];
  for (const [place, element] of from.entries()) {
    const style = getComputedStyle(element);
    for (const name of DRAWN) to[place]?.setAttribute(name, style.getPropertyValue(name));
  }
  const patterns = document.querySelector("#patterns defs")?.cloneNode(true);
  if (patterns instanceof Element) {
    for (const path of patterns.querySelectorAll("path")) {
      for (const [name, value] of Object.entries({ stroke: "#ffffff", "stroke-opacity": "0.7", fill: "none" })) path.setAttribute(name, value);
    }
    copy.prepend(patterns);
  }
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", String(width));
  copy.setAttribute("height", String(height));
  copy.setAttribute("aria-label", title);
  return new XMLSerializer().serializeToString(copy);
}

/**
 * Buttons that copy and save.
 * @param {Page} page @param {HTMLElement} said @param {HTMLElement} shown
 */
export function shareButtons(page, said, shown) {
  const name = () => `kvplan-${modelOf(page.payload, page.state()).id.replace(/[^\w.-]+/g, "-").slice(0, 60)}`;
  const tell = (/** @type {string} */ words) => (said.textContent = words);
  const button = (/** @type {string} */ id, /** @type {string} */ words, /** @type {() => void} */ onclick) => html("button", { type: "button", id, onclick }, words);
  const link = () => {
    const address = `${location.href.split("#")[0] ?? ""}${fragmentOf(page.state())}`;
    void copyText(address, shown).then((done) => tell(done ? "The link is copied." : "The link is in the address of the page."));
  };
  const csv = () => {
    save(new Blob([csvOf(page, page.state())], { type: "text/csv" }), `${name()}.csv`);
    tell("Saved as CSV.");
  };
  const picture = () => {
    const canvas = document.querySelector("#lengths canvas");
    if (!(canvas instanceof HTMLCanvasElement)) return;
    // The canvas itself is transparent.
    const ground = document.createElement("canvas");
    [ground.width, ground.height] = [canvas.width, canvas.height];
    const context = ground.getContext("2d");
    if (context === null) return;
    context.fillStyle = getComputedStyle(canvas.closest(".panel") ?? document.body).backgroundColor;
    context.fillRect(0, 0, ground.width, ground.height);
    context.drawImage(canvas, 0, 0);
    ground.toBlob((blob) => blob !== null && save(blob, `${name()}-lengths.png`));
    tell("The chart is saved as PNG.");
  };
  const vector = () => {
    const drawn = document.querySelector("#gauge .gauge svg");
    if (!(drawn instanceof SVGElement)) return;
    save(new Blob([standalone(drawn, `${page.state().model}: ${shown.textContent ?? ""}`)], { type: "image/svg+xml" }), `${name()}-gpu.svg`);
    tell("The bar is saved as SVG.");
  };
  return html("div", { class: "buttons" }, button("copy-link", "Copy link", link), button("save-csv", "CSV", csv), button("save-png", "Chart as PNG", picture), button("save-svg", "Bar as SVG", vector));
}
