// What is chosen, and the address fragment that keeps it: `#model=...&seq=32768`. A fragment may say anything; a state never does.

import { engineOf, formatsOf, isHand, keyValueHeads, modelOf, mostBatch, policyRowsOf, ranksOf, runsOf, sharesOf, stagesOf, stepsOf } from "./data.js";
import { holds } from "./forms.js";
import { most } from "./solve.js";
import { exact } from "./tables.js";

/** @type {Dimension[]} */
export const DIMENSIONS = ["layers", "heads", "kv_heads", "head_dim"];
/** @type {Record<Dimension, string>} */
export const DIMENSION_LABELS = { layers: "Layers", heads: "Query heads", kv_heads: "Key/value heads", head_dim: "Width of a head" };
/** The length of a page that opens, unless the model ends before. */
const USUAL_TOKENS = 2 ** 13;
const TOKEN_UNITS = { "": 1, k: 2 ** 10, m: 2 ** 20 };

/**
 * A number of tokens as the command line takes it: 32768, 32k, 1M. NaN if it is none.
 * @param {string} text
 */
export function tokensOf(text) {
  const found = /^(\d{1,15}(?:\.\d{1,6})?)\s*([km]?)$/i.exec(text.trim().replaceAll(",", ""));
  if (found === null) return NaN;
  const unit = /** @type {keyof typeof TOKEN_UNITS} */ ((found[2] ?? "").toLowerCase());
  const tokens = Number(found[1]) * TOKEN_UNITS[unit];
  return Number.isSafeInteger(tokens) ? tokens : NaN;
}

/**
 * A whole number between two; a default for what is no number.
 * @param {unknown} value
 * @param {number} least
 * @param {number} most
 * @param {number} otherwise
 */
function whole(value, least, most, otherwise) {
  const number = typeof value === "string" ? tokensOf(value) : value;
  const clamped = typeof number === "number" && !Number.isNaN(number) ? Math.trunc(number) : otherwise;
  return Math.min(most, Math.max(least, clamped));
}

/**
 * The one of several numbers that is nearest, by their ratio.
 * @param {number[]} numbers
 * @param {number} wanted
 */
export function nearest(numbers, wanted) {
  const distance = (/** @type {number} */ number) => Math.abs(Math.log(number / wanted));
  return numbers.reduce((best, number) => (distance(number) < distance(best) ? number : best), numbers[0] ?? wanted);
}

/**
 * The one that is asked for if there is one, or else the default, or else the first.
 * @template Name
 * @param {Name[]} names
 * @param {unknown} wanted
 * @param {unknown} otherwise
 * @returns {Name}
 */
function chosen(names, wanted, otherwise) {
  const [first] = names;
  if (first === undefined) throw new Error("nothing to choose from");
  return names.find((name) => name === wanted) ?? names.find((name) => name === otherwise) ?? first;
}

/** A name as people write it: capitals, blanks and hyphens do not matter. @param {unknown} name */
function letters(name) {
  return String(name).toLowerCase().replace(/[^a-z0-9/]/g, "");
}

/**
 * What is asked for by the names of the page: an id for each of its other spellings.
 * @param {Payload} payload
 * @param {Wanted} wanted
 * @returns {Wanted}
 */
function named(payload, wanted) {
  /** @type {(given: unknown, rows: [id: string, ...spellings: string[]][]) => unknown} */
  const idOf = (given, rows) => {
    if (given === undefined || rows.some(([id]) => id === given)) return given;
    const alike = rows.filter((names) => names.some((name) => letters(name) === letters(given)));
    return alike.length === 1 ? alike[0]?.[0] : given;
  };
  const format = (/** @type {unknown} */ given) => (typeof given === "string" && Object.hasOwn(payload.formats, given.toLowerCase()) ? payload.formats[given.toLowerCase()] : given);
  return {
    ...wanted,
    model: idOf(wanted.model, payload.models.map(({ id }) => [id, id.split("/").at(-1) ?? id])),
    engine: idOf(wanted.engine, payload.engines.map(({ name, label }) => [name, label])),
    gpu: idOf(wanted.gpu, payload.gpus.map(({ id, name, aliases }) => [id, name, ...aliases])),
    ...("dtype" in wanted ? { dtype: format(wanted.dtype) } : {}),
    ...("weights" in wanted ? { weights: format(wanted.weights) } : {}),
  };
}

/** What stands in an address, and what it is called. @type {[name: Exclude<keyof State, "hand">, label: string][]} */
const NAMED = [["model", "model"], ["engine", "engine"], ["gpu", "GPU"], ["dtype", "format of the cache"], ["weights", "format of the weights"], ["policy", "policy"]];
/** @type {[name: "seq" | "batch" | "count" | "tp" | "pp", label: string][]} */
const COUNTED = [["seq", "tokens"], ["batch", "sequences"], ["count", "GPUs"], ["tp", "GPUs that share each layer"], ["pp", "runs of layers"]];
const MOST_SAID = 5;
const LONGEST_SAID = 60;

/**
 * What an address asks for and the page does not have, each with what is shown in its place.
 * @param {Payload} payload
 * @param {Wanted} wanted
 * @param {State} state
 */
export function lackingOf(payload, wanted, state) {
  const asked = named(payload, wanted);
  const quotedWord = (/** @type {unknown} */ value) => `"${String(value).slice(0, LONGEST_SAID)}"`;
  const given = (/** @type {keyof State} */ name) => asked[name] !== undefined && asked[name] !== null && asked[name] !== "";
  const shown = (/** @type {keyof State} */ name) => {
    if (name === "gpu") return payload.gpus.find(({ id }) => id === state.gpu)?.name ?? state.gpu;
    if (name === "engine") return `${engineOf(payload, state.engine).label} ${engineOf(payload, state.engine).version}`.trim();
    return String(state[name] ?? "none");
  };
  const names = NAMED.filter(([name]) => given(name) && asked[name] !== state[name] && !(name === "model" && payload.live));
  const numbers = COUNTED.filter(([name]) => given(name) && (typeof asked[name] === "string" ? tokensOf(asked[name]) : asked[name]) !== state[name]);
  const dimensions = DIMENSIONS.filter((name) => asked.hand && Object(asked.hand)[name] !== undefined && Number(Object(asked.hand)[name]) !== state.hand?.[name]);
  const { hand } = modelOf(payload, state);
  const unknown = Object.keys(asked).filter((name) => !(name in state) && !DIMENSIONS.some((one) => one === name) && Object(asked)[name]);
  const all = [
    ...names.map(([name, label]) => `The page has no ${label} ${quotedWord(asked[name])}${state[name] === "" ? "" : `: shown is ${shown(name)}`}.`),
    ...numbers.map(([name, label]) => `The page has no ${quotedWord(asked[name])} ${label}: shown is ${exact(state[name])}.`),
    ...(state.hand === null && dimensions.length > 0 ? ["The page has no dimensions by hand here: shown are those of the model."] : []),
    ...(state.hand === null ? [] : dimensions.map((name) => `By hand the page has no ${quotedWord(Object(asked.hand)[name])} ${DIMENSION_LABELS[name].toLowerCase()}: shown is ${exact(state.hand?.[name] ?? 0)}.`)),
    ...(state.hand !== null && dimensions.includes("kv_heads") && isHand(hand) ? [hand.rule] : []),
    ...unknown.map((name) => `The page knows no ${quotedWord(name)} in an address.`),
  ];
  return all.length > MOST_SAID ? [...all.slice(0, MOST_SAID), `And ${exact(all.length - MOST_SAID)} things more.`] : all;
}

/**
 * How many GPUs share each layer where nobody says it, by the order of hwcalc/planner/layouts.py: first what leaves no replica without a
 * sequence, then what keeps each key and value once, then as many as get whole heads inside one machine. It is the first that holds the work,
 * or else the one that holds the most sequences.
 * @param {Payload} payload
 * @param {(state: State) => Form | NoAnswer} forms
 * @param {State} state
 */
function usualShare(payload, forms, state) {
  const { shares } = modelOf(payload, state);
  const node = payload.gpus.find(({ id }) => id === state.gpu)?.node ?? state.count;
  const all = sharesOf(payload, state.engine, state.count);
  const whole = all.filter((tp) => shares.includes(tp) && (state.count <= node || node % tp === 0)).sort((first, second) => second - first);
  const runs = runsOf(modelOf(payload, state), state.engine, false);
  const copies = (/** @type {number} */ tp) => (runs !== null && "curve" in runs ? runs.copies?.[tp] ?? 1 : 1);
  const full = Math.max(1, ...whole.map(copies));
  const rank = (/** @type {number} */ tp) => 4 * Number(state.count / tp <= state.batch) + (copies(tp) <= 1 ? 2 : Number(copies(tp) === full));
  // With fewer sequences than replicas the command has stages beside the largest share; here these GPUs are replicas.
  const idle = state.count / (whole[0] ?? 1) > state.batch;
  const ordered = idle ? whole : [...whole].sort((first, second) => rank(second) - rank(first));
  const accepted = ordered.flatMap((tp) => {
    const form = forms({ ...state, tp, pp: 1 });
    return "refused" in form ? [] : [{ tp, form }];
  });
  const likely = accepted.filter(({ form }) => holds(form, state.seq, state.batch));
  const holding = likely.find(({ form }) => holds(form, state.seq, state.batch, "low")) ?? likely[0];
  if (holding !== undefined) return holding.tp;
  const widest = whole.find((tp) => accepted.some((one) => one.tp === tp)) ?? whole[0] ?? all[0] ?? 1;
  let fullest = { tp: widest, sure: 0, expected: 0 };
  for (const { tp, form } of accepted) {
    const expected = most(form, state.seq, "expected");
    const sure = most(form, state.seq, "low", expected);
    if (sure > fullest.sure || (sure === fullest.sure && expected > fullest.expected)) fullest = { tp, sure, expected };
  }
  return fullest.tp;
}

/**
 * The state with something else in it. How many GPUs share each layer follows, unless somebody chose it.
 * @param {Payload} payload
 * @param {(state: State) => Form | NoAnswer} forms
 * @param {State} state
 * @param {Partial<State>} change
 */
export function changedState(payload, forms, state, change) {
  /** @type {Wanted} */
  const wanted = { ...state, ...change };
  if (change.tp === undefined && change.pp === undefined && state.pp === 1 && state.tp === usualShare(payload, forms, state)) delete wanted.tp;
  return validState(payload, forms, wanted);
}

/**
 * The nearest state that the page has. What is unknown or missing becomes its default, what is too large the largest.
 * @param {Payload} payload
 * @param {(state: State) => Form | NoAnswer} forms
 * @param {Wanted} given
 * @returns {State}
 */
export function validState(payload, forms, given) {
  const { first, lengths, batches, layouts } = payload;
  const wanted = named(payload, given);
  const model = chosen(payload.models.map((model) => model.id), wanted.model, first.model);
  const engine = chosen(payload.engines.map((engine) => engine.name), wanted.engine, first.engine);
  const count = nearest(layouts.map((layout) => layout.count), whole(wanted.count, 1, 2 ** 20, first.count ?? 1));
  /** @type {State} */
  const state = {
    model,
    engine,
    gpu: chosen(payload.gpus.map((gpu) => gpu.id), wanted.gpu, first.gpu),
    count,
    tp: 1,
    pp: 1,
    seq: 1,
    batch: whole(wanted.batch, 1, Math.max(...batches), first.batch ?? batches[0] ?? 1),
    dtype: "",
    weights: "",
    policy: null,
    hand: null,
  };
  const described = modelOf(payload, state);
  state.seq = whole(wanted.seq, lengths.least, lengths.most, first.seq ?? Math.min(described.max_seq ?? USUAL_TOKENS, USUAL_TOKENS));
  const formats = formatsOf(described, engine, false);
  if (formats.dtypes.length > 0) {
    state.dtype = chosen(formats.dtypes, wanted.dtype, first.dtype);
    state.weights = chosen(formats.weights, wanted.weights, first.weights);
  }
  const share = wanted.tp ?? (wanted.count === undefined ? first.tp : undefined);
  const usual = usualShare(payload, forms, state);
  state.tp = share === undefined ? usual : nearest(sharesOf(payload, engine, count), whole(share, 1, count, usual));
  const stages = stagesOf(payload, state);
  state.pp = nearest(stages, whole(wanted.pp, 1, count, 1));
  state.hand = validHand(described, wanted.hand, ranksOf(payload, state));
  const byHand = formatsOf(described, engine, state.hand !== null);
  if (state.hand !== null && byHand.dtypes.length > 0) {
    state.dtype = chosen(byHand.dtypes, wanted.dtype, first.dtype);
    state.weights = chosen(byHand.weights, wanted.weights, first.weights);
  }
  state.policy = described.policies?.rows.find((row) => row.policy === wanted.policy)?.policy ?? null;
  return snapped(payload, state, forms(state));
}

/**
 * The state at a point where its numbers are known.
 * @param {Payload} payload
 * @param {State} state
 * @param {Form | NoAnswer} form
 * @returns {State}
 */
function snapped(payload, state, form) {
  const rows = policyRowsOf(payload, state);
  if (rows !== null) return { ...state, seq: nearest(rows.lengths, state.seq), batch: nearest(rows.batches, state.batch) };
  if ("refused" in form) return state;
  const seq = Math.min(Math.max(state.seq, form.least_tokens), form.most_tokens ?? Infinity);
  return { ...state, seq, batch: Math.min(state.batch, mostBatch(form)) };
}

/**
 * @param {Model} model
 * @param {unknown} wanted
 * @param {number} ranks
 * @returns {State["hand"]}
 */
function validHand(model, wanted, ranks) {
  if (!isHand(model.hand) || typeof wanted !== "object" || wanted === null) return null;
  /** @type {Partial<Record<Dimension, unknown>>} */
  const given = wanted;
  const { dimensions } = model.hand;
  const value = (/** @type {Dimension} */ name) => {
    const { value, least, most } = dimensions[name];
    return nearest(stepsOf(dimensions[name]), whole(given[name], least, most, value));
  };
  const heads = value("heads");
  const kvHeads = value("kv_heads");
  const possible = keyValueHeads(model.hand, heads, ranks);
  return { layers: value("layers"), heads, kv_heads: nearest(possible, kvHeads), head_dim: value("head_dim") };
}

/**
 * @param {State} state
 * @returns {string}
 */
export function fragmentOf(state) {
  const { hand, ...rest } = state;
  const pairs = Object.entries({ ...rest, ...hand }).filter(([, value]) => value !== null && value !== "");
  return `#${new URLSearchParams(pairs.map(([name, value]) => [name, String(value)]))}`;
}

/**
 * What a fragment asks for, whether there is such a thing or not.
 * @param {string} fragment
 * @returns {Wanted}
 */
export function wantedBy(fragment) {
  const words = Object.fromEntries(new URLSearchParams(fragment.replace(/^#/, "")));
  const hand = Object.fromEntries(DIMENSIONS.flatMap((name) => (name in words ? [[name, words[name]]] : [])));
  return { ...words, hand: Object.keys(hand).length > 0 ? hand : null };
}
