// What would make it fit: states that differ from the chosen one in a single thing, each of which is answered before it is offered.

import { verdictBadge } from "./bars.js";
import { formatsOf, modelOf } from "./data.js";
import { html, shortTokens } from "./tables.js";

/** Verdicts, the better first. @type {Verdict[]} */
const ORDER = ["fits", "probably", "probably_not", "no"];
/** So many bytes stand for one GB of a data sheet: good enough to sort by. @param {Gpu} gpu */
const memoryOf = (gpu) => Number(gpu.memory);

/** @param {Page} page @param {State} state @returns {Verdict} */
function verdictAt(page, state) {
  const sizes = page.sizes(state);
  return "refused" in sizes ? "no" : sizes.verdict;
}

/** The state on other GPUs. @param {Page} page @param {State} state @param {{ gpu: string, count: number }} node */
const on = (page, state, { gpu, count }) => page.valid({ ...state, gpu, count, tp: undefined, pp: undefined });

/**
 * GPUs and how many of them, the least memory in all first; of as much, the fewest, and those of which the least may be used.
 * @param {Page} page @param {State} state @param {number[]} counts
 */
function nodes(page, state, counts) {
  const all = counts.flatMap((count) => page.payload.gpus.map((gpu) => ({ gpu: gpu.id, name: gpu.name, count, memory: count * memoryOf(gpu) })));
  /** @param {{ gpu: string, count: number }} node */
  const usable = (node) => {
    const sizes = page.sizes(on(page, state, node));
    return "refused" in sizes ? 0 : Number(sizes.usable);
  };
  return all.sort((one, other) => one.memory - other.memory || one.count - other.count || usable(one) - usable(other));
}

/**
 * The first of these that surely holds a state; null if none does.
 * @param {Page} page @param {State} state @param {{ gpu: string, name: string, count: number }[]} all
 */
function holding(page, state, all) {
  return all.find((node) => verdictAt(page, on(page, state, node)) === "fits") ?? null;
}

/**
 * The least GPUs of the page that surely hold a state, one if possible; null if none do.
 * @param {Page} page @param {State} state @param {number[]} counts
 */
export const smallest = (page, state, counts) => holding(page, state, nodes(page, state, counts));

/** The first of the nodes that the user named which surely holds a state; null if none does. @param {Page} page @param {State} state */
export function firstNamed(page, state) {
  const { gpus, nodes } = page.payload;
  return holding(page, state, nodes.map(({ gpu, count }) => ({ gpu, count, name: gpus.find(({ id }) => id === gpu)?.name ?? gpu })));
}

/** @param {Payload} payload */
export const countsOf = (payload) => [...new Set(payload.layouts.map((layout) => layout.count))];

/**
 * Changes that make a state fit, or fit better.
 * @param {Page} page @param {State} state
 * @returns {{ words: string, state: State, verdict: Verdict }[]}
 */
function mends(page, state) {
  const now = verdictAt(page, state);
  if (now === "fits") return [];
  const model = modelOf(page.payload, state);
  const formats = formatsOf(model, state.engine, state.hand !== null);
  /** @type {Map<string, { words: string, state: State, verdict: Verdict }>} */
  const found = new Map();
  /** @param {string} kind @param {string} words @param {State} other */
  const tried = (kind, words, other) => {
    const verdict = verdictAt(page, other);
    const best = found.get(kind);
    if (ORDER.indexOf(verdict) < ORDER.indexOf(best?.verdict ?? now)) found.set(kind, { words, state: other, verdict });
  };
  const wide = (/** @type {Partial<State>} */ change) => page.changed(state, change);
  // The first format that is enough, as the engine lists them.
  for (const dtype of formats.dtypes) if (dtype !== state.dtype) tried("dtype", `${dtype} cache`, wide({ dtype }));
  for (const weights of formats.weights) if (weights !== state.weights) tried("weights", `${weights} weights`, wide({ weights }));
  if (!found.has("dtype") && !found.has("weights")) {
    for (const dtype of formats.dtypes) {
      for (const weights of formats.weights) {
        if (dtype !== state.dtype && weights !== state.weights) tried("both", `${dtype} cache and ${weights} weights`, wide({ dtype, weights }));
      }
    }
  }
  for (const count of countsOf(page.payload)) {
    if (count > state.count) tried("count", `${count} GPUs`, page.valid({ ...state, count, tp: undefined, pp: undefined }));
  }
  const least = smallest(page, { ...state, policy: null }, [state.count]) ?? smallest(page, { ...state, policy: null }, countsOf(page.payload));
  if (least !== null) {
    const other = on(page, state, least);
    if (least.gpu === state.gpu && least.count === found.get("count")?.state.count) found.delete("count");
    tried("gpu", `${least.count > 1 ? `${least.count} × ` : ""}${least.name}, the smallest that fits`, other);
  }
  const answer = page.answer(state);
  if (!("refused" in answer) && state.policy === null) {
    const { least: shortest } = page.payload.lengths;
    const length = Math.floor((answer.fit.max_seq ?? 0) / shortest) * shortest;
    if (length >= shortest && length < state.seq) tried("seq", `${shortTokens(length)} tokens`, wide({ seq: length }));
  }
  return [...found.values()];
}

/**
 * Buttons that make it fit.
 * @param {Page} page
 */
export function mendButtons(page) {
  const buttons = html("span", { class: "buttons" });
  const element = html("div", { class: "mends", role: "group", "aria-label": "Make it fit" }, html("span", { class: "note" }, "Make it fit:"), buttons);
  return {
    element,
    /** @param {State} state */
    show(state) {
      const all = mends(page, state);
      element.hidden = all.length === 0;
      buttons.replaceChildren(
        ...all.map(({ words, state: other, verdict }) => html("button", { type: "button", name: "mend", onclick: () => page.set(other) }, words, " ", verdictBadge(page, verdict))),
      );
    },
  };
}
