// Policies that keep less of a cache, or read less of it.

import { columnAt } from "./answer.js";
import { barLegend, barRows, panel, verdictBadge } from "./bars.js";
import { defaultFormats, engineOf, modelOf } from "./data.js";
import { nearest } from "./state.js";
import { lengthWords } from "./strategies.js";
import { bytesCells, details, exact, html, human, sequencesWords, tableOf } from "./tables.js";

/**
 * What a policy needs at a point, or why the engine has none.
 * @param {PolicyRow} row @param {string} engine @param {number} place @param {string[]} texts
 * @returns {{ bytes: number, activations: number, needed: number, verdict: Verdict } | { refused: string }}
 */
function policyAt({ engines }, engine, place, texts) {
  const answers = engines[engine];
  if (answers === undefined) return { refused: `This page has no numbers of ${engine} for it.` };
  if (typeof answers === "number") return { refused: texts[answers] ?? "" };
  const refused = columnAt(answers.refused, place);
  const bytes = columnAt(answers.per_gpu_bytes, place);
  const verdict = columnAt(answers.verdict, place);
  const needed = columnAt(answers.needed_bytes, place);
  const activations = columnAt(answers.activations, place);
  if (typeof bytes === "number" && typeof activations === "number" && typeof needed === "number" && verdict) return { bytes, activations, needed, verdict };
  return { refused: texts[refused ?? -1] ?? "No number at this point." };
}

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
    const place = found.lengths.indexOf(seq) * found.batches.length + found.batches.indexOf(batch);
    const { texts } = page.pools(model);
    const engine = engineOf(page.payload, state.engine).label;
    const all = page.sizes(page.valid({ model: state.model, engine: state.engine, gpu: found.gpu, count: 1, tp: 1, seq, batch, ...defaultFormats(model, state.engine) }));
    // A verdict is about one GPU: beside the choice of another it would be read as that of the chosen one.
    const here = state.gpu === found.gpu;
    const nameOf = (/** @type {string} */ gpu) => page.payload.gpus.find(({ id }) => id === gpu)?.name ?? gpu;
    const verdictOn = (/** @type {Verdict} */ verdict) => (here ? { badge: verdictBadge(page, verdict) } : {});
    const rows = found.rows.map((row) => ({ row, at: policyAt(row, state.engine, place, texts) }));
    const many = sequencesWords(batch);
    lead.textContent = `The cache of ${many} of ${lengthWords(seq, state.seq)} by ${engine} on one ${nameOf(found.gpu)}, in the default formats, under each policy. Exact at sampled points. ${here ? "Choose a policy above to plan with it." : `Not on the chosen ${nameOf(state.gpu)}: for that one this page has no verdicts under a policy, and its command line has. A policy that is chosen above takes ${nameOf(found.gpu)}.`}`;
    const keeps = "refused" in all ? [] : [{ name: "every token is kept", segments: [{ kind: "cache", bytes: Number(all.cache) }], ...verdictOn(all.verdict), chosen: state.policy === null }];
    const bars = rows.flatMap(({ row, at }) => {
      if ("refused" in at) return [];
      // What the policy takes to score tokens stands beside the cache: it may be more than it saves.
      const scores = "refused" in all ? 0 : Math.max(0, at.activations - all.activations);
      const more = "refused" in all ? 0 : at.needed - Number(all.total);
      const loses = more > 0 ? `, ${human(more)} more than with every token kept` : "";
      const note = `${row.policy}: ${row.memory}; ${human(at.needed)} with weights and all the rest${loses}`;
      const segments = [{ kind: "cache", bytes: at.bytes }, ...(scores > 0 ? [{ kind: "activations", bytes: scores, title: `beside the cache ${human(scores)}` }] : [])];
      const value = scores > 0 ? `${human(at.bytes)} + ${human(scores)} beside it` : human(at.bytes);
      return [{ name: row.title, chosen: row.policy === state.policy, segments, value, ...verdictOn(at.verdict), note }];
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
        rows: rows.map(({ row, at }) => [row.policy, row.memory, ...("refused" in at ? ["-", "-", "-", at.refused] : [...bytesCells(at.bytes), exact(at.needed), here ? page.payload.verdicts[at.verdict].words : "-"])]),
      }),
    );
  }
  return { element, update };
}
