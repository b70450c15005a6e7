// The command line that gives the numbers of a state.

import { dealtOver, engineOf, formatsOf, gridAt, modelOf } from "./data.js";
import { DIMENSIONS } from "./state.js";

/**
 * A word as a POSIX shell reads it back.
 * @param {string} word
 */
export function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/**
 * The name of the model and the options that all its command lines have, but for dimensions that are set by hand. Python has quoted them.
 * @param {Model} model
 * @param {State} state
 */
function ownWords(model, state) {
  const byHand = state.hand === null ? [] : DIMENSIONS.map((name) => `--${name.replace("_", "-")}`);
  const words = model.words.filter((word, place, all) => !byHand.includes(word) && !byHand.includes(all[place - 1] ?? ""));
  return model.argument === null ? words : [model.argument, ...words];
}

/**
 * @param {Payload} payload
 * @param {State} state
 * @returns {string}
 */
export function commandOf(payload, state) {
  const model = modelOf(payload, state);
  const engine = engineOf(payload, state.engine);
  const formats = formatsOf(model, state.engine, state.hand !== null);
  /** @type {string[]} */
  const words = [];
  const option = (/** @type {string} */ name, /** @type {string | number} */ value) => words.push(`--${name}`, String(value));
  option("engine", state.engine);
  for (const [name, value] of Object.entries(engine.options)) option("engine-option", `${name}=${value}`);
  option("gpu", state.gpu);
  const dp = state.count / (state.tp * state.pp);
  const sizes = engine.splits_layers ? { pp: state.count } : { tp: state.tp, pp: state.pp, dp, ep: dealtOver(payload, state) };
  for (const [name, size] of Object.entries(sizes)) {
    if (size > 1) option(name, size);
  }
  option("seq", state.seq);
  if (state.batch > 1) option("users", state.batch);
  // The first of each is what the command takes without a word.
  const [[dtype = ""], [weights = ""]] = [formats.dtypes, formats.weights];
  if (state.dtype !== dtype) option("dtype", state.dtype);
  if (state.weights !== weights) option("weights", state.weights);
  if (state.policy !== null) option("policy", state.policy);
  if (state.hand !== null) for (const name of DIMENSIONS) option(name.replace("_", "-"), state.hand[name]);
  return ["kvplan plan", ...ownWords(model, state), ...words.map(quoted)].join(" ");
}

/**
 * What starts the engine of a state. A policy and other dimensions have none here.
 * @param {Payload} payload
 * @param {(model: Model) => Payload} poolsOf
 * @param {State} state
 * @returns {{ command: string, remark: string } | null}
 */
export function startOf(payload, poolsOf, state) {
  const model = modelOf(payload, state);
  const starts = model.starts[state.engine];
  if (!starts || state.policy !== null || state.hand !== null) return null;
  const { dtypes, weights } = formatsOf(model, state.engine, false);
  const layout = payload.layouts.findIndex(({ count, tp, pp }) => count === state.count && tp === state.tp && pp === state.pp);
  const weight = weights.indexOf(state.weights);
  const places = [dtypes.indexOf(state.dtype), weight, layout];
  const { texts } = poolsOf(model);
  const text = texts[places.includes(-1) ? -1 : gridAt(starts.commands, places) ?? -1];
  if (text === undefined) return null;
  /** @type {Record<string, string | number>} */
  const holes = { "{model}": quoted(model.id), "{seq}": state.seq, "{batch}": state.batch, "{cells}": state.seq * state.batch };
  const command = text.replace(/\{(model|seq|batch|cells)\}/g, (hole) => String(holes[hole]));
  return { command, remark: texts[starts.remarks[weight] ?? -1] ?? "" };
}
