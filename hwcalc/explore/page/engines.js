// The same work by every engine of the page.

import { barLegend, barRows, differences, panel, verdictBadge } from "./bars.js";
import { details, exact, html, sizeCell, tableOf } from "./tables.js";

/** How the number of the cache is known. @type {Record<string, string>} */
const DEFINITIONS = { exact: "The cache is exact, by the formulas.", engine: "The cache is what the engine stores, by its own rule." };

/** @param {Page} page @returns {Section} */
export function enginesSection(page) {
  const lead = html("p", { class: "lead" });
  const chart = html("div", {});
  const table = details("Table: engines, part by part");
  const legend = barLegend([["weights", "weights"], ["cache", "cache"], ["activations", "activations"], ["overhead", "overhead"]]);
  const element = panel("engines", "Engines side by side", lead, chart, legend, html("p", { class: "note" }, "The upright line is what may be used of the GPU."), table.element);

  /** @param {State} state */
  function update(state) {
    const found = page.payload.engines.map((engine) => {
      const own = page.changed(state, { engine: engine.name });
      return { engine, own, sizes: page.sizes(own) };
    });
    lead.textContent = `The same work, ${exact(state.seq)} tokens × ${exact(state.batch)}, by each engine, on the fullest GPU. Weights, activations and overhead are expected values of estimates.`;
    const rows = found.map(({ engine, own, sizes }) => {
      const name = `${engine.label} ${engine.version}`.trim();
      const chosen = engine.name === state.engine;
      if ("refused" in sizes) return { name, segments: [], value: "", refused: sizes.refused, chosen };
      const other = differences(state, own);
      const segments = [
        { kind: "weights", bytes: sizes.weights },
        { kind: "cache", bytes: Number(sizes.cache) },
        { kind: "activations", bytes: sizes.activations },
        { kind: "overhead", bytes: sizes.overhead },
      ];
      const note = [DEFINITIONS[engine.definition] ?? engine.definition, other.length > 0 ? `With ${other.join(", ")}.` : ""].filter(Boolean).join(" ");
      return { name, segments, badge: verdictBadge(page, sizes.verdict), limit: sizes.usable, chosen, note };
    });
    chart.replaceChildren(barRows(rows));
    table.show(() =>
      tableOf({
        caption: "Expected bytes on the fullest GPU by each engine, and the cache on all GPUs",
        head: ["Engine", "Weights", "Cache", "Activations", "Overhead", "Total", "May be used", "Cache on all GPUs", "Cache is", "Verdict"],
        rows: found.map(({ engine, sizes }) => {
          if ("refused" in sizes) return [engine.label, ...Array.from({ length: 8 }, () => "-"), sizes.refused];
          const { weights, cache, activations, overhead, total, usable, total_cache, verdict } = sizes;
          return [engine.label, ...[weights, cache, activations, overhead, total, usable, total_cache].map(sizeCell), engine.definition, page.payload.verdicts[verdict].words];
        }),
        numbers: [1, 2, 3, 4, 5, 6, 7],
      }),
    );
  }
  return { element, update };
}
