// One store, one loop: a change of the state is drawn in the next frame, by every section.

import { answersOf } from "./answer.js";
import { commandOf, startOf } from "./command.js";
import { controlsSection } from "./controls.js";
import { commandSection } from "./copy.js";
import { formsOf, modelOf, unpacked } from "./data.js";
import { enginesSection } from "./engines.js";
import { gaugeSection, summarySection } from "./gauge.js";
import { gpusSection } from "./gpus.js";
import { lengthsSection } from "./lengths.js";
import { liveSection } from "./live.js";
import { countsOf, firstNamed, smallest } from "./mend.js";
import { modelsSection } from "./models.js";
import { pinsSection } from "./pins.js";
import { policiesSection } from "./policies.js";
import { savedSection } from "./saved.js";
import { updaterOf } from "./sight.js";
import { changedState, fragmentOf, lackingOf, validState, wantedBy } from "./state.js";
import { strategiesSection } from "./strategies.js";
import { speedOf } from "./speed.js";
import { stripSection } from "./strip.js";
import { html } from "./tables.js";
import { themeButton } from "./theme.js";
import { variantsSection } from "./variants.js";

/** @type {((page: Page) => Section)[]} */
const SECTIONS = [
  summarySection,
  liveSection,
  gaugeSection,
  controlsSection,
  commandSection,
  pinsSection,
  modelsSection,
  gpusSection,
  enginesSection,
  lengthsSection,
  stripSection,
  variantsSection,
  policiesSection,
  strategiesSection,
  savedSection,
];
/** How long a slider rests before the address follows. */
const REST_MS = 250;

/**
 * The store of a payload, and what happens after a change.
 * @param {Payload} payload
 * @param {Wanted} wanted
 * @param {(state: State, before: State, settled: boolean) => void} changed
 * @returns {Page}
 */
function pageOf(payload, wanted, changed) {
  /** @type {Map<Model, Payload>} */
  const later = new Map();
  const pools = (/** @type {Model} */ model) => later.get(model) ?? payload;
  const forms = formsOf(payload, pools);
  const valid = (/** @type {Wanted} */ state) => validState(payload, forms, state);
  const other = (/** @type {State} */ state, /** @type {Partial<State>} */ change) => changedState(payload, forms, state, change);
  /** @type {Page} */
  const page = {
    payload,
    pools,
    add(other) {
      for (const model of other.models) {
        if (payload.models.some((known) => known.id === model.id)) continue;
        later.set(model, other);
        payload.models.push(model);
      }
    },
    state: () => state,
    set(change, settled = true) {
      const before = state;
      state = other(state, change);
      const { seq, batch, count, tp, pp, hand = null } = change;
      lacking = settled ? lackingOf(payload, { seq, batch, count, tp, pp, hand }, state) : [];
      opening = "";
      changed(state, before, settled);
    },
    take(wanted) {
      const before = state;
      [state, opening] = opened(wanted);
      lacking = lackingOf(payload, wanted, state);
      changed(state, before, false);
    },
    lacking: () => lacking,
    form: forms,
    ...answersOf(payload, pools, forms),
    valid,
    changed: other,
    command: (state) => commandOf(payload, state),
    start: (state) => startOf(payload, pools, state),
    speed: (state) => speedOf(pools(modelOf(payload, state)), state),
    opening: () => opening,
  };
  /**
   * A state in which nobody chose the GPU has the smallest that surely holds it; of nodes that the user named, the first.
   * @param {Wanted} wanted
   * @returns {[State, string]}
   */
  const opened = (wanted) => {
    const plain = valid(wanted);
    const named = payload.nodes.length > 0;
    if (wanted.gpu !== undefined || (named && wanted.count !== undefined)) return [plain, ""];
    const counts = (wanted.count ?? payload.first.count) === undefined ? countsOf(payload) : [plain.count];
    const found = named ? firstNamed(page, plain) : smallest(page, plain, counts);
    if (found === null) return [plain, ""];
    const { gpu, count, name } = found;
    if ((named || payload.gpus.length === 1) && gpu === plain.gpu && count === plain.count) return [plain, ""];
    const why = named ? "the first of the named nodes" : "the smallest of this page";
    return [valid({ ...wanted, gpu, count }), `Chosen for you: ${count > 1 ? `${count} × ` : ""}${name}, ${why} that surely holds it.`];
  };
  let [state, opening] = opened(wanted);
  let lacking = lackingOf(payload, wanted, state);
  return page;
}

/**
 * Writes states into the address. Changes of one and the same thing are one step of the history.
 * @param {() => State} now
 */
function addressOf(now) {
  let timer = 0;
  /** @type {string | null} */
  let stepOf = null;
  const write = (/** @type {string} */ what) => {
    const fragment = fragmentOf(now());
    if (fragment === location.hash) return;
    if (what === stepOf) history.replaceState(null, "", fragment);
    else history.pushState(null, "", fragment);
    stepOf = what;
  };
  return {
    /** @param {State} state @param {State} before @param {boolean} settled */
    follow(state, before, settled) {
      const names = /** @type {(keyof State)[]} */ (Object.keys(state));
      const what = names.filter((name) => JSON.stringify(state[name]) !== JSON.stringify(before[name])).join() || (stepOf ?? "");
      clearTimeout(timer);
      if (settled) write(what);
      // Browsers stop scripts that write the address at every move of a slider.
      else timer = setTimeout(() => write(what), REST_MS);
    },
    /** The state came from the address: the next change is a step of its own. */
    came() {
      clearTimeout(timer);
      stepOf = null;
    },
  };
}

/**
 * A section that fails says so, and leaves the others alone.
 * @param {(page: Page) => Section} make
 * @param {Page} page
 * @returns {Section}
 */
function guarded(make, page) {
  const failed = (/** @type {unknown} */ error) => {
    console.error(error);
    return html("p", { class: "refused", role: "alert" }, `This part of the page failed: ${error instanceof Error ? error.message : error}`);
  };
  /** @type {Section} */
  let section;
  try {
    section = make(page);
  } catch (error) {
    return { element: failed(error), update: () => undefined };
  }
  /** @type {HTMLElement | null} */
  let message = null;
  return {
    element: section.element,
    update(state, answer) {
      message?.remove();
      message = null;
      try {
        section.update(state, answer);
      } catch (error) {
        message = failed(error);
        section.element.prepend(message);
      }
    },
  };
}

/** The fragment is the state, so a link inside the page moves the focus by itself. */
function followSkips() {
  for (const link of document.querySelectorAll("a.skip")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      document.getElementById(link.getAttribute("href")?.slice(1) ?? "")?.focus();
    });
  }
}

/**
 * The table of contents: links that unfold a panel and go to it. The fragment is the state, so they move by themselves.
 * @param {HTMLElement[]} elements
 */
function contentsOf(elements) {
  const entries = elements.flatMap((element) => {
    const title = element.querySelector("h2:not(.visually-hidden)")?.textContent;
    return title && element.id ? [{ element, title }] : [];
  });
  const items = entries.map(({ element, title }) => {
    const onclick = (/** @type {Event} */ event) => {
      event.preventDefault();
      element.dispatchEvent(new Event("unfold"));
      element.scrollIntoView();
      element.querySelector("button")?.focus({ preventScroll: true });
    };
    return html("li", {}, html("a", { href: `#${element.id}`, onclick }, title));
  });
  return html("nav", { class: "contents", "aria-label": "Contents" }, html("ul", {}, ...items));
}

/** @param {HTMLElement} root */
function start(root) {
  /** @type {Payload} */
  const payload = unpacked(JSON.parse(document.getElementById("payload")?.textContent ?? "{}"));
  let drawn = 0;
  const heading = document.querySelector("h1");
  const draw = () => {
    drawn = 0;
    const state = page.state();
    const answer = page.answer(state);
    document.title = `${modelOf(payload, state).id}: kvplan`;
    if (heading !== null) heading.textContent = modelOf(payload, state).id;
    update(state, answer);
  };
  const address = addressOf(() => page.state());
  const page = pageOf(payload, wantedBy(location.hash), (state, before, settled) => {
    address.follow(state, before, settled);
    drawn ||= requestAnimationFrame(draw);
  });
  const sections = SECTIONS.map((make) => guarded(make, page));
  document.querySelector("header")?.append(themeButton());
  root.replaceChildren(...sections.map((section) => section.element));
  document.querySelector("header")?.append(contentsOf(sections.map((section) => section.element)));
  const { update, settled } = updaterOf(sections);
  const arrive = () => {
    if (fragmentOf(page.state()) === location.hash) return;
    page.take(wantedBy(location.hash));
    address.came();
  };
  addEventListener("popstate", arrive);
  addEventListener("hashchange", arrive);
  const whole = (/** @type {Partial<State> | undefined} */ state) => page.changed(page.state(), state ?? {});
  globalThis.kvplan = {
    payload,
    state: () => page.state(),
    set: (change) => page.set(change),
    answer: (state) => page.answer(whole(state)),
    command: (state) => page.command(whole(state)),
    speed: (state) => page.speed(whole(state)),
    settled: () => drawn === 0 && settled(),
  };
  followSkips();
  draw();
}

const main = typeof document === "undefined" ? null : document.querySelector("main");
if (main !== null) start(main);
