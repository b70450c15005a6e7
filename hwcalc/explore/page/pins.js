// States that are kept in sight to compare with the chosen one. They are gone when the page is closed; their links are not.

import { barRows, panel, verdictBadge } from "./bars.js";
import { engineOf } from "./data.js";
import { html, sequencesWords, exact } from "./tables.js";

const MOST_PINNED = 6;

/** A state in one line. @param {Payload} payload @param {State} state */
export function stateWords(payload, state) {
  const engine = engineOf(payload, state.engine);
  const gpu = payload.gpus.find((one) => one.id === state.gpu);
  const ranks = engine.splits_layers ? [] : [state.tp > 1 ? `tp ${state.tp}` : "", state.pp > 1 ? `pp ${state.pp}` : ""].filter(Boolean);
  const layout = ranks.length > 0 ? ` (${ranks.join(", ")})` : "";
  const words = [
    `${sequencesWords(state.batch)} of ${exact(state.seq)} tokens`,
    state.weights === "" ? "" : `weights ${state.weights}`,
    state.dtype === "" ? "" : `cache ${state.dtype}`,
    state.policy ?? "",
    state.hand === null ? "" : "dimensions by hand",
    `${engine.label} ${engine.version}`.trim(),
    `${state.count} × ${gpu?.name ?? state.gpu}${layout}`,
  ];
  return words.filter(Boolean).join(", ");
}

/** @param {Page} page @returns {Section} */
export function pinsSection(page) {
  /** @type {State[]} */
  let pinned = [];
  const lead = html("p", { class: "lead" }, "Pin the state, change something, and both stand here side by side.");
  const chart = html("div", {});
  const pin = html("button", { type: "button", id: "pin", onclick: () => keep(page.state()) }, "Pin this state");
  const element = panel("pins", "Compare states", lead, html("div", { class: "buttons" }, pin), chart);

  /** @param {State} state */
  function keep(state) {
    const same = (/** @type {State} */ other) => JSON.stringify(other) === JSON.stringify(state);
    if (!pinned.some(same)) pinned = [...pinned, state].slice(-MOST_PINNED);
    update(page.state());
  }

  /** @param {State} state */
  function row(state, chosen = false) {
    const sizes = page.sizes(state);
    const words = html("span", {}, html("b", {}, state.model), ` ${stateWords(page.payload, state)}`);
    const drop = () => {
      pinned = pinned.filter((other) => other !== state);
      update(page.state());
    };
    const buttons = chosen
      ? html("small", {}, "the chosen state")
      : html(
          "span",
          { class: "buttons" },
          html("button", { type: "button", class: "small", name: "pin-show", onclick: () => page.set(state) }, "Show"),
          html("button", { type: "button", class: "small", name: "pin-drop", onclick: drop }, "Remove"),
        );
    const name = html("span", {}, words, " ", buttons);
    if ("refused" in sizes) return { name, segments: [], value: "", refused: sizes.refused, chosen };
    const kinds = /** @type {const} */ (["weights", "cache", "activations", "overhead"]);
    const segments = kinds.map((kind) => ({ kind, bytes: Number(sizes[kind]) }));
    return { name, segments, limit: sizes.usable, badge: verdictBadge(page, sizes.verdict), chosen };
  }

  /** @param {State} state */
  function update(state) {
    chart.replaceChildren(...(pinned.length === 0 ? [] : [barRows([row(state, true), ...pinned.map((one) => row(one))])]));
  }
  return { element, update };
}
