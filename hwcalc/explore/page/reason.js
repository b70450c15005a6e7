// Why something does not fit, in the words of the command line.

import { partsBytes } from "./forms.js";
import { exact, human } from "./tables.js";

/**
 * Why it does not fit, as a plan's `fit.message` says it but for the messages of engines themselves; empty if it fits.
 * @param {Answer} answer
 * @param {Form} form
 * @param {State} state
 */
export function reasonOf({ fit }, form, { seq, batch, policy }) {
  if (fit.verdict === "fits" || fit.verdict === "probably") return "";
  if (form.most_sequences !== null && fit.expected_max_batch === form.most_sequences) {
    return `${form.limited_by} lets ${exact(form.most_sequences)} sequences run at once, not ${exact(batch)}`;
  }
  const short = -Number(fit.headroom_bytes);
  if (short <= 0 && form.host !== null && policy === null) {
    const host = partsBytes(form, seq, batch, "expected", "host");
    return `${human(host)} would lie in host memory: more than the host has, or is likely to have`;
  }
  const count = batch === 1 ? "it does" : `${exact(batch)} sequences do`;
  return short > 0 ? `${count} not fit: ${human(short)} too much on the fullest GPU` : `${count} not fit at once`;
}
