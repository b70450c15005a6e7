// Why something does not fit, in the words of the command line.

import { engineOf, runsOf } from "./data.js";
import { partsBytes } from "./forms.js";
import { exact, human } from "./tables.js";

/**
 * What is to be known of a sequence that is longer than the model is made for, or than the engine takes without a word; empty for others.
 * @param {Payload} payload
 * @param {Model} model
 * @param {State} state
 */
export function beyondWords(payload, model, { engine, seq }) {
  const past = model.max_seq !== null && seq > model.max_seq ? `longer than the model's own maximum of ${exact(model.max_seq)} tokens` : "";
  const runs = runsOf(model, engine, false);
  const beyond = runs !== null && "curve" in runs ? runs.beyond ?? null : null;
  const needs = beyond !== null && seq > beyond.tokens ? `${engineOf(payload, engine).label} starts only with ${beyond.variables}` : "";
  return [past, needs].filter(Boolean).join(": ");
}

/**
 * Why it does not fit, as a plan's `fit.message` says it but for the messages of engines themselves; empty if it fits.
 * @param {Answer} answer
 * @param {Form} form
 * @param {State} state
 */
export function reasonOf({ fit }, form, { count: gpus, seq, batch, policy }) {
  if (fit.verdict === "fits" || fit.verdict === "probably") return "";
  if (form.most_sequences !== null && fit.expected_max_batch === form.most_sequences) {
    return `${form.limited_by} lets ${exact(form.most_sequences)} sequences run at once, not ${exact(batch)}: the others wait`;
  }
  const short = -Number(fit.headroom_bytes);
  if (short <= 0 && form.host !== null && policy === null) {
    const host = partsBytes(form, seq, batch, "expected", "host");
    return `${human(host)} would lie in host memory: more than the host has, or is likely to have`;
  }
  const count = batch === 1 ? "it does" : `${exact(batch)} sequences of ${exact(seq)} tokens do`;
  return short > 0 ? `${count} not fit: ${human(short)} too much on the ${gpus > 1 ? "fullest " : ""}GPU` : `${count} not fit at once`;
}
