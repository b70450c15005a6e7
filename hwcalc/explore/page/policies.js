// Policies that keep less of a cache, or read less of it.

import { barLegend, barRows, panel, verdictBadge } from "./bars.js";
import { defaultFormats, engineOf, modelOf } from "./data.js";
import { nearest } from "./state.js";
import { lengthWords } from "./strategies.js";
import { bytesCells, details, exact, html, human, sequencesWords, tableOf } from "./tables.js";

/** @param {Page} page @returns {Section} */
export function policiesSection(page) {
  const lead = html("p", { class: "lead" });
  const chart = html("div", {});
  const refusals = html("details", { class: "behind" });
  const table = details("Table: policies");
  const element = panel("policies", "Policies of the cache", lead, chart, barLegend([["cache", "cache"], ["activations", "what a policy takes beside the cache"]]), refusals, table.element);

  /** @param {State} state */
  function update(state) {
    const model = modelOf(page.payload, state);
    const found = model.policies;
    element.hidden = found === null || found.rows.length === 0;
    if (found === null) return;
    const [seq, batch] = [nearest(found.lengths, state.seq), nearest(found.batches, state.batch)];
    const engine = engineOf(page.payload, state.engine).label;
    const point = { ...state, count: 1, tp: 1, pp: 1, seq, batch, hand: null, ...defaultFormats(model, state.engine) };
    const all = page.sizes({ ...point, policy: null });
    const gpu = page.payload.gpus.find(({ id }) => id === state.gpu)?.name ?? state.gpu;
    const rows = found.rows.map((row) => ({ row, at: page.sizes({ ...point, policy: row.policy }) }));
    const many = sequencesWords(batch);
    const formats = state.count > 1 || state.dtype !== point.dtype || state.weights !== point.weights ? "one" : "the chosen";
    lead.textContent = `The cache of ${many} of ${lengthWords(seq, state.seq)} by ${engine} on ${formats} ${gpu}, in the default formats, under each policy. Exact at sampled points. Choose a policy above to plan with it.`;
    const keeps = "refused" in all ? [] : [{ name: "every token is kept", segments: [{ kind: "cache", bytes: Number(all.cache) }], badge: verdictBadge(page, all.verdict), chosen: state.policy === null }];
    const bars = rows.flatMap(({ row, at }) => {
      if ("refused" in at) return [];
      // What the policy takes to score tokens stands beside the cache: it may be more than it saves.
      const scores = "refused" in all ? 0 : Math.max(0, at.activations - all.activations);
      const more = "refused" in all ? 0 : Number(at.total) - Number(all.total);
      const loses = more > 0 ? `, ${human(more)} more than with every token kept` : "";
      const note = `${row.policy}: ${row.memory}; ${human(at.total)} with weights and all the rest${loses}`;
      const segments = [{ kind: "cache", bytes: Number(at.cache) }, ...(scores > 0 ? [{ kind: "activations", bytes: scores, title: `beside the cache ${human(scores)}` }] : [])];
      const value = scores > 0 ? `${human(at.cache)} + ${human(scores)} beside it` : human(at.cache);
      return [{ name: row.title, chosen: row.policy === state.policy, segments, value, badge: verdictBadge(page, at.verdict), note }];
    });
    if (bars.length === 0) lead.textContent = `${engine} has none of the policies that act on this model.`;
    chart.replaceChildren(barRows(bars.length === 0 ? [] : [...keeps, ...bars]));
    const lacking = rows.flatMap(({ row, at }) => ("refused" in at ? [html("li", {}, html("b", {}, row.title), `: ${at.refused}`)] : []));
    refusals.hidden = lacking.length === 0;
    refusals.replaceChildren(html("summary", {}, `${exact(lacking.length)} policies that ${engine} does not have, and why`), html("ul", { class: "refusals" }, ...lacking));
    table.show(() =>
      tableOf({
        caption: `Cache on the GPU under each policy, ${many} of ${exact(seq)} tokens`,
        head: ["Policy", "Memory", "Cache", "Bytes", "With all the rest", "Verdict"],
        numbers: [2, 3, 4],
        rows: rows.map(({ row, at }) => [row.policy, row.memory, ...("refused" in at ? ["-", "-", "-", at.refused] : [...bytesCells(at.cache), exact(at.total), page.payload.verdicts[at.verdict].words])]),
      }),
    );
  }
  return { element, update };
}
