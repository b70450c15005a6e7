// The answers of states, each worked out once.

import { answerAt, sizesAt, termBytes, unitsAt } from "./forms.js";

/**
 * @param {(state: State) => Form | NoAnswer} forms
 * @returns {Pick<Page, "answer" | "sizes" | "terms">}
 */
export function answersOf(forms) {
  /** @type {{ form: Form, seq: number, batch: number, answer: Answer } | null} */
  let last = null;
  return {
    answer(state) {
      const form = forms(state);
      if ("refused" in form) return form;
      if (last === null || last.form !== form || last.seq !== state.seq || last.batch !== state.batch) {
        last = { form, seq: state.seq, batch: state.batch, answer: answerAt(form, state.seq, state.batch) };
      }
      return last.answer;
    },
    sizes(state) {
      const form = forms(state);
      return "refused" in form ? form : sizesAt(form, state.seq, state.batch);
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
