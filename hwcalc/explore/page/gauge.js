// The answer: the verdict in the words of the command line, a bar against the memory of the GPU, and a table of the same numbers.

import { bar, barLegend, verdictBadge } from "./bars.js";
import { modelOf } from "./data.js";
import { partsBytes, stateBytes } from "./forms.js";
import { bytesCells, details, exact, html, human, svg, tableOf } from "./tables.js";

const GAUGE_HEIGHT = 44;
/** Where a search ends without a limit (planner/result.py). */
const NO_LIMIT = 2 ** 40;
/** The verdict is read out when the sliders have come to rest. */
const ANNOUNCE_MS = 800;
/** @type {[kind: string, words: string][]} */
const KINDS = [
  ["weights", "weights"],
  ["cache", "cache"],
  ["state", "state: what does not grow with length"],
  ["activations", "activations"],
  ["overhead", "overhead"],
  ["free", "free"],
];

/** @param {number} limit @param {string} unit */
function upTo(limit, unit) {
  return limit >= NO_LIMIT ? `any number of ${unit}s` : `${exact(limit)} ${unit}${limit === 1 ? "" : "s"}`;
}

/**
 * How far it goes, for sure and by the expected values.
 * @param {Answer["fit"]} fit
 * @param {State} state
 */
function limits(fit, state) {
  const both = (/** @type {number} */ sure, /** @type {number} */ expected, /** @type {string} */ unit) =>
    sure === expected ? `up to ${upTo(sure, unit)}` : `up to ${upTo(sure, unit)} for sure, ${upTo(expected, unit)} by the expected values`;
  const each = state.batch === 1 ? "One sequence" : `${exact(state.batch)} sequences`;
  return [
    `${each}: ${both(fit.max_seq, fit.expected_max_seq, "token")}${state.batch === 1 ? "" : " each"}.`,
    `Of ${upTo(state.seq, "token")} each: ${both(fit.max_batch, fit.expected_max_batch, "sequence")} at once.`,
  ];
}

/**
 * @param {Answer} answer
 * @param {Form} form
 * @param {State} state
 */
function gauge(answer, form, state) {
  const { per_gpu, fit } = answer;
  const own = Number(stateBytes(form, state.seq, state.batch));
  const total = Number(per_gpu.total);
  const free = Math.max(0, fit.usable_bytes - total);
  const [low, high] = [Number(fit.needed_low_bytes), Number(fit.needed_high_bytes)];
  const most = Math.max(form.total_bytes, total, Math.min(high, 2 * form.total_bytes));
  const segments = [
    { kind: "weights", bytes: per_gpu.weights },
    { kind: "cache", bytes: Number(per_gpu.cache) - own },
    { kind: "state", bytes: own },
    { kind: "activations", bytes: per_gpu.activations },
    { kind: "overhead", bytes: per_gpu.overhead },
    { kind: "free", bytes: free },
  ];
  const label = `${human(per_gpu.total)} of the ${human(fit.usable_bytes)} that may be used of a GPU with ${human(form.total_bytes)}`;
  const drawn = bar(segments, most, { limit: fit.usable_bytes, label, height: GAUGE_HEIGHT });
  const at = (/** @type {number} */ bytes) => `${Math.min(100, (100 * bytes) / most)}%`;
  const middle = GAUGE_HEIGHT / 2;
  const tick = (/** @type {number} */ bytes) => svg("line", { x1: at(bytes), x2: at(bytes), y1: middle - 7, y2: middle + 7 });
  // A light line under the dark one, so that it can be seen on every colour.
  const whisker = (/** @type {string} */ kind) =>
    svg("g", { class: kind }, svg("line", { x1: at(low), x2: at(high), y1: middle, y2: middle }), tick(low), tick(high));
  if (low !== high) drawn.append(whisker("whisker under"), whisker("whisker"));
  return drawn;
}

/**
 * @param {Answer} answer
 * @param {Form} form
 * @param {State} state
 */
function numbers(answer, form, state) {
  const { per_gpu, fit } = answer;
  const at = (/** @type {End} */ end, /** @type {Part["section"]} */ section) => partsBytes(form, state.seq, state.batch, end, section);
  const same = (/** @type {string} */ name, /** @type {Bytes} */ bytes) => [name, ...bytesCells(bytes), "", ""];
  const range = (/** @type {"weights" | "activations" | "overhead"} */ section) => {
    const [low, high] = [at("low", section), at("high", section)];
    return [section, ...bytesCells(per_gpu[section]), ...(low === high ? ["", ""] : [human(low), human(high)])];
  };
  return tableOf({
    caption: "On the fullest GPU",
    head: ["", "expected", "bytes", "low", "high"],
    rows: [
      range("weights"),
      same("cache", per_gpu.cache),
      same("of it state", stateBytes(form, state.seq, state.batch)),
      range("activations"),
      range("overhead"),
      ["total", ...bytesCells(fit.needed_bytes), human(fit.needed_low_bytes), human(fit.needed_high_bytes)],
      same("may be used", fit.usable_bytes),
      same("left over", fit.headroom_bytes),
      same("memory that programs see", form.total_bytes),
      same("cache on all GPUs", answer.cache.total_bytes),
    ],
  });
}

/**
 * A sentence that a screen reader hears once the choice has come to rest.
 */
function announcer() {
  const element = html("p", { class: "visually-hidden", role: "status", "aria-live": "polite" });
  let timer = 0;
  return {
    element,
    /** @param {string} text */
    say(text) {
      clearTimeout(timer);
      timer = setTimeout(() => {
        if (element.textContent !== text) element.textContent = text;
      }, ANNOUNCE_MS);
    },
  };
}

/**
 * @param {Page} page
 * @returns {Section}
 */
export function gaugeSection(page) {
  const title = html("h2", { id: "answer-title", tabindex: -1 }, "Does it fit?");
  const summary = html("div", { class: "summary" });
  const chart = html("div", { class: "gauge" });
  const words = html("ul", { class: "limits" });
  const notes = html("ul", { class: "note" });
  const behind = details("The numbers");
  const live = announcer();
  const element = html(
    "section",
    { class: "panel", id: "answer", tabindex: -1, "aria-labelledby": "answer-title" },
    title,
    summary,
    chart,
    barLegend(KINDS),
    words,
    behind.element,
    notes,
    live.element,
  );
  const items = (/** @type {string[]} */ texts) => texts.map((text) => html("li", {}, text));
  return {
    element,
    update(state, answer) {
      const model = modelOf(page.payload, state);
      const gpu = page.payload.gpus.find((one) => one.id === state.gpu);
      const asked = `${model.id}, ${exact(state.seq)} tokens x ${exact(state.batch)}${state.dtype && `, ${state.dtype}`}`;
      const form = page.form(state);
      notes.replaceChildren(...items(model.warnings));
      const refused = "refused" in answer || "refused" in form;
      for (const part of [chart, words, behind.element]) part.hidden = refused;
      if ("refused" in answer || "refused" in form) {
        const why = "refused" in answer ? answer.refused : "refused" in form ? form.refused : "";
        summary.replaceChildren(html("p", {}, asked), html("p", { class: "refused" }, why));
        live.say(`No answer: ${why}`);
        return;
      }
      const size = `${human(answer.per_gpu.total)} of ${human(answer.fit.usable_bytes)}${state.count > 1 ? " on the fullest GPU" : ""}`;
      const badge = verdictBadge(answer.fit.verdict);
      summary.replaceChildren(html("p", {}, badge, html("strong", {}, ` ${size}`)), html("p", {}, `${asked} on ${state.count} x ${gpu?.name ?? state.gpu}`));
      chart.replaceChildren(gauge(answer, form, state));
      const sentences = limits(answer.fit, state);
      words.replaceChildren(...items(sentences));
      behind.show(() => numbers(answer, form, state));
      live.say(`${badge.textContent}: ${size}. ${sentences.join(" ")}`);
    },
  };
}
