// The verdict in the words of the command line, and why something does not fit.

import { hint } from "./hints.js";
import { partsBytes } from "./forms.js";
import { exact, html, human } from "./tables.js";

/** As `Verdict.text` has them (hwcalc/planner/verdict.py). */
export const VERDICT_WORDS = /** @type {const} */ ({ fits: "fits", probably: "probably fits", probably_not: "probably not", no: "does not fit" });

/** What a verdict says of the estimates. @type {Record<Verdict, string>} */
const VERDICT_MEANINGS = {
  fits: "It fits even if every estimate is at its high end.",
  probably: "It fits by the expected values, but not if the estimates are at their high end.",
  probably_not: "It does not fit by the expected values, but if the estimates are at their low end it does.",
  no: "It does not fit even if every estimate is at its low end.",
};

/** A verdict in the words of the command line, with a sign before it (page.css). @param {Verdict} verdict */
export function verdictBadge(verdict) {
  return html("span", { class: "verdict", "data-verdict": verdict }, VERDICT_WORDS[verdict]);
}

/** A badge that stays in the page while verdicts change, and explains them. */
export function explainedVerdict() {
  const element = hint(html("span", { class: "verdict" }), "");
  return {
    element,
    /** @param {Verdict} verdict */
    show(verdict) {
      element.setAttribute("data-verdict", verdict);
      element.textContent = VERDICT_WORDS[verdict];
      hint(element, VERDICT_MEANINGS[verdict]);
    },
  };
}

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
