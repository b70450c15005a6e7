// What a plan says of a state, from its form: the solvers of hwcalc/planner/solve.py, and the answer with the names of a plan's JSON.

import { holds, leftBytes, neededBytes, partsBytes, plus, stateBytes, times, totalBytes, verdictOf } from "./forms.js";

/** No search goes beyond this many tokens or sequences. */
export const UNLIMITED = 2 ** 40;

/**
 * The largest number from 0 to `bound` for which `good` is true; every number below a good one is good.
 * @param {(number: number) => boolean} good
 * @param {number} bound
 */
function lastYes(good, bound) {
  let low = 0;
  let high = bound + 1;
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    if (good(middle)) low = middle;
    else high = middle;
  }
  return low;
}

/**
 * The most tokens that each of the sequences can have, up to the model's own length or the planned one if that is more.
 * @param {Form} form
 * @param {number} tokens
 * @param {number} sequences
 * @param {End} end
 * @param {number} atMost
 */
export function longest(form, tokens, sequences, end, atMost = UNLIMITED) {
  const bound = form.max_seq === null ? UNLIMITED : Math.max(form.max_seq, tokens);
  return lastYes((length) => holds(form, length, sequences, end), Math.min(bound, atMost));
}

/**
 * The most sequences of this length at once.
 * @param {Form} form
 * @param {number} tokens
 * @param {End} end
 * @param {number} atMost
 */
export function most(form, tokens, end, atMost = UNLIMITED) {
  return lastYes((sequences) => holds(form, tokens, sequences, end), Math.min(form.most_sequences ?? UNLIMITED, atMost));
}

/**
 * The bytes alone, without the solvers: for a curve of many lengths.
 * @param {Form} form
 * @param {number} tokens
 * @param {number} sequences
 * @returns {Sizes}
 */
export function sizesAt(form, tokens, sequences) {
  const part = (/** @type {Part["section"]} */ section) => partsBytes(form, tokens, sequences, "expected", section);
  const [weights, activations, overhead] = [part("weights"), part("activations"), part("overhead")];
  const cache = neededBytes(form, tokens, sequences);
  return {
    cache,
    state: stateBytes(form, tokens, sequences),
    total_cache: totalBytes(form, tokens, sequences),
    weights,
    activations,
    overhead,
    total: plus(weights, activations, overhead, cache),
    usable: form.usable.expected,
    // A curve of many lengths does not ask for it.
    get verdict() {
      return verdictOf(form, tokens, sequences);
    },
  };
}

/**
 * The answer for so many sequences of so many tokens, with the names of a plan's JSON; its limits where they can be searched for.
 * @param {Form} form
 * @param {number} tokens
 * @param {number} sequences
 * @param {boolean} search
 * @returns {Answer}
 */
export function answerAt(form, tokens, sequences, search = true) {
  const { cache, total_cache, weights, activations, overhead, total, verdict } = sizesAt(form, tokens, sequences);
  const left = (/** @type {End} */ end) => leftBytes(form, tokens, sequences, end);
  const needed = (/** @type {End} */ end) => plus(form.usable.expected, -left(end), cache);
  const expectedSeq = search ? longest(form, tokens, sequences, "expected") : null;
  const expectedBatch = search ? most(form, tokens, "expected") : null;
  const low = needed("high");
  return {
    cache: { total_bytes: total_cache, per_gpu_bytes: cache },
    per_gpu: { weights, cache, activations, overhead, total },
    fit: {
      usable_bytes: form.usable.expected,
      needed_bytes: needed("expected"),
      needed_low_bytes: low < 0 ? 0 : low,
      needed_high_bytes: needed("low"),
      headroom_bytes: plus(left("expected"), times(-1, cache)),
      verdict,
      max_seq: expectedSeq === null ? null : longest(form, tokens, sequences, "low", expectedSeq),
      expected_max_seq: expectedSeq,
      max_batch: expectedBatch === null ? null : most(form, tokens, "low", expectedBatch),
      expected_max_batch: expectedBatch,
    },
  };
}
