// Every model of the page on the chosen GPUs: whether it fits, how many at once, and for how much.

import { differences, panel, verdictBadge } from "./bars.js";
import { dollars, engineOf } from "./data.js";
import { ratesOf } from "./speed.js";
import { exact, html, tableOf } from "./tables.js";

const HEAD = ["Model", "Verdict", "At once", "An hour", "A month", "A million tokens", "With"];
const NUMBERS = [2, 3, 4, 5];

/** Dollars, with those at the slow end of the speed. @param {number | null} usd @param {number | null} high */
function rangeOf(usd, high) {
  return usd === null || high === null ? "-" : `${dollars(usd)} (${dollars(high)})`;
}

/** @param {Page} page @returns {Section} */
export function modelsSection(page) {
  const lead = html("p", { class: "lead" });
  const box = html("div", { class: "table-box", role: "region", "aria-label": "Models side by side", tabindex: 0 });
  const element = panel("each-model", "Models side by side", lead, box);

  /** @param {State} state @param {Model} model */
  function row(state, model) {
    const own = page.changed(state, { model: model.id });
    const answer = page.answer(own);
    const button = html("button", { type: "button", class: "plain-button", name: "model-row", value: model.id, onclick: () => page.set({ model: model.id }) }, model.id);
    const name = model.id === state.model ? html("b", {}, button) : button;
    if ("refused" in answer) return [name, html("span", { class: "refused" }, answer.refused), ...HEAD.slice(2).map(() => "-")];
    const { fit } = answer;
    const { cost } = ratesOf(page, own, answer);
    return [
      name,
      verdictBadge(page, fit.verdict),
      fit.max_batch === null ? "-" : exact(fit.max_batch),
      cost === null ? "-" : dollars(cost.usd_per_hour),
      cost === null ? "-" : dollars(cost.usd_per_month),
      cost === null ? "-" : rangeOf(cost.usd_per_million_tokens, cost.usd_per_million_tokens_high),
      differences(state, own).join(", "),
    ];
  }

  /** @param {State} state */
  function update(state) {
    const engine = engineOf(page.payload, state.engine);
    const gpu = page.payload.gpus.find(({ id }) => id === state.gpu)?.name ?? state.gpu;
    const use = `${Math.round(100 * page.payload.use)} % use`;
    lead.textContent = `${exact(state.batch)} × ${exact(state.seq)} tokens of each model, by ${`${engine.label} ${engine.version}`.trim()} on ${exact(state.count)} × ${gpu}. At once are the sequences of this length that surely fit; a million output tokens cost so much at the expected speed (and at the slow end of its range) and ${use}. Press a name to choose it.`;
    box.replaceChildren(tableOf({ caption: "Models on the chosen GPUs", head: HEAD, numbers: NUMBERS, rows: page.payload.models.map((model) => row(state, model)) }));
  }
  return { element, update };
}
