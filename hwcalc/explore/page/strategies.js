// Ways of allocating the cache of one sequence.

import { barRows, panel } from "./bars.js";
import { modelOf } from "./data.js";
import { nearest } from "./state.js";
import { details, exact, html, sizeCell, tableOf } from "./tables.js";

/** The length that is shown where only some are known. @param {number} length @param {number} wanted */
export function lengthWords(length, wanted) {
  return length === wanted ? `${exact(length)} tokens` : `${exact(length)} tokens, the nearest planned length to ${exact(wanted)}`;
}

/** @param {Page} page @returns {Section} */
export function strategiesSection(page) {
  const lead = html("p", { class: "lead" });
  const chart = html("div", {});
  const table = details("Table: ways of allocating");
  const element = panel("strategies", "Ways of allocating a cache", lead, chart, table.element);

  /** @param {State} state */
  function update(state) {
    const found = modelOf(page.payload, state).strategies;
    element.hidden = found === null;
    if (found === null) return;
    const length = nearest(found.lengths, state.seq);
    const place = found.lengths.indexOf(length);
    lead.textContent = `What one sequence of ${lengthWords(length, state.seq)} takes on the GPU, by the way its cache is allocated. By the formulas, in the model's own format.`;
    chart.replaceChildren(barRows(found.rows.map(({ title, note, bytes }) => ({ name: title, note, segments: [{ kind: "cache", bytes: bytes[place] ?? 0 }] }))));
    table.show(() =>
      tableOf({
        caption: `One sequence of ${exact(length)} tokens: the size, and below it the exact bytes`,
        head: ["Way", "At the full length", "At half of it", "Peak within a step", "In the host's memory", "Used by"],
        numbers: [1, 2, 3, 4],
        rows: found.rows.map(({ title, bytes, held, peak, peak_is_bound, host, used_by }) => {
          const largest = html("span", {}, peak_is_bound ? "≥ " : "", sizeCell(peak[place]));
          return [title, sizeCell(bytes[place]), sizeCell(held[place]), largest, sizeCell(host[place]), used_by];
        }),
      }),
    );
  }
  return { element, update };
}
