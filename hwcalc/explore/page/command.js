// The command line that gives the numbers of a state.

import { engineOf, formatsOf, modelOf } from "./data.js";
import { DIMENSIONS } from "./state.js";

/**
 * A word as a POSIX shell reads it back.
 * @param {string} word
 */
export function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/**
 * The options that every command line of a model has, but for dimensions that are set by hand.
 * @param {Model} model
 * @param {State} state
 */
function ownWords(model, state) {
  const byHand = state.hand === null ? [] : DIMENSIONS.map((name) => `--${name.replace("_", "-")}`);
  return model.words.filter((word, place, words) => !byHand.includes(word) && !byHand.includes(words[place - 1] ?? ""));
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
  // The bare equation has no name, only words.
  const words = ["kvplan", "plan", ...(model.argument === null ? [] : [model.argument]), ...ownWords(model, state)];
  const option = (/** @type {string} */ name, /** @type {string | number} */ value) => words.push(`--${name}`, String(value));
  option("engine", state.engine);
  for (const [name, value] of Object.entries(engine.options)) option("engine-option", `${name}=${value}`);
  option("gpu", state.gpu);
  const sizes = engine.splits_layers ? { pp: state.count } : { tp: state.tp, dp: state.count / state.tp };
  for (const [name, size] of Object.entries(sizes)) {
    if (size > 1) option(name, size);
  }
  option("seq", state.seq);
  if (state.batch > 1) option("batch", state.batch);
  // The first of each is what the command takes without a word.
  const [[dtype = ""], [weights = ""]] = [formats.dtypes, formats.weights];
  if (state.dtype !== dtype) option("dtype", state.dtype);
  if (state.weights !== weights) option("weights", state.weights);
  if (state.policy !== null) option("policy", state.policy);
  if (state.hand !== null) for (const name of DIMENSIONS) option(name.replace("_", "-"), state.hand[name]);
  return words.map(quoted).join(" ");
}
