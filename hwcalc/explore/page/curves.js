// What the chart of lengths shows: for each model its bytes at many lengths, and where it no longer fits. No drawing here.

import { leftBytes, neededBytes } from "./forms.js";
import { longest, sizesAt } from "./solve.js";

const STEPS_PER_DOUBLING = 8;

/**
 * Lengths in even steps of their logarithm, with those where something happens: the ends of windows and of models, the chosen length.
 * @param {Payload["lengths"]} lengths @param {number[]} wanted
 */
function gridOf({ least, most }, wanted) {
  const steps = Math.ceil(Math.log2(most / least) * STEPS_PER_DOUBLING);
  const even = Array.from({ length: steps + 1 }, (_, step) => Math.min(most, Math.round(least * 2 ** (step / STEPS_PER_DOUBLING))));
  return [...new Set([...even, ...wanted])].filter((length) => length >= least && length <= most).sort((one, other) => one - other);
}

/** Where a stair of a term ends: from there on its window is full. @param {Form} form */
function knees(form) {
  return form.total.flatMap((term) => term.stairs.flat().flatMap(([, per, add, most]) => (most === Infinity ? [] : [most * per - add])));
}

/**
 * @param {Page} page @param {State} state @param {Model} model
 * @returns {{ model: Model, form: Form, state: State, end: number, fits: number } | { model: Model, refused: string }}
 */
function described(page, state, model) {
  const own = page.changed(state, { model: model.id, hand: model.id === state.model ? state.hand : null });
  const form = page.form(own);
  if ("refused" in form) return { model, refused: form.refused };
  const end = Math.min(page.payload.lengths.most, Math.max(form.max_seq ?? page.payload.lengths.most, model.id === state.model ? state.seq : 0));
  return { model, form, state: own, end, fits: longest(form, end, own.batch, "expected") };
}

/**
 * Every model's bytes on the fullest GPU at every length of one grid.
 * @param {Page} page @param {State} state @param {"cache" | "total"} shown
 * @returns {Curves}
 */
export function curvesOf(page, state, shown) {
  const models = page.payload.models.map((model) => described(page, state, model));
  const known = models.flatMap((one) => ("form" in one ? [one] : []));
  const ends = known.flatMap(({ form, end, fits }) => [end, fits, ...knees(form)]);
  const lengths = gridOf(page.payload.lengths, [state.seq, ...ends]);
  const lines = known.map(({ model, form, state: own, end, fits }) => {
    const bytes = (/** @type {number} */ length) => {
      if (length > end || length < form.least_tokens) return null;
      const value = shown === "cache" ? Number(neededBytes(form, length, own.batch)) : Number(sizesAt(form, length, own.batch).total);
      return value > 0 ? value : null;
    };
    return { model, place: page.payload.models.indexOf(model), values: lengths.map(bytes), bytes, end, fits };
  });
  const current = known.find(({ model }) => model.id === state.model);
  const room = (/** @type {number} */ length) => {
    if (current === undefined) return null;
    const left = shown === "total" ? current.form.usable.expected : leftBytes(current.form, length, current.state.batch, "expected");
    return left > 0 ? left : null;
  };
  return { lengths, lines, room: lengths.map(room), refused: models.flatMap((one) => ("refused" in one ? [one] : [])) };
}
