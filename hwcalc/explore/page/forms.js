// The evaluator of the normal form of a GPU's memory: hwcalc/engines/forms.py in another language. It knows no rule of any cache.
//
// Lengths and bytes of one sequence stay far below 2^53, where doubles are exact. Only products with the number of sequences, and sums of
// these, can go beyond: what is shown of them is formed by `times` and `plus`, which give a BigInt there. A comparison needs none: bytes
// beyond 2^53 are more than any GPU has, however they are rounded.

/** @type {Record<End, End>} The low end of what is left takes every part at its high end. */
const OTHER_END = { low: "high", expected: "expected", high: "low" };

/**
 * The product, exact.
 * @param {Bytes} first
 * @param {Bytes} second
 * @returns {Bytes}
 */
export function times(first, second) {
  const product = Number(first) * Number(second);
  return Number.isSafeInteger(product) ? product : BigInt(first) * BigInt(second);
}

/**
 * The sum, exact.
 * @param {...Bytes} numbers
 * @returns {Bytes}
 */
export function plus(...numbers) {
  let sum = 0;
  let exact = true;
  for (const number of numbers) {
    sum += Number(number);
    exact &&= typeof number === "number" && Number.isSafeInteger(sum);
  }
  if (exact) return sum;
  let whole = 0n;
  for (const number of numbers) whole += BigInt(number);
  return Number.isSafeInteger(Number(whole)) ? Number(whole) : whole;
}

/**
 * A count with the dimensions of a rank put in.
 * @param {Count} count
 * @param {Record<Dimension, number> | null} dimensions
 * @returns {number}
 */
export function substitute(count, dimensions) {
  if (typeof count === "number") return count;
  if (dimensions === null) throw new Error("a polynomial without dimensions");
  const value = (/** @type {Polynomial} */ polynomial) =>
    polynomial.reduce((sum, [coefficient, names]) => sum + names.reduce((product, name) => product * dimensions[name], coefficient), 0);
  return Array.isArray(count) ? value(count) : Math.max(...count.max.map(value));
}

/**
 * @param {PlainStair[]} stairs
 * @param {number} tokens
 */
function stairsAt(stairs, tokens) {
  let sum = 0;
  for (const [each, per, add, most] of stairs) {
    const steps = Math.floor((tokens + add) / per);
    sum += each * (steps < most ? steps : most);
  }
  return tokens > 0 ? sum : 0;
}

/**
 * Positions or blocks of one layer and one sequence: of several sums the largest.
 * @param {PlainTerm} term
 * @param {number} tokens
 */
export function unitsAt(term, tokens) {
  let largest = 0;
  for (const stairs of term.stairs) largest = Math.max(largest, stairsAt(stairs, tokens));
  return largest;
}

/**
 * Bytes of all layers of a term for one sequence.
 * @param {PlainTerm} term
 * @param {number} tokens
 */
export function termBytes(term, tokens) {
  return term.count * term.unit_bytes * unitsAt(term, tokens);
}

/**
 * Sequences of the fullest replica.
 * @param {Form} form
 * @param {number} sequences
 */
function replica(form, sequences) {
  return Math.ceil(sequences / form.dp);
}

/**
 * Bytes of one sequence on a GPU.
 * @param {Form} form
 * @param {number} gpu
 * @param {number} tokens
 */
function sequenceBytes(form, gpu, tokens) {
  let sum = 0;
  for (const term of form.gpus[gpu] ?? []) sum += termBytes(term, tokens);
  return sum;
}

/**
 * The place in `gpus` of the GPU of which the answer speaks: the first that needs most at the high end of the parts.
 * @param {Form} form
 * @param {number} tokens
 * @param {number} sequences
 */
function fullest(form, tokens, sequences) {
  if (form.gpus.length < 2) return 0;
  const own = replica(form, sequences);
  const needed = form.gpus.map((_, gpu) => own * sequenceBytes(form, gpu, tokens) + partsOn(form, gpu, tokens, sequences, "high"));
  return needed.indexOf(Math.max(...needed));
}

/**
 * Bytes of the cache on the fullest GPU.
 * @param {Form} form
 * @param {number} tokens
 * @param {number} sequences
 */
export function neededBytes(form, tokens, sequences) {
  const each = sequenceBytes(form, fullest(form, tokens, sequences), tokens);
  return plus(times(replica(form, sequences), each), form.once_bytes);
}

/**
 * What of the cache on the fullest GPU does not grow with length.
 * @param {Form} form
 * @param {number} tokens
 * @param {number} sequences
 */
export function stateBytes(form, tokens, sequences) {
  let sum = 0;
  for (const term of form.gpus[fullest(form, tokens, sequences)] ?? []) {
    const constant = term.stairs.every((stairs) => stairs.every(([, per, , most]) => per === 1 && most <= 1));
    if (constant) sum += termBytes(term, tokens);
  }
  return times(replica(form, sequences), sum);
}

/**
 * Bytes of the cache on all GPUs.
 * @param {Form} form
 * @param {number} tokens
 * @param {number} sequences
 */
export function totalBytes(form, tokens, sequences) {
  const each = form.total.reduce((sum, term) => sum + termBytes(term, tokens), 0);
  return plus(times(sequences, each), form.total_once_bytes);
}

/**
 * Tokens of one forward pass: all, or at most `chunk` of them, but one for each sequence.
 * @param {number} tokens
 * @param {number} sequences
 * @param {number | null} chunk
 */
function passedTokens(tokens, sequences, chunk) {
  const all = sequences * tokens;
  return chunk === null ? all : Math.min(all, Math.max(sequences, chunk));
}

/**
 * One amount on one of the GPUs, for so many sequences of a replica.
 * @param {PlainAmount} amount
 * @param {number} tokens
 * @param {number} sequences
 * @param {number} gpu
 * @returns {number}
 */
function amountAt(amount, tokens, sequences, gpu) {
  if (typeof amount === "number") return amount;
  if ("pass" in amount) {
    const [elementBytes, width, chunk, logits, logitBytes] = amount.pass;
    return Math.trunc(elementBytes * passedTokens(tokens, sequences, chunk) * width + sequences * logits * logitBytes);
  }
  if ("largest" in amount) return sequences * amount.largest.reduce((most, term) => Math.max(most, termBytes(term, tokens)), 0);
  if ("fullest" in amount) return fullestMoment(amount.fullest, tokens, sequences);
  if ("gpus" in amount) return amountAt(amount.gpus[gpu] ?? 0, tokens, sequences, gpu);
  if ("early" in amount) return amount.early.first[tokens - 1] ?? amountAt(amount.early.rule, tokens, sequences, gpu);
  const { rule, chunk, readings } = amount.measured;
  const passed = passedTokens(tokens, sequences, chunk);
  const reading = readings.find(([atOnce, rows]) => atOnce === passed && rows === sequences);
  return reading === undefined ? amountAt(rule, tokens, sequences, gpu) : reading[2];
}

/**
 * The fullest moment of a forward pass (hwcalc/engines/moments.py).
 * @param {Fullest} fullest
 * @param {number} tokens
 * @param {number} sequences
 */
function fullestMoment({ chunk, up, moments }, tokens, sequences) {
  const passed = chunk === null ? sequences * tokens : Math.min(sequences * tokens, chunk);
  const factors = { passed, sequences, each: Math.ceil(passed / sequences), alone: sequences === 1 ? 1 : 0 };
  let largest = -Infinity;
  for (const [share, products] of moments) {
    let sum = 0;
    for (const [bytes, names, stairs] of products) {
      let value = bytes * (stairs.length > 0 ? stairsAt(stairs, tokens) : 1);
      for (const name of names) value *= factors[name];
      sum += value;
    }
    largest = Math.max(largest, share * sum);
  }
  return up ? Math.ceil(largest) : Math.floor(largest);
}

/**
 * Bytes of the parts of a section on one of the GPUs, or of all parts but those on the host.
 * @param {Form} form
 * @param {number} gpu
 * @param {number} tokens
 * @param {number} sequences
 * @param {End} end
 * @param {Part["section"] | null} section
 */
function partsOn(form, gpu, tokens, sequences, end, section = null) {
  const own = replica(form, sequences);
  let sum = 0;
  for (const part of form.parts) {
    if (section === null ? part.section !== "host" : part.section === section) sum += amountAt(part[end], tokens, own, gpu);
  }
  return sum;
}

/**
 * Bytes of the parts of a section, or of all, on the fullest GPU at one end of their ranges.
 * @param {Form} form
 * @param {number} tokens
 * @param {number} sequences
 * @param {End} end
 * @param {Part["section"] | null} section
 */
export function partsBytes(form, tokens, sequences, end, section = null) {
  return partsOn(form, fullest(form, tokens, sequences), tokens, sequences, end, section);
}

/**
 * Bytes of one part on the fullest GPU.
 * @param {Form} form
 * @param {PlainPart} part
 * @param {number} tokens
 * @param {number} sequences
 * @param {End} end
 */
export function partBytes(form, part, tokens, sequences, end) {
  return amountAt(part[end], tokens, replica(form, sequences), fullest(form, tokens, sequences));
}

/**
 * Bytes that the fullest GPU has left for the cache.
 * @param {Form} form
 * @param {number} tokens
 * @param {number} sequences
 * @param {End} end
 */
export function leftBytes(form, tokens, sequences, end) {
  return form.usable[end] - partsBytes(form, tokens, sequences, OTHER_END[end]);
}

/**
 * Whether a GPU has room for its cache, and had it at the crests on the way.
 * @param {Form} form
 * @param {number} gpu
 * @param {number} tokens
 * @param {number} sequences
 * @param {End} end
 */
function heldOn(form, gpu, tokens, sequences, end) {
  const left = form.usable[end] - partsOn(form, gpu, tokens, sequences, OTHER_END[end]);
  if (!(left >= 0)) return false;
  const pool = (Math.floor(left / form.block_bytes) - form.null_blocks) * form.block_bytes;
  const own = replica(form, sequences);
  const held = (/** @type {number} */ length) => pool >= own * sequenceBytes(form, gpu, length) + form.once_bytes;
  for (const period of form.crests) {
    const crest = Math.floor(tokens / period) * period - 1;
    if (crest > 0 && !held(crest)) return false;
  }
  return held(tokens);
}

/**
 * Whether the host has the memory that is needed there.
 * @param {Form} form
 * @param {number} tokens
 * @param {number} sequences
 * @param {End} end
 */
function heldByHost(form, tokens, sequences, end) {
  if (form.host === null) return true;
  const other = OTHER_END[end];
  let needed = partsOn(form, 0, tokens, sequences, other, "host");
  if (form.host.shared) {
    const own = replica(form, sequences);
    for (const gpu of form.gpus.keys()) {
      needed += own * sequenceBytes(form, gpu, tokens) + form.once_bytes + partsOn(form, gpu, tokens, sequences, other);
    }
  }
  return needed <= form.host.room[end];
}

/**
 * Whether so many sequences of so many tokens fit at one end of the estimates.
 * @param {Form} form
 * @param {number} tokens
 * @param {number} sequences
 * @param {End} end
 */
export function holds(form, tokens, sequences, end = "expected") {
  if (form.most_sequences !== null && sequences > form.most_sequences) return false;
  if (form.most_tokens !== null && tokens > form.most_tokens) return false;
  return form.gpus.every((_, gpu) => heldOn(form, gpu, tokens, sequences, end)) && heldByHost(form, tokens, sequences, end);
}

/**
 * By the expected value, and whether both ends of the estimate agree.
 * @param {Form} form
 * @param {number} tokens
 * @param {number} sequences
 * @returns {Verdict}
 */
export function verdictOf(form, tokens, sequences) {
  const fits = holds(form, tokens, sequences);
  if (fits) return holds(form, tokens, sequences, "low") && holds(form, tokens, sequences, "high") ? "fits" : "probably";
  return holds(form, tokens, sequences, "high") || holds(form, tokens, sequences, "low") ? "probably_not" : "no";
}
