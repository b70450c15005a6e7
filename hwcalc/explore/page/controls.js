// What is chosen: one native control for each thing, with its label. A control knows how it looks in a state, and what it changes.

import { dealtOver, defaultFormats, engineOf, formatsOf, isHand, keyValueHeads, modelOf, mostBatch, policyRowsOf, ranksOf, sharesOf, stagesOf, stepsOf } from "./data.js";
import { DIMENSION_LABELS, DIMENSIONS, nearest, tokensOf } from "./state.js";
import { exact, html, shortTokens } from "./tables.js";
import { explained } from "./terms.js";

const STEPS_OF_AN_OCTAVE = 16;
/** So many models are searched rather than looked through. */
const MANY_MODELS = 12;

/**
 * A label with what belongs to it, and a sentence under it where there is something to say.
 * @param {string} id
 * @param {string} label
 * @param {...HTMLElement} children
 */
function field(id, label, ...children) {
  const note = html("p", { class: "note", id: `${id}-note`, hidden: true });
  for (const child of children) child.setAttribute("aria-describedby", note.id);
  return {
    element: html("div", { class: "field" }, explained(html("label", { for: id }, label), id === "weights" ? "weights_format" : id.replace(/-search$/, "")), ...children, note),
    /** @param {string | null} text */
    say(text) {
      note.textContent = text;
      note.hidden = text === null;
    },
  };
}

/**
 * A list to choose from.
 * @param {string} id
 * @param {string} label
 * @param {(value: string) => void} choose
 */
function selectField(id, label, choose) {
  const select = html("select", { id, onchange: () => choose(select.value) });
  const { element, say } = field(id, label, select);
  let shown = "";
  return {
    element,
    /** @param {[value: string, text: string][]} options @param {string} value @param {string | null} [note] */
    show(options, value, note = null) {
      const wanted = JSON.stringify(options);
      if (wanted !== shown) select.replaceChildren(...options.map(([value, text]) => html("option", { value }, text)));
      shown = wanted;
      select.value = value;
      select.disabled = options.length < 2;
      say(note);
    },
  };
}

/**
 * A slider over a list of numbers, and a field for any number. What the page does not have becomes the nearest that it has.
 * @param {string} id
 * @param {string} label
 * @param {string} unit
 * @param {(value: number, settled: boolean) => void} choose
 */
function sliderField(id, label, unit, choose) {
  /** @type {number[]} */
  let values = [];
  const at = () => values[Number(slider.value)] ?? values[0] ?? 1;
  const slider = html("input", { id, type: "range", list: `${id}-ticks`, min: 0, step: 1, oninput: () => choose(at(), false), onchange: () => choose(at(), true) });
  const typed = () => {
    const number = tokensOf(text.value);
    const wrong = Number.isNaN(number) || number < 1;
    text.setAttribute("aria-invalid", String(wrong));
    text.setCustomValidity(wrong ? "Give a whole number: 32768, 32k or 1M." : "");
    if (wrong) text.reportValidity();
    else choose(number, true);
  };
  const text = html("input", {
    id: `${id}-exact`,
    type: "text",
    inputmode: "numeric",
    autocomplete: "off",
    spellcheck: "false",
    "aria-label": `${label}, exactly`,
    onchange: typed,
    onblur: () => text.setCustomValidity(""),
  });
  const { element, say } = field(id, label, slider, text);
  const ticks = html("datalist", { id: `${id}-ticks` });
  element.append(ticks);
  return {
    element,
    /** @param {number[]} list @param {number} value @param {string | null} [note] @param {number | null} [mark] a value that has a tick */
    show(list, value, note = null, mark = null) {
      values = list;
      const tick = mark === null ? -1 : list.indexOf(mark);
      ticks.replaceChildren(...(tick < 0 ? [] : [html("option", { value: tick, label: shortTokens(mark ?? 0) })]));
      slider.max = String(Math.max(0, list.length - 1));
      slider.value = String(list.indexOf(nearest(list, value)));
      slider.disabled = list.length < 2;
      slider.setAttribute("aria-valuetext", `${exact(value)} ${unit}`);
      text.value = exact(value);
      text.removeAttribute("aria-invalid");
      text.disabled = list.length < 2;
      say(note);
    },
  };
}

/**
 * The choice of a model: a list, or a field with suggestions where the list is long.
 * @param {Page} page
 */
function modelField(page) {
  const choose = (/** @type {string} */ model) => page.set({ model, hand: null });
  const list = selectField("model", "Model", choose);
  const suggestions = html("datalist", { id: "models" });
  const search = html("input", {
    id: "model-search",
    type: "text",
    list: "models",
    autocomplete: "off",
    spellcheck: "false",
    onfocus: () => search.select(),
    onchange: () => {
      const known = page.payload.models.some((model) => model.id === search.value);
      search.setCustomValidity(known ? "" : "This page does not have that model. Choose one of the list.");
      if (known) choose(search.value);
      else search.reportValidity();
    },
    oninput: () => search.setCustomValidity(""),
  });
  const searched = field("model-search", "Model", search);
  searched.element.append(suggestions);
  return {
    element: html("div", {}, list.element, searched.element),
    /** @param {State} state */
    show(state) {
      const ids = page.payload.models.map((model) => model.id);
      const many = ids.length > MANY_MODELS;
      list.element.hidden = many;
      searched.element.hidden = !many;
      if (many && suggestions.childElementCount !== ids.length) suggestions.replaceChildren(...ids.map((value) => html("option", { value })));
      if (many) search.value = state.model;
      else list.show(ids.map((id) => [id, id]), state.model);
    },
  };
}

/**
 * Dimensions set by hand: a switch, and a slider for each.
 * @param {Page} page
 */
function handFields(page) {
  const change = (/** @type {Dimension} */ name) => (/** @type {number} */ value, /** @type {boolean} */ settled) => {
    const { hand } = page.state();
    if (hand !== null) page.set({ hand: { ...hand, [name]: value } }, settled);
  };
  const own = () => {
    const { hand } = modelOf(page.payload, page.state());
    if (!isHand(hand)) return null;
    const value = (/** @type {Dimension} */ name) => hand.dimensions[name].value;
    return { layers: value("layers"), heads: value("heads"), kv_heads: value("kv_heads"), head_dim: value("head_dim") };
  };
  const toggle = html("input", { id: "hand", type: "checkbox", onchange: () => page.set({ hand: toggle.checked ? own() : null }) });
  const switched = field("hand", "Set by hand", toggle);
  switched.element.classList.add("check");
  const sliders = DIMENSIONS.map((name) => /** @type {const} */ ([name, sliderField(name, DIMENSION_LABELS[name], "", change(name))]));
  return {
    element: html("fieldset", {}, html("legend", {}, "Dimensions"), switched.element, ...sliders.map(([, slider]) => slider.element)),
    /** @param {State} state @param {Model} model */
    show(state, model) {
      const { hand } = model;
      toggle.disabled = !isHand(hand);
      toggle.checked = state.hand !== null;
      const why = typeof hand === "string" ? hand : "This page has no numbers of other dimensions for this model.";
      switched.say(isHand(hand) ? (state.hand === null ? "As the model has them." : "What if the model had these?") : why);
      for (const [name, slider] of sliders) {
        slider.element.hidden = !isHand(hand);
        if (!isHand(hand)) continue;
        const own = state.hand?.[name] ?? hand.dimensions[name].value;
        const steps = name === "kv_heads" ? keyValueHeads(hand, state.hand?.heads ?? 1, ranksOf(page.payload, state)) : stepsOf(hand.dimensions[name]);
        slider.show(state.hand === null ? [own] : steps, own);
      }
    },
  };
}

/**
 * The lengths of the slider: sixteen in an octave, whole multiples of the shortest, and the model's own.
 * @param {Payload} payload
 * @param {Model} model
 */
function sliderLengths({ lengths: { least, most } }, { max_seq: own }) {
  /** @type {number[]} */
  const steps = [];
  for (let length = least; length <= most; length += Math.max(least, 2 ** Math.floor(Math.log2(length)) / STEPS_OF_AN_OCTAVE)) steps.push(length);
  const all = [...steps, most, ...(own === null ? [] : [own])].filter((length) => length >= least && length <= most);
  return [...new Set(all)].sort((first, second) => first - second);
}

/** The numbers of the slider: those of the page, and halfway between two of them. @param {number[]} batches */
function sliderBatches(batches) {
  const between = batches.map((number, place) => (number + (batches[place + 1] ?? number)) / 2).filter(Number.isInteger);
  return [...new Set([...batches, ...between])].sort((first, second) => first - second);
}

/**
 * A policy is chosen together with the formats for which the page knows it, on one GPU.
 * @param {Page} page
 * @param {string | null} policy
 * @returns {Partial<State>}
 */
function withPolicy(page, policy) {
  const state = page.state();
  const model = modelOf(page.payload, state);
  if (policy === null || model.policies === null) return { policy };
  return { policy, count: 1, tp: 1, pp: 1, hand: null, ...defaultFormats(model, state.engine) };
}

/**
 * All controls by name.
 * @param {Page} page
 */
function fieldsOf(page) {
  const { set } = page;
  return {
    model: modelField(page),
    length: sliderField("seq", "Tokens of a sequence", "tokens", (seq, settled) => set({ seq }, settled)),
    batch: sliderField("batch", "Sequences at once", "sequences", (batch, settled) => set({ batch }, settled)),
    dtype: selectField("dtype", "Format of the cache", (dtype) => set({ dtype })),
    weights: selectField("weights", "Format of the weights", (weights) => set({ weights })),
    engine: selectField("engine", "Engine", (engine) => set({ engine })),
    policy: selectField("policy", "Policy of the cache", (policy) => set(withPolicy(page, policy || null))),
    gpu: selectField("gpu", "GPU", (gpu) => set({ gpu })),
    count: sliderField("count", "Number of GPUs", "GPUs", (count, settled) => set({ count }, settled)),
    tp: sliderField("tp", "GPUs that share each layer (tp)", "GPUs", (tp, settled) => set({ tp }, settled)),
    pp: sliderField("pp", "Runs of layers, one after another (pp)", "runs", (pp, settled) => set({ pp }, settled)),
    hand: handFields(page),
  };
}

/**
 * The controls in groups.
 * @param {ReturnType<typeof fieldsOf>} fields
 */
function panelOf({ model, length, batch, dtype, weights, engine, policy, gpu, count, tp, pp, hand }) {
  const group = (/** @type {string} */ legend, /** @type {{ element: HTMLElement }[]} */ ...fields) =>
    html("fieldset", {}, html("legend", {}, legend), ...fields.map((one) => one.element));
  return html(
    "section",
    { class: "panel controls", id: "controls", "aria-labelledby": "controls-title" },
    html("h2", { id: "controls-title" }, "What to plan"),
    html(
      "form",
      { onsubmit: (/** @type {Event} */ event) => event.preventDefault() },
      group("Model", model, weights),
      group("Work", length, batch, dtype, policy),
      group("Engine and GPUs", engine, gpu, count, tp, pp),
      hand.element,
    ),
  );
}

/**
 * @param {Page} page
 * @returns {Section}
 */
export function controlsSection(page) {
  const { payload } = page;
  const fields = fieldsOf(page);
  const { model, length, batch, dtype, weights, engine, policy, gpu, count, tp, pp, hand } = fields;
  const element = panelOf(fields);
  return {
    element,
    update(state) {
      const described = modelOf(payload, state);
      const form = page.form(state);
      const known = policyRowsOf(payload, state);
      const formats = formatsOf(described, state.engine, state.hand !== null);
      const { options: always, splits_layers: splits } = engineOf(payload, state.engine);
      /** @type {(names: string[]) => [string, string][]} */
      const defaults = (names) => (names.length === 0 ? [["", "none with this engine"]] : names.map((name, place) => [name, place === 0 ? `${name} (default)` : name]));
      const only = known === null ? null : "Only some values are known exactly here: the nearest is taken.";
      const ownLength = described.max_seq === null ? null : `The model's own maximum is ${shortTokens(described.max_seq)}.`;
      model.show(state);
      length.show(known?.lengths ?? sliderLengths(payload, described), state.seq, only ?? ownLength, described.max_seq);
      const most = "refused" in form ? Infinity : mostBatch(form);
      const refusal = most < Math.max(...payload.batches) ? `The engine takes at most ${exact(most)} at once.` : null;
      batch.show(known?.batches ?? sliderBatches(payload.batches).filter((number) => number <= most), state.batch, only ?? refusal);
      dtype.show(defaults(formats.dtypes), state.dtype);
      weights.show(defaults(formats.weights), state.weights);
      const options = Object.entries(always).map(([name, value]) => `${name}=${value}`);
      engine.show(
        payload.engines.map(({ name, label, version, definition }) => [name, `${label} ${version || (definition === "exact" ? "(formulas)" : "")}`.trim()]),
        state.engine,
        options.length > 0 ? `With ${options.join(", ")}.` : null,
      );
      const rows = described.policies?.rows ?? [];
      policy.show(
        [["", "none: every token is kept"], ...rows.map((row) => /** @type {[string, string]} */ ([row.policy, `${row.title} (${row.policy})`]))],
        state.policy ?? "",
        rows.length > 0 ? null : "No policy acts on this model.",
      );
      gpu.show(payload.gpus.map((one) => [one.id, /\d ?GB\b/.test(one.name) ? one.name : `${one.name}, ${one.memory} GB`]), state.gpu);
      const counts = [...new Set(payload.layouts.map((layout) => layout.count))];
      count.show(counts, state.count, splits && state.count > 1 ? "They share out the layers (pp)." : null);
      const replicas = state.count / (state.tp * state.pp);
      tp.element.hidden = splits;
      pp.element.hidden = splits;
      pp.show(stagesOf(payload, state), state.pp, state.pp > 1 ? "Each run of layers has GPUs of its own." : null);
      tp.show(sharesOf(payload, state.engine, state.count), state.tp, replicas > 1 && !splits ? `${replicas} replicas share out the sequences (dp)${dealtOver(payload, state) > 1 ? ", and whole experts are dealt out over all GPUs (ep)" : ""}.` : null);
      hand.show(state, described);
    },
  };
}
