// What a cache saves: the work of a new token with it, and without.

import { barLegend, barRows, panel } from "./bars.js";
import { modelOf } from "./data.js";
import { nearest } from "./state.js";
import { lengthWords } from "./strategies.js";
import { details, exact, html, tableOf } from "./tables.js";

const PREFIXES = /** @type {[number, string][]} */ ([[1e24, "Y"], [1e21, "Z"], [1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]);

/** Operations for people: "1.24 TFLOP". @param {number} operations */
function operationsWords(operations) {
  const [unit, prefix] = PREFIXES.find(([least]) => operations >= least) ?? [1, ""];
  return `${(operations / unit).toLocaleString("en-US", { maximumFractionDigits: 2 })} ${prefix}FLOP`;
}

/** How many times as many. @param {Whole} without @param {Whole} cached */
function timesWords(without, cached) {
  const times = Number(without) / Number(cached);
  return `${times.toLocaleString("en-US", { maximumSignificantDigits: 3 })} times`;
}

/** @param {Page} page @returns {Section} */
export function savedSection(page) {
  const lead = html("p", { class: "lead" });
  const charts = html("div", { class: "pair" });
  const source = html("p", { class: "note" });
  const table = details("Table: operations at each sampled length");
  const element = panel("saved", "What the cache saves", lead, charts, barLegend([["plain", "with the cache"], ["without", "without it"]]), source, table.element);

  /** @param {string} title @param {Whole} cached @param {Whole} without */
  function pair(title, cached, without) {
    const row = (/** @type {string} */ name, /** @type {string} */ kind, /** @type {Whole} */ operations) => {
      const value = operationsWords(Number(operations));
      return { name, segments: [{ kind, bytes: Number(operations), title: `${name}: ${value}` }], value };
    };
    return html("div", {}, html("h3", {}, title), barRows([row("with the cache", "plain", cached), row("without it", "without", without)]));
  }

  /** @param {State} state */
  function update(state) {
    const saved = modelOf(page.payload, state).saved;
    element.hidden = saved === null;
    if (saved === null) return;
    const length = nearest(saved.lengths, state.seq);
    const place = saved.lengths.indexOf(length);
    const [cached, without, totalCached, totalWithout] = [saved.with_cache, saved.without_cache, saved.total_with_cache, saved.total_without_cache].map((column) => column[place] ?? 0);
    const scope = saved.weights ? "all of the model" : "attention alone";
    lead.textContent = `At ${lengthWords(length, state.seq)}, without a cache the next token would take ${timesWords(without ?? 0, cached ?? 1)} the operations, and the whole text ${timesWords(totalWithout ?? 0, totalCached ?? 1)} (${scope}).`;
    charts.replaceChildren(pair("The next token", cached ?? 0, without ?? 0), pair("The whole text, token by token", totalCached ?? 0, totalWithout ?? 0));
    source.textContent = `Exact at the sampled lengths. ${saved.source}.`;
    const number = (/** @type {Whole | undefined} */ value) => (value === undefined ? "-" : exact(BigInt(value)));
    table.show(() =>
      tableOf({
        caption: "Operations, exact at these lengths",
        head: ["Tokens", "Next token, with", "Next token, without", "Whole text, with", "Whole text, without"],
        rows: saved.lengths.map((tokens, at) => [exact(tokens), number(saved.with_cache[at]), number(saved.without_cache[at]), number(saved.total_with_cache[at]), number(saved.total_without_cache[at])]),
      }),
    );
  }
  return { element, update };
}
