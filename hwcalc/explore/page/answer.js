// The answers of states. The last one is kept: several sections ask for it.

import { formatsOf, modelOf, policyRowsOf } from "./data.js";
import { holds, stateBytes, termBytes, unitsAt, verdictOf } from "./forms.js";
import { answerAt, sizesAt } from "./solve.js";

/**
 * What a column has at a point.
 * @template T
 * @param {Column<T>} column
 * @param {number} place
 * @returns {T | undefined}
 */
function columnAt(column, place) {
  return Array.isArray(column) ? column[place] : column;
}

/**
 * The form of a GPU under a policy at one of the points that are known: cache and activations are Python's own, the rest is the GPU's.
 * @param {Form} form
 * @param {PolicyAnswers} columns
 * @param {number} place
 * @returns {Form | null}
 */
function formUnder(form, columns, place) {
  const at = (/** @type {"total_bytes" | "per_gpu_bytes" | End} */ name) => columnAt(columns[name], place) ?? NaN;
  const activations = { name: "activations under the policy", section: /** @type {const} */ ("activations"), low: at("low"), expected: at("expected"), high: at("high") };
  if (Number.isNaN(at("per_gpu_bytes") + at("expected"))) return null;
  const parts = [...form.parts.filter(({ section }) => section !== "activations"), activations];
  return { ...form, gpus: [[]], total: [], once_bytes: at("per_gpu_bytes"), total_once_bytes: at("total_bytes"), crests: [], parts };
}

/**
 * The form of a state under its policy, and those of all points that are known; or why there is none.
 * @param {Payload} payload
 * @param {PolicyRows} rows
 * @param {State} state
 * @param {Form | NoAnswer} form
 * @param {string[]} texts
 * @returns {{ own: Form, at: (seq: number, batch: number) => Form | null } | NoAnswer}
 */
function underPolicy(payload, rows, state, form, texts) {
  const columns = rows.rows.find((row) => row.policy === state.policy)?.engines[state.engine];
  if (columns === undefined) return { refused: `This page has no numbers of ${state.engine} under a policy.` };
  if (typeof columns === "number") return { refused: texts[columns] ?? "" };
  if ("refused" in form) return form;
  const refused = columns.gpus?.[state.gpu];
  if (refused !== undefined) return { refused: texts[refused] ?? "" };
  const formats = formatsOf(modelOf(payload, state), state.engine, false);
  const usual = state.dtype === formats.dtypes[0] && state.weights === formats.weights[0];
  const placeOf = (/** @type {number} */ seq, /** @type {number} */ batch) => {
    const [length, number] = [rows.lengths.indexOf(seq), rows.batches.indexOf(batch)];
    return length < 0 || number < 0 ? -1 : length * rows.batches.length + number;
  };
  const place = placeOf(state.seq, state.batch);
  if (!usual || place < 0 || state.count !== 1 || state.hand !== null) {
    return { refused: "Under a policy this page has exact answers on one GPU in the default formats alone. The command line below plans any other." };
  }
  const why = columnAt(columns.refused, place);
  if (typeof why === "number") return { refused: texts[why] ?? "" };
  const at = (/** @type {number} */ seq, /** @type {number} */ batch) => formUnder(form, columns, placeOf(seq, batch));
  const own = at(state.seq, state.batch);
  return own === null ? { refused: "This point is not known." } : { own, at };
}

/**
 * The answer under a policy. How far it goes is known at the lengths and numbers of sequences that the page has.
 * @param {PolicyRows} rows
 * @param {State} state
 * @param {{ own: Form, at: (seq: number, batch: number) => Form | null }} known
 * @returns {Answer}
 */
function answerUnder({ lengths, batches }, { seq, batch }, { own, at }) {
  const answer = answerAt(own, seq, batch, false);
  /** @type {(points: [number, number][], end: End) => [number, number]} */
  const last = (points, end) => {
    const held = points.filter(([tokens, sequences]) => {
      const form = at(tokens, sequences);
      return form !== null && holds(form, tokens, sequences, end);
    });
    return held.at(-1) ?? [0, 0];
  };
  /** @type {[number, number][]} */
  const along = lengths.map((length) => [length, batch]);
  /** @type {[number, number][]} */
  const across = batches.map((number) => [seq, number]);
  const sampled = { max_seq: last(along, "low")[0], expected_max_seq: last(along, "expected")[0], max_batch: last(across, "low")[1], expected_max_batch: last(across, "expected")[1] };
  return { ...answer, sampled };
}

/**
 * @param {Payload} payload
 * @param {(model: Model) => Payload} poolsOf
 * @param {(state: State) => Form | NoAnswer} forms
 * @returns {Pick<Page, "answer" | "sizes" | "terms">}
 */
export function answersOf(payload, poolsOf, forms) {
  /** @type {{ form: Form, seq: number, batch: number, answer: Answer } | null} */
  let last = null;
  const under = (/** @type {State} */ state) => {
    const rows = policyRowsOf(payload, state);
    if (rows === null) return null;
    return { rows, known: underPolicy(payload, rows, state, forms(state), poolsOf(modelOf(payload, state)).texts) };
  };
  return {
    answer(state) {
      const sampled = under(state);
      if (sampled !== null) return "refused" in sampled.known ? sampled.known : answerUnder(sampled.rows, state, sampled.known);
      const form = forms(state);
      if ("refused" in form) return form;
      if (last === null || last.form !== form || last.seq !== state.seq || last.batch !== state.batch) {
        last = { form, seq: state.seq, batch: state.batch, answer: answerAt(form, state.seq, state.batch) };
      }
      return last.answer;
    },
    sizes(state) {
      const form = forms(state);
      if ("refused" in form) return form;
      const sampled = under(state);
      if (sampled === null) return sizesAt(form, state.seq, state.batch);
      if ("refused" in sampled.known) return sampled.known;
      // A policy drops tokens: what does not grow with them stays.
      return { ...sizesAt(sampled.known.own, state.seq, state.batch), state: stateBytes(form, state.seq, state.batch), verdict: verdictOf(sampled.known.own, state.seq, state.batch) };
    },
    terms(state) {
      const form = forms(state);
      if ("refused" in form) return form;
      return form.total.map((term) => ({
        term,
        count: term.count,
        units: unitsAt(term, state.seq),
        bytes: termBytes(term, state.seq),
      }));
    },
  };
}
