// What is chosen, and the address fragment that keeps it: `#model=...&seq=32768`. A fragment may say anything; a state never does.

import { formatsOf, isHand, keyValueHeads, modelOf, mostBatch, policyRowsOf, ranksOf, sharesOf, stepsOf } from "./data.js";

/** @type {Dimension[]} */
export const DIMENSIONS = ["layers", "heads", "kv_heads", "head_dim"];
/** The length of a page that opens with a model which states none. */
const USUAL_TOKENS = 2 ** 15;
const TOKEN_UNITS = { "": 1, k: 2 ** 10, m: 2 ** 20 };

/**
 * A number of tokens as the command line takes it: 32768, 32k, 1M. NaN if it is none.
 * @param {string} text
 */
export function tokensOf(text) {
  const found = /^(\d{1,15}(?:\.\d{1,6})?)\s*([km]?)$/i.exec(text.trim().replaceAll(",", ""));
  if (found === null) return NaN;
  const unit = /** @type {keyof typeof TOKEN_UNITS} */ ((found[2] ?? "").toLowerCase());
  const tokens = Number(found[1]) * TOKEN_UNITS[unit];
  return Number.isSafeInteger(tokens) ? tokens : NaN;
}

/**
 * A whole number between two; a default for what is no number.
 * @param {unknown} value
 * @param {number} least
 * @param {number} most
 * @param {number} otherwise
 */
function whole(value, least, most, otherwise) {
  const number = typeof value === "string" ? tokensOf(value) : value;
  const clamped = typeof number === "number" && !Number.isNaN(number) ? Math.trunc(number) : otherwise;
  return Math.min(most, Math.max(least, clamped));
}

/**
 * The one of several numbers that is nearest, by their ratio.
 * @param {number[]} numbers
 * @param {number} wanted
 */
export function nearest(numbers, wanted) {
  const distance = (/** @type {number} */ number) => Math.abs(Math.log(number / wanted));
  return numbers.reduce((best, number) => (distance(number) < distance(best) ? number : best), numbers[0] ?? wanted);
}

/**
 * The one that is asked for if there is one, or else the default, or else the first.
 * @template Name
 * @param {Name[]} names
 * @param {unknown} wanted
 * @param {unknown} otherwise
 * @returns {Name}
 */
function chosen(names, wanted, otherwise) {
  const [first] = names;
  if (first === undefined) throw new Error("nothing to choose from");
  return names.find((name) => name === wanted) ?? names.find((name) => name === otherwise) ?? first;
}

/**
 * The nearest state that the page has. What is unknown or missing becomes its default, what is too large the largest.
 * @param {Payload} payload
 * @param {(state: State) => Form | NoAnswer} forms
 * @param {Partial<Record<keyof State, unknown>>} wanted
 * @returns {State}
 */
export function validState(payload, forms, wanted) {
  const { first, lengths, batches, layouts } = payload;
  const model = chosen(payload.models.map((model) => model.id), wanted.model, first.model);
  const engine = chosen(payload.engines.map((engine) => engine.name), wanted.engine, first.engine);
  const count = nearest(layouts.map((layout) => layout.count), whole(wanted.count, 1, 2 ** 20, first.count ?? 1));
  /** @type {State} */
  const state = {
    model,
    engine,
    gpu: chosen(payload.gpus.map((gpu) => gpu.id), wanted.gpu, first.gpu),
    count,
    tp: nearest(sharesOf(payload, engine, count), whole(wanted.tp, 1, count, first.tp ?? 1)),
    seq: 1,
    batch: whole(wanted.batch, 1, Math.max(...batches), first.batch ?? batches[0] ?? 1),
    dtype: "",
    weights: "",
    policy: null,
    hand: null,
  };
  const described = modelOf(payload, state);
  state.seq = whole(wanted.seq, lengths.least, lengths.most, first.seq ?? described.max_seq ?? USUAL_TOKENS);
  state.hand = validHand(described, wanted.hand, ranksOf(payload, state));
  const formats = formatsOf(described, engine, state.hand !== null);
  if (formats.dtypes.length > 0) {
    state.dtype = chosen(formats.dtypes, wanted.dtype, first.dtype);
    state.weights = chosen(formats.weights, wanted.weights, first.weights);
  }
  state.policy = described.policies?.rows.find((row) => row.policy === wanted.policy)?.policy ?? null;
  return snapped(payload, state, forms(state));
}

/**
 * The state at a point where its numbers are known.
 * @param {Payload} payload
 * @param {State} state
 * @param {Form | NoAnswer} form
 * @returns {State}
 */
function snapped(payload, state, form) {
  const rows = policyRowsOf(payload, state);
  if (rows !== null) return { ...state, seq: nearest(rows.lengths, state.seq), batch: nearest(rows.batches, state.batch) };
  if ("refused" in form) return state;
  const seq = Math.min(Math.max(state.seq, form.least_tokens), form.most_tokens ?? Infinity);
  return { ...state, seq, batch: Math.min(state.batch, mostBatch(form)) };
}

/**
 * @param {Model} model
 * @param {unknown} wanted
 * @param {number} ranks
 * @returns {State["hand"]}
 */
function validHand(model, wanted, ranks) {
  if (!isHand(model.hand) || typeof wanted !== "object" || wanted === null) return null;
  /** @type {Partial<Record<Dimension, unknown>>} */
  const given = wanted;
  const { dimensions } = model.hand;
  const value = (/** @type {Dimension} */ name) => {
    const { value, least, most } = dimensions[name];
    return nearest(stepsOf(dimensions[name]), whole(given[name], least, most, value));
  };
  const heads = value("heads");
  const kvHeads = value("kv_heads");
  const possible = keyValueHeads(model.hand, heads, ranks);
  return { layers: value("layers"), heads, kv_heads: nearest(possible, kvHeads), head_dim: value("head_dim") };
}

/**
 * @param {State} state
 * @returns {string}
 */
export function fragmentOf(state) {
  const { hand, ...rest } = state;
  const pairs = Object.entries({ ...rest, ...hand }).filter(([, value]) => value !== null && value !== "");
  return `#${new URLSearchParams(pairs.map(([name, value]) => [name, String(value)]))}`;
}

/**
 * What a fragment asks for, whether there is such a thing or not.
 * @param {string} fragment
 * @returns {Partial<Record<keyof State, unknown>>}
 */
export function wantedBy(fragment) {
  const words = Object.fromEntries(new URLSearchParams(fragment.replace(/^#/, "")));
  const hand = Object.fromEntries(DIMENSIONS.flatMap((name) => (name in words ? [[name, words[name]]] : [])));
  return { ...words, hand: Object.keys(hand).length > 0 ? hand : null };
}
