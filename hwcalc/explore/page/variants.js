// What if the same model had another kind of attention?

import { barRows, panel } from "./bars.js";
import { engineOf, gridAt, modelOf, plainTerm } from "./data.js";
import { termBytes } from "./forms.js";
import { bytesCells, details, exact, html, human, sequencesWords, tableOf } from "./tables.js";
import { term } from "./terms.js";

/** @param {Page} page @returns {Section} */
export function variantsSection(page) {
  const lead = html("p", { class: "lead" });
  const chart = html("div", {});
  const table = details("Table: other kinds of attention");
  const element = panel("variants", "What if: other kinds of attention", lead, chart, table.element);

  /** @param {Model} model @param {State} state */
  function rowsOf(model, { engine, gpu, seq, batch }) {
    const { curves, texts } = page.pools(model);
    const chosen = page.payload.gpus.findIndex((one) => one.id === gpu);
    /** @type {(variant: Variant) => { name: string, note: string, bytes: number | null, refused?: string }[]} */
    const rows = ({ name, note, engines }) => {
      const place = gridAt(engines[engine] ?? null, [chosen]);
      if (place === null) return [];
      const curve = curves[place];
      if (curve === undefined) return [{ name, note, bytes: null, refused: texts[-1 - place] ?? "" }];
      const each = curve.total.reduce((sum, term) => sum + termBytes(plainTerm(page.pools(model), term, null), seq), 0);
      return [{ name, note, bytes: batch * each + Number(curve.total_once_bytes ?? 0) }];
    };
    return model.variants.flatMap(rows);
  }

  /** @param {State} state */
  function update(state) {
    const rows = rowsOf(modelOf(page.payload, state), state);
    element.hidden = rows.length === 0;
    if (rows.length === 0) return;
    const largest = Math.max(1, ...rows.map((row) => row.bytes ?? 0));
    const many = sequencesWords(state.batch);
    lead.textContent = `The cache of ${many} of ${exact(state.seq)} tokens, if ${state.model} shared its key/value heads otherwise: by ${engineOf(page.payload, state.engine).label}, in its default format on one ${page.payload.gpus.find(({ id }) => id === state.gpu)?.name ?? state.gpu}.`;
    const refusals = new Set(rows.map((row) => row.refused));
    const [reason] = refusals;
    if (refusals.size === 1 && reason !== undefined) {
      chart.replaceChildren(html("p", { class: "refused" }, reason));
      table.element.hidden = true;
      return;
    }
    table.element.hidden = false;
    chart.replaceChildren(
      barRows(
        rows.map(({ name, note, bytes, ...rest }) => {
          if (bytes === null) return { name, note, segments: [], value: "", ...rest };
          return { name: term(name, name.replace(/-\d+$/, "")), note, chosen: note.includes("as published"), segments: [{ kind: "cache", bytes }], value: `${human(bytes)}, ${Math.round((100 * bytes) / largest)} %` };
        }),
      ),
    );
    table.show(() => tableOf({ caption: `Cache of ${many} of ${exact(state.seq)} tokens`, head: ["Attention", "Size", "Bytes"], rows: rows.map(({ name, bytes }) => [name, ...bytesCells(bytes)]) }));
  }
  return { element, update };
}
