// The same work on every GPU of the page, or on the nodes that the user named while one of them is chosen.

import { barLegend, barRows, panel, verdictBadge } from "./bars.js";
import { dollars, engineOf, priceOf } from "./data.js";
import { details, exact, html, sizeCell, tableOf } from "./tables.js";

/** @param {Page} page @returns {Section} */
export function gpusSection(page) {
  const lead = html("p", { class: "lead" });
  const chart = html("div", {});
  const table = details("Table: GPUs, part by part");
  const legend = barLegend([["weights", "weights"], ["cache", "cache"], ["activations", "activations"], ["overhead", "overhead"]]);
  const element = panel("gpus", "GPUs side by side", lead, chart, legend, html("p", { class: "note" }, "The upright line is what may be used of each GPU. Press a name to choose it."), table.element);

  /** @param {State} state */
  function update(state) {
    const { gpus, nodes } = page.payload;
    const named = nodes.some(({ gpu, count }) => gpu === state.gpu && count === state.count);
    const shown = named ? nodes : gpus.map(({ id }) => ({ gpu: id, count: state.count }));
    const found = shown.flatMap(({ gpu: id, count }) =>
      gpus
        .filter((gpu) => gpu.id === id)
        .map((gpu) => {
          const own = page.changed(state, { gpu: id, count });
          return { gpu, count, called: named ? `${exact(count)} × ${gpu.name}` : gpu.name, own, sizes: page.sizes(own) };
        }),
    );
    const engine = engineOf(page.payload, state.engine);
    lead.textContent = `The same work, ${exact(state.seq)} tokens × ${exact(state.batch)}, by ${`${engine.label} ${engine.version}`.trim()} on ${named ? "each of the named nodes" : `${state.count} of each GPU`}${found.some(({ count }) => count > 1) ? ": bytes of the fullest GPU" : ""}.`;
    chart.replaceChildren(
      barRows(
        found.map(({ gpu, count, called, own, sizes }) => {
          const name = html("button", { type: "button", class: "plain-button", name: "gpu-row", value: gpu.id, onclick: () => page.set({ gpu: gpu.id, count }) }, called);
          const chosen = gpu.id === state.gpu && count === state.count;
          if ("refused" in sizes) return { name, segments: [], value: "", refused: sizes.refused, chosen };
          const segments = [
            { kind: "weights", bytes: sizes.weights },
            { kind: "cache", bytes: Number(sizes.cache) },
            { kind: "activations", bytes: sizes.activations },
            { kind: "overhead", bytes: sizes.overhead },
          ];
          const other = own.tp === state.tp ? {} : { note: `With tp ${own.tp}.` };
          return { name, segments, badge: verdictBadge(page, sizes.verdict), limit: sizes.usable, chosen, ...other };
        }),
      ),
    );
    table.show(() =>
      tableOf({
        caption: "Expected bytes on the fullest GPU",
        head: ["GPU", "Weights", "Cache", "Activations", "Overhead", "Total", "May be used", "An hour", "Verdict"],
        numbers: [1, 2, 3, 4, 5, 6, 7],
        rows: found.map(({ gpu, count, called, sizes }) => {
          const price = priceOf(page.payload, gpu.id, count);
          const hour = price === null ? "-" : dollars(price.usd);
          if ("refused" in sizes) return [called, ...Array.from({ length: 6 }, () => "-"), hour, sizes.refused];
          const { weights, cache, activations, overhead, total, usable, verdict } = sizes;
          return [called, ...[weights, cache, activations, overhead, total, usable].map(sizeCell), hour, page.payload.verdicts[verdict].words];
        }),
      }),
    );
  }
  return { element, update };
}
