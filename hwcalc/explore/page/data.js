// From a state to its form: the places that the grids of a model give in the pools of the payload, with dimensions by hand put in.

import { substitute } from "./forms.js";

/**
 * A payload as Python had it, before it wrote long lists of records as rows, and lists that stand in several models once.
 * @param {Record<string, any>} payload
 * @returns {any}
 */
export function unpacked({ lists, ...payload }) {
  /** @type {unknown[][]} */
  const known = [];
  /** @type {(piece: any) => any} */
  const told = (piece) => {
    if (piece === null || typeof piece !== "object") return piece;
    if (Array.isArray(piece)) return piece.map(told);
    return known[piece.at] ?? Object.fromEntries(Object.entries(piece).map(([name, value]) => [name, told(value)]));
  };
  for (const list of lists) known.push(told(list));
  const records = (/** @type {{ names: string[][], rows: [number, ...unknown[]][] }} */ { names, rows }) =>
    rows.map(([kind, ...values]) => Object.fromEntries((names[kind] ?? []).map((name, place) => [name, values[place]])));
  return Object.fromEntries(Object.entries(payload).map(([name, value]) => [name, name === "models" ? told(value) : value?.rows && value.names ? records(value) : value]));
}

/**
 * What a grid has at a place on each of its axes.
 * @param {Grid} grid
 * @param {number[]} places
 * @returns {number | null}
 */
export function gridAt(grid, places) {
  let found = grid;
  for (const place of places) {
    if (!Array.isArray(found)) break;
    found = found[found.length === 1 ? 0 : place] ?? null;
  }
  return Array.isArray(found) ? null : found;
}

/**
 * The model of a state.
 * @param {Payload} payload
 * @param {State} state
 * @returns {Model}
 */
export function modelOf(payload, state) {
  const model = payload.models.find((model) => model.id === state.model);
  if (model === undefined) throw new Error(`no model ${state.model} in this page`);
  return model;
}

/**
 * An engine by its name.
 * @param {Payload} payload
 * @param {string} name
 * @returns {Engine}
 */
export function engineOf(payload, name) {
  const engine = payload.engines.find((one) => one.name === name);
  if (engine === undefined) throw new Error(`no engine ${name} in this page`);
  return engine;
}

/**
 * How many GPUs may share each layer. For an engine that splits by layers it makes no difference: one entry stands for all.
 * @param {Payload} payload
 * @param {string} engine
 * @param {number} count
 */
export function sharesOf(payload, engine, count) {
  const tps = [...new Set(payload.layouts.filter((layout) => layout.count === count).map((layout) => layout.tp))];
  return engineOf(payload, engine).splits_layers ? tps.slice(0, 1) : tps;
}

/**
 * How many runs of layers may follow each other, beside replicas.
 * @param {Payload} payload
 * @param {Pick<State, "engine" | "count" | "tp">} state
 */
export function stagesOf(payload, { engine, count, tp }) {
  const pps = payload.layouts.filter((layout) => layout.count === count && layout.tp === tp).map((layout) => layout.pp);
  return engineOf(payload, engine).splits_layers ? pps.slice(0, 1) : pps;
}

/**
 * How many GPUs share each layer, so that each has a share of its heads.
 * @param {Payload} payload
 * @param {Pick<State, "engine" | "tp">} state
 */
export function ranksOf(payload, { engine, tp }) {
  return engineOf(payload, engine).splits_layers ? 1 : tp;
}

/**
 * What an engine has for a model, by its own dimensions or by those set by hand.
 * @param {Model} model
 * @param {string} engine
 * @param {boolean} byHand
 * @returns {Runs | Refused | null}
 */
export function runsOf(model, engine, byHand) {
  const engines = byHand && isHand(model.hand) ? model.hand.engines : model.engines;
  return Object.hasOwn(engines, engine) ? engines[engine] ?? null : null;
}

/**
 * The formats of cache and weights, the defaults first; none where the engine refuses the model.
 * @param {Model} model
 * @param {string} engine
 * @param {boolean} byHand
 * @returns {Pick<Runs, "dtypes" | "weights">}
 */
export function formatsOf(model, engine, byHand) {
  const runs = runsOf(model, engine, byHand);
  return runs !== null && "curve" in runs ? runs : { dtypes: [], weights: [] };
}

/**
 * The formats that a command line has without a word.
 * @param {Model} model
 * @param {string} engine
 */
export function defaultFormats(model, engine) {
  const { dtypes, weights } = formatsOf(model, engine, false);
  return { dtype: dtypes[0] ?? "", weights: weights[0] ?? "" };
}

/**
 * Answers under a policy, if one is chosen.
 * @param {Payload} payload
 * @param {State} state
 */
export function policyRowsOf(payload, state) {
  return state.policy === null ? null : modelOf(payload, state).policies;
}

/**
 * Over how many GPUs whole experts are dealt out, by the rule of hwcalc/planner/layouts.py: over all where replicas share them; 1 if they are not.
 * @param {Payload} payload
 * @param {State} state
 */
export function dealtOver(payload, state) {
  const runs = runsOf(modelOf(payload, state), state.engine, state.hand !== null);
  const dp = state.count / (state.tp * state.pp);
  return runs !== null && "curve" in runs && runs.deals_experts && dp > 1 ? state.tp * dp : 1;
}

/**
 * The most sequences that an engine takes. More than fit are no matter: that is a verdict.
 * @param {Form} form
 */
export function mostBatch(form) {
  return form.refuses_more ? form.most_sequences ?? Infinity : Infinity;
}

/**
 * @param {Model["hand"]} hand
 * @returns {hand is Hand}
 */
export function isHand(hand) {
  return typeof hand === "object" && hand !== null;
}

/**
 * The numbers of a slider: its steps, and the model's own value.
 * @param {Hand["dimensions"][Dimension]} range
 */
export function stepsOf({ value, least, most, step }) {
  const steps = Array.from({ length: Math.floor((most - least) / step) + 1 }, (_, place) => least + place * step);
  return [...new Set([...steps, value])].sort((first, second) => first - second);
}

/**
 * The numbers of key/value heads that go with so many heads: each rank has whole groups of them.
 * @param {Hand} hand
 * @param {number} heads
 * @param {number} tp
 */
export function keyValueHeads(hand, heads, tp) {
  return stepsOf(hand.dimensions.kv_heads).filter((number) => heads % number === 0 && number % tp === 0);
}

/**
 * Dimensions as one rank has them: at least one head.
 * @param {Record<Dimension, number> | null} hand
 * @param {number} tp
 */
function rankDimensions(hand, tp) {
  if (hand === null) return null;
  const share = (/** @type {number} */ heads) => Math.max(1, Math.ceil(heads / tp));
  return { ...hand, heads: share(hand.heads), kv_heads: share(hand.kv_heads) };
}

/**
 * The forms of a payload's states. Each is taken out of the pools once.
 * @param {Payload} payload
 * @param {(model: Model) => Payload} poolsOf The pools in which the places of a model lie.
 * @returns {(state: State) => Form | NoAnswer}
 */
export function formsOf(payload, poolsOf = () => payload) {
  /** @type {Map<string, Form | NoAnswer>} */
  const known = new Map();
  return (state) => {
    const { model, engine, gpu, count, tp, pp, dtype, weights, hand } = state;
    const key = JSON.stringify([model, engine, gpu, count, tp, pp, dtype, weights, hand]);
    let form = known.get(key);
    if (form === undefined) {
      const described = modelOf(payload, state);
      form = taken(poolsOf(described), described, state);
      // Dimensions by hand have no end of combinations.
      if (known.size > 5000) known.clear();
      known.set(key, form);
    }
    return form;
  };
}

/**
 * @param {Payload} payload
 * @param {Model} model
 * @param {State} state
 * @returns {Form | NoAnswer}
 */
function taken(payload, model, state) {
  const { hand } = state;
  const ranks = ranksOf(payload, state);
  if (hand !== null && isHand(model.hand) && !keyValueHeads(model.hand, hand.heads, ranks).includes(hand.kv_heads)) {
    return { refused: model.hand.rule };
  }
  const runs = runsOf(model, state.engine, hand !== null);
  if (runs === null) return { refused: `This page has no numbers of ${state.engine} for this model.` };
  const layout = payload.layouts.findIndex((layout) => layout.count === state.count && layout.tp === state.tp && layout.pp === state.pp);
  const gpu = payload.gpus.findIndex((gpu) => gpu.id === state.gpu);
  if (!("curve" in runs)) return { refused: textAt(payload, gridAt(runs.refused, [0, 0, layout, gpu]) ?? -1) };
  const places = [runs.dtypes.indexOf(state.dtype), runs.weights.indexOf(state.weights), layout, gpu];
  if (places.some((place) => place < 0)) return { refused: "This page does not have this combination." };
  const why = gridAt(runs.refused, places);
  if (why !== null) return { refused: textAt(payload, why) };
  const curve = payload.curves[gridAt(runs.curve, places) ?? -1];
  const rest = payload.rests[gridAt(runs.rest, places) ?? -1];
  if (curve === undefined || rest === undefined) return { refused: "This page does not have this combination." };
  const parts = runs.parts.flatMap((grid) => payload.parts[gridAt(grid, places) ?? -1] ?? []);
  return formOf(payload, curve, rest, parts, rankDimensions(hand, ranks), model.max_seq);
}

/**
 * @param {Payload} payload
 * @param {number} place
 */
function textAt(payload, place) {
  return payload.texts[place] ?? "";
}

/**
 * @param {Payload} payload
 * @param {Curve} curve
 * @param {Rest} rest
 * @param {Part[]} parts
 * @param {Record<Dimension, number> | null} dimensions
 * @param {number | null} maxSeq
 * @returns {Form}
 */
function formOf(payload, curve, rest, parts, dimensions, maxSeq) {
  const term = (/** @type {number} */ place) => plainTerm(payload, place, dimensions);
  const count = (/** @type {Count} */ value) => substitute(value, dimensions);
  const plain = parts.map((part) => plainPart(payload, part, term, dimensions));
  /** @type {(values: Rest["usable"]) => Record<End, number>} */
  const ends = ([low, expected, high]) => ({ low, expected, high });
  return {
    gpus: curve.gpus.map((terms) => terms.map(term)),
    total: curve.total.map(term),
    once_bytes: count(curve.once_bytes ?? 0),
    total_once_bytes: count(curve.total_once_bytes ?? 0),
    block_bytes: count(curve.block_bytes ?? 1),
    null_blocks: curve.null_blocks ?? 0,
    crests: curve.crests ?? [],
    parts: plain,
    usable: ends(rest.usable),
    total_bytes: rest.total_bytes,
    most_sequences: rest.most_sequences,
    limited_by: rest.limited_by,
    refuses_more: rest.refuses_more,
    dp: rest.dp,
    least_tokens: rest.least_tokens,
    most_tokens: rest.most_tokens,
    host: rest.host ? { room: ends(rest.host.room), shared: rest.host.shared } : null,
    max_seq: maxSeq,
    open: (rest.open ?? []).map((place) => textAt(payload, place)),
  };
}

/**
 * @param {Payload} payload
 * @param {number} place
 * @param {Record<Dimension, number> | null} dimensions
 * @returns {PlainTerm}
 */
export function plainTerm(payload, place, dimensions) {
  const term = payload.terms[place];
  const shape = payload.shapes[term?.shape ?? -1];
  if (term === undefined || shape === undefined) throw new Error(`the page has no term ${place}`);
  return {
    kind: textAt(payload, shape.kind),
    layers: textAt(payload, shape.layers),
    rule: textAt(payload, shape.rule),
    count: substitute(term.count, dimensions),
    unit_bytes: substitute(term.unit_bytes, dimensions),
    unit_tokens: shape.unit_tokens ?? 1,
    stairs: shape.stairs.map((sum) => sum.map((stair) => plainStair(stair, dimensions))),
  };
}

/**
 * @param {Stair} stair
 * @param {Record<Dimension, number> | null} dimensions
 * @returns {PlainStair}
 */
function plainStair([each, per, add, most], dimensions) {
  return [substitute(each, dimensions), per, add, most ?? Infinity];
}

/**
 * @param {Payload} payload
 * @param {Part} part
 * @param {(place: number) => PlainTerm} term
 * @param {Record<Dimension, number> | null} dimensions
 * @returns {PlainPart}
 */
function plainPart(payload, part, term, dimensions) {
  const count = (/** @type {Count} */ value) => substitute(value, dimensions);
  /** @type {(amount: Amount) => PlainAmount} */
  const plain = (amount) => {
    if (typeof amount === "number" || Array.isArray(amount) || "max" in amount) return count(amount);
    if ("pass" in amount) {
      const [elementBytes, width, chunk, logits, logitBytes] = amount.pass;
      return { pass: [elementBytes, count(width), chunk, count(logits), logitBytes] };
    }
    if ("largest" in amount) return { largest: amount.largest.map(term) };
    if ("gpus" in amount) return { gpus: amount.gpus.flatMap(([alike, each]) => Array.from({ length: alike }, () => plain(each))) };
    if ("early" in amount) return { early: { ...amount.early, rule: plain(amount.early.rule) } };
    if ("measured" in amount) return { measured: { ...amount.measured, rule: plain(amount.measured.rule) } };
    const { chunk, up, moments } = amount.fullest;
    /** @type {Fullest["moments"]} */
    const plainMoments = moments.map(([share, place]) => [
      share,
      (payload.sums[place] ?? []).map(([bytes, factors, stairs]) => [count(bytes), factors, stairs.map((stair) => plainStair(stair, dimensions))]),
    ]);
    return { fullest: { chunk, up, moments: plainMoments } };
  };
  const expected = plain(part.expected);
  return {
    name: part.name,
    section: part.section,
    low: part.low === undefined ? expected : plain(part.low),
    expected,
    high: part.high === undefined ? expected : plain(part.high),
  };
}

export const HOURS_PER_MONTH = 730;

/**
 * What so many of a GPU cost an hour, and the words for what that is the price of; null where no price with a date is known.
 * @param {Payload} payload
 * @param {string} name
 * @param {number} count
 * @returns {{ usd: number, of: string } | null}
 */
export function priceOf(payload, name, count) {
  const [usd, of] = payload.gpus.find(({ id }) => id === name)?.prices[count] ?? [null, ""];
  return usd === null ? null : { usd, of };
}

/** Dollars as the command line writes them: whole ones from a thousand on, else cents, and three digits of less than a dollar. @param {number} usd */
export function dollars(usd) {
  if (usd > 0 && usd < 1) {
    const text = usd.toFixed(2 - Math.floor(Math.log10(usd)));
    return `$${text.slice(0, 4)}${text.slice(4).replace(/0+$/, "")}`;
  }
  const digits = usd >= 1000 ? 0 : 2;
  return `$${usd.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
}
