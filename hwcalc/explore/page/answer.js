// The answers of states. The last one is kept: several sections ask for it.

import { formatsOf, modelOf, policyRowsOf } from "./data.js";
import { plus, stateBytes, termBytes, unitsAt } from "./forms.js";
import { answerAt, sizesAt } from "./solve.js";

/**
 * What a column has at a point.
 * @template T
 * @param {Column<T>} column
 * @param {number} place
 * @returns {T | undefined}
 */
export function columnAt(column, place) {
  return Array.isArray(column) ? column[place] : column;
}

/**
 * The answer under a policy: Python's own, at some points.
 * @param {PolicyRows} rows
 * @param {Model} model
 * @param {State} state
 * @param {string[]} texts
 * @param {string} gpuName
 * @returns {Answer | NoAnswer}
 */
function policyAnswer(rows, model, state, texts, gpuName) {
  const columns = rows.rows.find((row) => row.policy === state.policy)?.engines[state.engine];
  if (columns === undefined) return { refused: `This page has no numbers of ${state.engine} under a policy.` };
  if (typeof columns === "number") return { refused: texts[columns] ?? "" };
  const formats = formatsOf(model, state.engine, false);
  const usual = state.dtype === formats.dtypes[0] && state.weights === formats.weights[0];
  const length = rows.lengths.indexOf(state.seq);
  const batch = rows.batches.indexOf(state.batch);
  if (!usual || length < 0 || batch < 0 || state.gpu !== rows.gpu || state.count !== 1 || state.hand !== null) {
    return { refused: `Under a policy this page has exact answers on one ${gpuName} in the default formats alone. The command line below plans any other.` };
  }
  const place = length * rows.batches.length + batch;
  const refused = columnAt(columns.refused, place);
  if (typeof refused === "number") return { refused: texts[refused] ?? "" };
  /** @type {(column: Column<number | null>) => number} */
  const at = (column) => columnAt(column, place) ?? NaN;
  const verdict = columnAt(columns.verdict, place);
  const cache = at(columns.per_gpu_bytes);
  const [weights, activations, overhead] = [at(columns.weights), at(columns.activations), at(columns.overhead)];
  /** @type {Answer} */
  const answer = {
    cache: { total_bytes: at(columns.total_bytes), per_gpu_bytes: cache },
    per_gpu: { weights, cache, activations, overhead, total: plus(weights, activations, overhead, cache) },
    fit: {
      usable_bytes: at(columns.usable_bytes),
      needed_bytes: at(columns.needed_bytes),
      needed_low_bytes: at(columns.needed_low_bytes),
      needed_high_bytes: at(columns.needed_high_bytes),
      headroom_bytes: at(columns.usable_bytes) - at(columns.needed_bytes),
      verdict: verdict ?? "no",
      max_seq: at(columns.max_seq),
      expected_max_seq: at(columns.expected_max_seq),
      max_batch: at(columns.max_batch),
      expected_max_batch: at(columns.expected_max_batch),
    },
  };
  const whole = verdict && [...Object.values(answer.per_gpu), ...Object.values(answer.fit)].every((value) => value === verdict || !Number.isNaN(Number(value)));
  return whole ? answer : { refused: "This point is not known." };
}

/**
 * The bytes of an answer alone.
 * @param {Answer} answer
 * @param {Bytes} state
 * @returns {Sizes}
 */
function sizesOf({ cache, per_gpu, fit }, state) {
  return { ...per_gpu, state, total_cache: cache.total_bytes, usable: fit.usable_bytes, verdict: fit.verdict };
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
  /** @type {(state: State) => Answer | NoAnswer | null} */
  const underPolicy = (state) => {
    const rows = policyRowsOf(payload, state);
    if (rows === null) return null;
    const model = modelOf(payload, state);
    return policyAnswer(rows, model, state, poolsOf(model).texts, payload.gpus.find(({ id }) => id === rows.gpu)?.name ?? rows.gpu);
  };
  return {
    answer(state) {
      const sampled = underPolicy(state);
      if (sampled !== null) return sampled;
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
      const sampled = underPolicy(state);
      if (sampled === null) return sizesAt(form, state.seq, state.batch);
      // A policy drops tokens: what does not grow with them stays.
      return "refused" in sampled ? sampled : sizesOf(sampled, stateBytes(form, state.seq, state.batch));
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
