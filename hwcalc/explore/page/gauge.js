// The answer: the verdict in the words of the command line, a bar against the memory of the GPU, and a table of the same numbers.

import { bar, explainedVerdict, kindSwatch, panel, swatch } from "./bars.js";
import { dollars, modelOf } from "./data.js";
import { mendButtons } from "./mend.js";
import { stateWords } from "./pins.js";
import { term } from "./terms.js";
import { partBytes, partsBytes, stateBytes } from "./forms.js";
import { beyondWords, reasonOf } from "./reason.js";
import { UNLIMITED } from "./solve.js";
import { ratesOf, speedWords } from "./speed.js";
import { bytesCells, details, exact, html, human, svg, tableOf } from "./tables.js";

const GAUGE_HEIGHT = 44;
/** The verdict is read out when the sliders have come to rest. */
const ANNOUNCE_MS = 800;
/** A range, where its ends look different. @param {Bytes} low @param {Bytes} high */
function rangeWords(low, high) {
  const [first, last] = [human(low), human(high)];
  return first === last ? null : `${first} to ${last}`;
}

/** @type {Record<string, string>} */
const WORDS = { cache: "cache of tokens", state: "state, the same at every length" };

/**
 * How many at most: for certain, and by the expected values where these say something else. Where a search ends without a limit there is none.
 * @param {number} sure
 * @param {number} expected
 * @param {string} unit
 * @param {string} how
 * @param {number} least Fewer are not known one by one.
 */
function atMost(sure, expected, unit, how, least = 1) {
  const few = least > 1 ? `fewer than ${exact(least)} ${unit}s${how}` : `no ${unit}`;
  const upTo = (/** @type {number} */ limit, /** @type {string} */ units) => (limit >= UNLIMITED ? "without limit" : limit < least ? few : `up to ${exact(limit)}${units}`);
  const units = (/** @type {number} */ limit) => ` ${unit}${limit === 1 ? "" : "s"}${how}`;
  if (sure === expected || expected < least) return `${upTo(sure, units(sure))}.`;
  if (sure < least) return `${upTo(expected, units(expected))} expected, ${least > 1 ? `fewer than ${exact(least)}` : "none"} for certain.`;
  return `${upTo(sure, units(sure))} for certain, ${expected >= UNLIMITED ? "without limit" : exact(expected)} expected.`;
}

/**
 * How far it goes.
 * @param {Answer} answer
 * @param {State} state
 * @param {Page} page
 */
function limits({ fit, sampled }, state, page) {
  const { seq, batch, policy } = state;
  const { least } = page.payload.lengths;
  const alone = batch === 1;
  const form = page.form(state);
  const { max_seq: sureSeq, expected_max_seq: expectedSeq, max_batch: sureBatch, expected_max_batch: expectedBatch } = fit;
  if (sureSeq === null || expectedSeq === null || sureBatch === null || expectedBatch === null) {
    if (sampled === undefined) return [];
    const known = (/** @type {number} */ sure, /** @type {number} */ expected, /** @type {string} */ unit) => (expected === 0 ? `none fits` : `${exact(sure)} ${unit} fit for certain, ${exact(expected)} are expected to`);
    return [
      `Of the lengths that the page knows under a policy: ${known(sampled.max_seq, sampled.expected_max_seq, "tokens")}.`,
      `Of the numbers of sequences: ${known(sampled.max_batch, sampled.expected_max_batch, "at once")}. The command line below finds the limits.`,
    ];
  }
  const longest = () => {
    if ("refused" in form) return atMost(sureSeq, expectedSeq, "token", alone ? "" : " each", least);
    const weights = partsBytes(form, seq, batch, "low", "weights");
    if (policy === null && weights > fit.usable_bytes) return `no length fits, the weights alone are ${human(weights)}.`;
    const whole = sureSeq === form.max_seq && expectedSeq === sureSeq;
    return atMost(sureSeq, expectedSeq, "token", `${alone ? "" : " each"}${whole ? ", the model's own maximum" : ""}`, least);
  };
  return [
    `${alone ? "One sequence" : `${exact(batch)} sequences`}: ${longest()}`,
    `At ${exact(seq)} tokens: ${atMost(sureBatch, expectedBatch, "sequence", " at once")}`,
  ];
}

/** The speed in a line, where there is a bound and it fits. @param {Page} page @param {State} state @param {Answer} answer */
function speedLine(page, state, { fit }) {
  const speed = page.speed(state);
  return speed === null || !page.payload.verdicts[fit.verdict].fits ? [] : [html("li", {}, term("Speed", "speed"), ": ", speedWords(speed, state.batch))];
}

/** The price of the GPUs in a line, and of a million tokens, where one is known. @param {Page} page @param {State} state @param {Answer} answer */
function priceLine(page, state, answer) {
  const { cost } = ratesOf(page, state, answer);
  if (cost === null) return [];
  const { usd_per_million_tokens: usd, usd_per_million_tokens_low: low, usd_per_million_tokens_high: high } = cost;
  const tokens = usd === null ? "" : `, ${dollars(usd)} (${dollars(low ?? 0)} to ${dollars(high ?? 0)}) for a million tokens at ${Math.round(100 * cost.use)}% use`;
  return [html("li", {}, term("Price", "price"), `: ${dollars(cost.usd_per_hour)} an hour, ${dollars(cost.usd_per_month)} a month${tokens} (${cost.price}).`)];
}

/**
 * @param {Answer} answer
 * @param {Form} form
 * @param {State} state
 */
function segmentsOf({ per_gpu, fit }, form, state) {
  const own = Number(stateBytes(form, state.seq, state.batch));
  return [
    { kind: "weights", bytes: per_gpu.weights },
    { kind: "cache", bytes: Number(per_gpu.cache) - own },
    { kind: "state", bytes: own },
    { kind: "activations", bytes: per_gpu.activations },
    { kind: "overhead", bytes: per_gpu.overhead },
    { kind: "free", bytes: Math.max(0, fit.usable_bytes - Number(per_gpu.total)) },
  ].filter(({ bytes }) => bytes > 0);
}

/**
 * @param {Answer} answer
 * @param {Form} form
 * @param {State} state
 */
function gauge(answer, form, state) {
  const { per_gpu, fit } = answer;
  const total = Number(per_gpu.total);
  const [low, high] = [Number(fit.needed_low_bytes), Number(fit.needed_high_bytes)];
  const most = Math.max(form.total_bytes, total, Math.min(high, 2 * form.total_bytes));
  const segments = segmentsOf(answer, form, state);
  const label = `${human(per_gpu.total)} of the ${human(fit.usable_bytes)} that may be used of a GPU with ${human(form.total_bytes)}`;
  const drawn = bar(segments, most, { limit: fit.usable_bytes, label, height: GAUGE_HEIGHT });
  const at = (/** @type {number} */ bytes) => `${Math.min(100, (100 * bytes) / most)}%`;
  const from = Math.min(100, (100 * fit.usable_bytes) / most);
  if (total > fit.usable_bytes) {
    // What is beyond the limit is hatched, whatever it is.
    drawn.append(svg("rect", { class: "beyond-limit", x: at(fit.usable_bytes), y: 0, width: `${Math.max(0, (100 * total) / most - from)}%`, height: GAUGE_HEIGHT, fill: "url(#pattern-beyond)" }));
  }
  const middle = GAUGE_HEIGHT / 2;
  const tick = (/** @type {number} */ bytes) => svg("line", { x1: at(bytes), x2: at(bytes), y1: middle - 7, y2: middle + 7 });
  // A light line under the dark one, so that it can be seen on every colour.
  const whisker = (/** @type {string} */ kind) =>
    svg("g", { class: kind }, svg("line", { x1: at(low), x2: at(high), y1: middle, y2: middle }), tick(low), tick(high));
  if (low !== high) drawn.append(whisker("whisker under"), whisker("whisker"));
  return drawn;
}

/**
 * What each colour and line of the bar is, with its size: the ends too where it is an estimate.
 * @param {Answer} answer
 * @param {Form} form
 * @param {State} state
 */
function sizesLegend(answer, form, state) {
  const { fit, per_gpu } = answer;
  const ends = (/** @type {string} */ kind) => {
    // Under a policy only the sums have ends.
    if (state.policy !== null || (kind !== "weights" && kind !== "activations" && kind !== "overhead")) return "";
    const range = rangeWords(partsBytes(form, state.seq, state.batch, "low", kind), partsBytes(form, state.seq, state.batch, "high", kind));
    return range === null ? "" : ` (${range})`;
  };
  const entry = (/** @type {SVGElement} */ sign, /** @type {string} */ words, /** @type {string} */ size, rest = "") =>
    html("li", {}, sign, html("span", {}, term(words), " ", html("b", {}, size), rest));
  const range = rangeWords(fit.needed_low_bytes, fit.needed_high_bytes);
  const over = Number(per_gpu.total) - fit.usable_bytes;
  const whisker = svg("g", { class: "whisker" }, ...["M1 6 H17", "M1 2 V10", "M17 2 V10"].map((d) => svg("path", { d })));
  return [
    ...segmentsOf(answer, form, state).map(({ kind, bytes }) => entry(kindSwatch(kind), WORDS[kind] ?? kind, human(bytes), ends(kind))),
    entry(swatch(svg("line", { class: "limit", x1: 9, x2: 9, y1: 0, y2: 12 })), "may be used", human(fit.usable_bytes), over > 0 ? `, ${human(over)} too little` : ""),
    range === null ? null : entry(swatch(whisker), "estimate of the whole", range),
  ].filter((item) => item !== null);
}

/**
 * @param {Answer} answer
 * @param {Form} form
 * @param {State} state
 */
function numbers(answer, form, state) {
  const { per_gpu, fit } = answer;
  const same = (/** @type {string} */ name, /** @type {Bytes} */ bytes) => [name, ...bytesCells(bytes), "", ""];
  const range = (/** @type {string} */ name, /** @type {Record<End, number>} */ { low, expected, high }) =>
    low === high ? same(name, expected) : [name, ...bytesCells(expected), human(low), human(high)];
  const ends = (/** @type {(end: End) => number} */ at) => ({ low: at("low"), expected: at("expected"), high: at("high") });
  const part = (/** @type {PlainPart} */ part) => range(`- ${part.name}`, ends((end) => partBytes(form, part, state.seq, state.batch, end)));
  const section = (/** @type {"weights" | "activations" | "overhead"} */ name) => {
    // Under a policy only the sums have ends, and no parts.
    if (state.policy !== null) return [same(name, per_gpu[name])];
    const parts = form.parts.filter((part) => part.section === name);
    const whole = range(name, ends((end) => partsBytes(form, state.seq, state.batch, end, name)));
    return [whole, ...(parts.length > 1 ? parts.map(part) : [])];
  };
  const onHost = form.parts.filter((part) => part.section === "host" && state.policy === null);
  return tableOf({
    caption: "On the fullest GPU",
    head: ["part", "expected", "bytes", "low", "high"],
    rows: [
      ...section("weights"),
      same("cache", per_gpu.cache),
      same("- state in it", stateBytes(form, state.seq, state.batch)),
      ...section("activations"),
      ...section("overhead"),
      ["total", ...bytesCells(fit.needed_bytes), human(fit.needed_low_bytes), human(fit.needed_high_bytes)],
      same("may be used", fit.usable_bytes),
      same("left over", fit.headroom_bytes),
      same("memory that programs see", form.total_bytes),
      same("cache on all GPUs", answer.cache.total_bytes),
      ...onHost.map((one) => range(`in host memory: ${one.name}`, ends((end) => partBytes(form, one, state.seq, state.batch, end)))),
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
 * The answer in one line. It stays in sight while the controls are used.
 * @param {Page} page
 * @returns {Section}
 */
export function summarySection(page) {
  const badge = explainedVerdict(page);
  const size = html("strong", {});
  const refusal = html("span", { class: "refused" });
  const range = html("span", { class: "range" });
  const beyond = html("span", { class: "beyond" });
  const line = html("p", {}, badge.element, " ", size, " ", range, " ", beyond, refusal);
  const lacking = html("ul", { class: "lacking", role: "status" });
  const asked = html("p", {});
  const opening = html("p", { class: "opening" });
  const mend = mendButtons(page);
  const reason = html("p", { class: "reason" });
  const words = html("ul", { class: "limits" });
  const live = announcer();
  const element = html(
    "section",
    { class: "panel summary", id: "answer", tabindex: -1, "aria-labelledby": "answer-title" },
    lacking,
    html("h2", { id: "answer-title", class: "visually-hidden" }, "Does it fit?"),
    line,
    asked,
    opening,
    reason,
    words,
    mend.element,
    live.element,
  );
  // What a link leads to begins below the answer, which covers the top of the window.
  new ResizeObserver(() => document.documentElement.style.setProperty("--answer", `${element.offsetHeight}px`)).observe(element);
  return {
    element,
    update(state, answer) {
      asked.textContent = `${state.model}: ${stateWords(page.payload, state)}`;
      opening.textContent = page.opening();
      opening.hidden = opening.textContent === "";
      mend.show(state);
      const refused = "refused" in answer;
      const missing = page.lacking();
      lacking.replaceChildren(...missing.map((text) => html("li", {}, text)));
      lacking.hidden = missing.length === 0;
      beyond.textContent = beyondWords(page.payload, modelOf(page.payload, state), state);
      beyond.hidden = refused || beyond.textContent === "";
      for (const part of [words, badge.element, size, range, reason]) part.hidden = refused;
      refusal.hidden = !refused;
      if (refused) {
        refusal.textContent = answer.refused;
        live.say(`No answer: ${answer.refused}`);
        return;
      }
      const { per_gpu, fit } = answer;
      const form = page.form(state);
      size.textContent = `${human(per_gpu.total)} of ${human(fit.usable_bytes)}${state.count > 1 ? " on the fullest GPU" : ""}`;
      const ends = rangeWords(fit.needed_low_bytes, fit.needed_high_bytes);
      range.textContent = ends === null ? "" : `estimate ${ends}`;
      reason.textContent = "refused" in form ? "" : reasonOf(answer, form, state);
      reason.hidden = reason.textContent === "";
      badge.show(fit.verdict);
      const sentences = limits(answer, state, page);
      words.replaceChildren(...sentences.map((text) => html("li", {}, text)), ...speedLine(page, state, answer), ...priceLine(page, state, answer));
      live.say(`${badge.element.textContent}: ${[beyond.textContent, size.textContent, reason.textContent].filter(Boolean).join(". ")}. ${sentences.join(" ")}`);
    },
  };
}

/**
 * @param {Page} page
 * @returns {Section}
 */
export function gaugeSection(page) {
  const chart = html("div", { class: "gauge" });
  const notes = html("ul", { class: "note" });
  // On a narrow screen the summary has no room for them.
  const words = html("ul", { class: "limits narrow" });
  const mend = mendButtons(page);
  mend.element.classList.add("narrow");
  const legend = html("ul", { class: "bar-legend" });
  const behind = details("Table: the fullest GPU");
  const element = panel("gauge", "What fills the GPU", words, mend.element, chart, legend, behind.element, notes);
  const whole = "The curves and layers below are those of the whole cache, without the policy.";
  return {
    element,
    update(state, answer) {
      const { warnings } = modelOf(page.payload, state);
      const form = page.form(state);
      const open = "refused" in form ? [] : form.open;
      const texts = [...open, ...warnings, ...(state.policy === null ? [] : [whole])];
      notes.hidden = texts.length === 0;
      notes.replaceChildren(...texts.map((text) => html("li", {}, text)));
      element.hidden = "refused" in answer || "refused" in form;
      if ("refused" in answer || "refused" in form) return;
      const full = Number(answer.per_gpu.total) > answer.fit.usable_bytes;
      const share = (100 * answer.fit.usable_bytes) / Math.max(form.total_bytes, Number(answer.per_gpu.total), Math.min(Number(answer.fit.needed_high_bytes), 2 * form.total_bytes));
      const mark = html("span", { class: share > 50 ? "limit-mark left" : "limit-mark" }, `${human(answer.fit.usable_bytes)} may be used`);
      mark.style.setProperty("--at", `${share}%`);
      chart.replaceChildren(mark, gauge(answer, form, state));
      chart.classList.toggle("full", full);
      legend.replaceChildren(...sizesLegend(answer, form, state));
      const sentences = [reasonOf(answer, form, state), ...limits(answer, state, page)].filter(Boolean);
      words.replaceChildren(...sentences.map((text) => html("li", {}, text)), ...speedLine(page, state, answer), ...priceLine(page, state, answer));
      mend.show(state);
      behind.show(() => numbers(answer, form, state));
    },
  };
}
