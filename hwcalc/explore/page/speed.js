// The speed of a decode step: hwcalc/planner/speed_work.py and step_time.py in another language.

import { formatsOf, gridAt, HOURS_PER_MONTH, modelOf, priceOf } from "./data.js";
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
 * Tokens a second of all sequences: the bound that no engine exceeds, what it follows from, and what is expected; null where there is no bound.
 * @param {Payload} payload The one in whose pools the model's places lie.
 * @param {State} state
 * @returns {Speed | null}
 */
export function speedOf(payload, state) {
  const model = modelOf(payload, state);
  const speeds = model.speeds[state.engine];
  if (!speeds || state.policy !== null || state.hand !== null) return null;
  const { dtypes, weights } = formatsOf(model, state.engine, false);
  const layout = payload.layouts.findIndex(({ count, tp, pp }) => count === state.count && tp === state.tp && pp === state.pp);
  const place = payload.gpus.findIndex(({ id }) => id === state.gpu);
  const gpu = payload.gpus[place];
  const reads = payload.reads[gridAt(speeds.reads, [dtypes.indexOf(state.dtype), layout]) ?? -1];
  const shares = payload.weights[speeds.weights[weights.indexOf(state.weights)] ?? -1]?.flatMap((number) => payload.shares[number] ?? []);
  const ranks = speeds.ranks[layout] ?? null;
  if (gpu === undefined || reads === undefined || shares === undefined || ranks === null) return null;
  const [tp, pp, dp, experts] = ranks;
  const replicas = Math.min(dp, state.batch);
  const each = Math.max(1, state.batch / replicas / pp);
  const step = { each, cache: each * sumOf(reads.cache, state.seq), attention: each * sumOf(reads.attention, state.seq), rate: reads.rate };
  const routed = each * (experts > tp ? replicas : 1);
  let read = step.cache;
  /** @type {Map<number, number>} */
  const operations = new Map([[step.rate, step.attention]]);
  for (const share of shares) {
    const { use, bytes, flops, rate } = share;
    const sharing = use === "chosen" ? experts : tp;
    read += (bytes * touched(share, each, routed, payload.experts_power)) / sharing;
    operations.set(rate, (operations.get(rate) ?? 0) + ((use === "chosen" ? routed : each) * flops) / sharing);
  }
  const times = [...operations].flatMap(([rate, count]) => {
    const known = gpu.rates[rate] ?? null;
    return known === null ? [] : [count / known];
  });
  const computing = times.length > 0 ? times.reduce((sum, time) => sum + time, 0) : null;
  const reading = gpu.bandwidth === null ? null : read / gpu.bandwidth;
  const seconds = Math.max(reading ?? 0, computing ?? 0);
  if (seconds === 0) return null;
  const reached = payload.classes[speeds.classes[place] ?? -1];
  const time = reached && ranged(expectedSeconds(step, shares, speeds, ranks, gpu, reached), seconds, reached.range, payload.most_reached);
  return {
    tokens: state.batch / seconds,
    by: computing === null || (reading !== null && reading >= computing) ? "memory bandwidth" : "compute",
    expected: time ? { tokens: state.batch / time.expected, low: state.batch / time.longest, high: state.batch / time.shortest } : null,
  };
}

/**
 * The share of some weights that a step reads, of those of all ranks.
 * @param {Share} share @param {number} each Tokens of the step. @param {number} routed Tokens that choose among the experts. @param {number} power
 */
function touched({ use, copies, active }, each, routed, power) {
  if (use === "chosen") return 1 - (1 - active / copies) ** (Math.max(1, routed) ** power);
  return use === "row" ? Math.min(1, each / copies) : 1;
}

/**
 * The share of all experts that the rank reads which has most of the whole ones in use.
 * @param {number} used @param {number} copies @param {number} ranks @param {number} deviations
 */
function fullestShare(used, copies, ranks, deviations) {
  const held = copies / ranks;
  const mean = used * held;
  return Math.min(mean + deviations * Math.sqrt(mean * (1 - used)), held) / copies;
}

/**
 * The seconds of a step: the sum of its terms, each at the share of the GPU's rate that engines of the class reach.
 * @param {{ each: number, cache: number, attention: number, rate: number }} step
 * @param {Share[]} shares @param {Speeds} speeds @param {[tp: number, pp: number, dp: number, experts: number, deviations: number]} ranks @param {Gpu} gpu @param {SpeedClass} reached
 */
function expectedSeconds(step, shares, speeds, [tp, pp, dp, experts, deviations], gpu, reached) {
  const { each } = step;
  const bandwidth = gpu.bandwidth === null ? Infinity : Math.min(gpu.bandwidth * reached.bandwidth_share, gpu.seen ?? Infinity);
  const routes = shares.some(({ use }) => use === "chosen");
  const replicas = routes && experts > tp ? dp : 1;
  let seconds = (reached.cache_times * step.cache) / bandwidth;
  let reading = 0;
  let unpacking = 0;
  for (const share of shares) {
    const { use, bytes, flops, rate, bf16, parameters, multiplied, packed } = share;
    const chosen = use === "chosen";
    const touching = touched(share, each, each * replicas, reached.expert_power);
    const used = chosen && deviations > 0 ? fullestShare(touching, share.copies, experts, deviations) : touching / (chosen ? experts : tp);
    reading += (bytes * used) / (bandwidth * (chosen ? reached.expert_bandwidth : 1));
    const unpacked = reached.unpack_shares[packed];
    if (unpacked !== undefined && gpu.vectors !== null && use !== "row") unpacking += (2 * parameters * used) / (gpu.vectors * unpacked * reached.integer_products);
    const peak = gpu.rates[(bf16 ? reached.bf16_rate : null) ?? reached.rate ?? rate] ?? null;
    if (peak === null || use === "row") continue;
    const count = (each * flops) / (chosen ? experts / replicas : tp) + (chosen ? reached.expert_rows * 2 * parameters * used : 0);
    const part = (reached.compute_shares[multiplied] ?? 1) * (packed === "superblocks" ? reached.superblock_share : 1) * (chosen ? reached.expert_compute : 1);
    const scaling = gpu.vectors === null || packed === "none" ? 0 : reached.scale_instructions / (32 * gpu.vectors);
    seconds += (count * (1 / peak + scaling)) / part;
  }
  // A kernel unpacks some weights while it reads others: what is longer counts nearly alone.
  seconds += Math.hypot(reading, unpacking);
  const attention = (reached.vector_attention ? gpu.vectors : gpu.rates[step.rate]) ?? null;
  if (attention !== null) seconds += step.attention / (attention * reached.attention_share);
  const layer = routes ? reached.expert_layer_us : reached.layer_us;
  seconds += 1e-6 * (reached.step_us + speeds.launched * layer + (pp - 1) * reached.stage_us + reached.sequence_us * each);
  const exchanging = Math.max(tp, Math.min(experts, tp * replicas));
  if (exchanging === 1) return seconds;
  // 16-bit hidden states: of a replica after attention, and of all that share experts after these.
  const exchanged = (tp - 1) / tp + (replicas * (exchanging - 1)) / exchanging;
  const sent = 4 * exchanged * each * speeds.hidden_size;
  const moving = gpu.link === null ? 0 : sent / (gpu.link * reached.link_share);
  return seconds + speeds.layers * (1e-6 * (reached.exchange_us + reached.peer_us * (exchanging - 1)) + moving);
}

/**
 * An expected time with its ends, none of which is shorter than the bound.
 * @param {number} expected @param {number} bound @param {[low: number, high: number]} range Factors of the speed. @param {number} most
 */
function ranged(expected, bound, [low, high], most) {
  const shortest = Math.max(expected / high, Math.min(expected, bound / most), bound);
  return { expected: Math.max(expected, bound), shortest, longest: Math.max(expected / low, bound) };
}

/**
 * The speed and the cost of a state with the names of a plan's JSON; null where they are not known, or where it does not fit.
 * @param {Page} page @param {State} state @param {Answer} answer
 */
export function ratesOf(page, state, { fit }) {
  const speed = page.payload.verdicts[fit.verdict].fits ? page.speed(state) : null;
  const price = priceOf(page.payload, state.gpu, state.count);
  const { use } = page.payload;
  const million = (/** @type {number | undefined} */ tokens) => (price === null || tokens === undefined ? null : (price.usd / 3600 / tokens / use) * 1e6);
  const { tokens, low, high } = speed?.expected ?? {};
  return {
    speed: speed && { decode_tokens_per_s_bound: speed.tokens, decode_tokens_per_s_expected: tokens, decode_tokens_per_s_low: low, decode_tokens_per_s_high: high, bound_by: speed.by },
    cost: price && {
      usd_per_hour: price.usd,
      usd_per_month: price.usd * HOURS_PER_MONTH,
      usd_per_million_tokens: million(tokens),
      usd_per_million_tokens_low: million(high),
      usd_per_million_tokens_high: million(low),
      use,
      price: price.of,
    },
  };
}

/** @param {Speed} speed @param {number} batch */
export function speedWords({ tokens, by, expected }, batch) {
  const rounded = (/** @type {number} */ number) => (number >= 100 ? exact(Math.round(number)) : number.toLocaleString("en-US", { maximumSignificantDigits: 3 }));
  const told = (/** @type {number} */ number, range = "") => `${rounded(number)} tokens a second${batch > 1 ? " of all" : ""}${range}${batch > 1 ? `, ${rounded(number / batch)} for each` : ""}`;
  if (expected === null) return `at most ${told(tokens)}, bound by ${by}.`;
  return `${told(expected.tokens, ` (${rounded(expected.low)} to ${rounded(expected.high)})`)}; at most ${rounded(tokens)}, bound by ${by}.`;
}
