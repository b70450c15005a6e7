// The bound on the speed of a decode step, from its form: hwcalc/planner/speed_work.py in another language.

import { formatsOf, gridAt, modelOf } from "./data.js";
import { exact } from "./tables.js";

/**
 * What terms add up to.
 * @param {Reads["cache"]} terms
 * @param {number} tokens
 */
function sumOf(terms, tokens) {
  let sum = 0;
  for (const [each, most, stairs] of terms) {
    let positions = 0;
    for (const [times, per, add, limit] of stairs) positions += times * Math.min(limit ?? Infinity, Math.floor((tokens + add) / per));
    sum += each * Math.min(most ?? Infinity, positions);
  }
  return sum;
}

/**
 * Tokens a second of all sequences that no engine exceeds, and by what they are bound; null where that is not known.
 * @param {Payload} payload The one in whose pools the model's places lie.
 * @param {State} state
 * @returns {{ tokens: number, by: string } | null}
 */
export function speedOf(payload, state) {
  const model = modelOf(payload, state);
  const speeds = model.speeds[state.engine];
  if (!speeds || state.policy !== null || state.hand !== null) return null;
  const { dtypes, weights } = formatsOf(model, state.engine, false);
  const layout = payload.layouts.findIndex(({ count, tp, pp }) => count === state.count && tp === state.tp && pp === state.pp);
  const gpu = payload.gpus.find(({ id }) => id === state.gpu);
  const reads = payload.reads[gridAt(speeds.reads, [dtypes.indexOf(state.dtype), layout]) ?? -1];
  const shares = payload.shares[speeds.shares[weights.indexOf(state.weights)] ?? -1];
  const ranks = speeds.ranks[layout] ?? null;
  if (gpu === undefined || reads === undefined || shares === undefined || ranks === null) return null;
  const [tp, pp, dp, experts] = ranks;
  const replicas = Math.min(dp, state.batch);
  const each = Math.max(1, state.batch / replicas / pp);
  const routed = each * (experts > tp ? replicas : 1);
  let read = each * sumOf(reads.cache, state.seq);
  /** @type {Map<number, number>} */
  const operations = new Map([[reads.rate, each * sumOf(reads.attention, state.seq)]]);
  for (const [use, bytes, copies, active, flops, rate] of shares) {
    const tokens = use === "chosen" ? routed : each;
    const sharing = use === "chosen" ? experts : tp;
    const share = use === "chosen" ? 1 - (1 - active / copies) ** (Math.max(1, tokens) ** payload.experts_power) : use === "row" ? Math.min(1, tokens / copies) : 1;
    read += (bytes * share) / sharing;
    operations.set(rate, (operations.get(rate) ?? 0) + (tokens * flops) / sharing);
  }
  const times = [...operations].flatMap(([rate, count]) => {
    const known = gpu.rates[rate] ?? null;
    return known === null ? [] : [count / known];
  });
  const computing = times.length > 0 ? times.reduce((sum, time) => sum + time, 0) : null;
  const reading = gpu.bandwidth === null ? null : read / gpu.bandwidth;
  const seconds = Math.max(reading ?? 0, computing ?? 0);
  if (seconds === 0) return null;
  return { tokens: state.batch / seconds, by: computing === null || (reading !== null && reading >= computing) ? "memory bandwidth" : "compute" };
}

/** @param {{ tokens: number, by: string }} speed @param {number} batch */
export function speedWords({ tokens, by }, batch) {
  const rounded = (/** @type {number} */ number) => (number >= 100 ? exact(Math.round(number)) : number.toLocaleString("en-US", { maximumSignificantDigits: 3 }));
  return `at most ${rounded(tokens)} tokens a second${batch > 1 ? ` of all, ${rounded(tokens / batch)} for each` : ""}, bound by ${by}.`;
}
