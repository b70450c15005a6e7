// Any model of the catalog or of the Hub, where `kvplan explore --serve` is behind the page.

import { unpacked } from "./data.js";
import { wantedBy } from "./state.js";
import { html } from "./tables.js";

const PROGRESS_MS = 700;

/**
 * What the server answers. An error says in words what went wrong.
 * @param {string} address Relative to that of the page, which has the token.
 * @returns {Promise<any>}
 */
async function asked(address) {
  const response = await fetch(address, { cache: "no-store" }).catch(() => null);
  if (response === null) throw new Error("The server does not answer. Start it again: kvplan explore MODEL --serve");
  const answer = await response.json().catch(() => null);
  if (response.ok && answer !== null) return answer;
  const { message = `The server answers ${response.status}.`, hint = "" } = answer?.error ?? {};
  throw new Error(`${message} ${hint}`.trim());
}

/**
 * A field for the id of a model, which is then asked for and put into the page.
 * @param {Page} page
 * @returns {Section}
 */
export function liveSection(page) {
  const known = (/** @type {unknown} */ id) => page.payload.models.some((model) => model.id === id);
  const names = html("datalist", { id: "catalog" });
  const field = html("input", { id: "live-model", type: "search", list: "catalog", autocomplete: "off", spellcheck: "false" });
  const status = html("p", { class: "note", role: "status" });
  const form = html("form", { class: "field asks" }, html("label", { for: "live-model" }, "Any model, by its id or short name"), field, html("button", { id: "live-show" }, "Show"));
  const element = html("section", { class: "panel", "aria-label": "More models" }, form, names, status);
  if (!page.payload.live) {
    element.hidden = true;
    return { element, update: () => undefined };
  }
  let newest = 0;
  /**
   * @param {string} id
   * @param {(found: string) => void} choose
   */
  const show = async (id, choose) => {
    const turn = ++newest;
    let found = id;
    try {
      if (!known(id)) {
        status.textContent = `Asking for ${id} ...`;
        const begun = Date.now();
        const watch = setInterval(async () => {
          const { doing = "" } = await asked(`progress?id=${encodeURIComponent(id)}`).catch(() => ({}));
          if (turn === newest && doing !== "" && !known(id)) status.textContent = `${id}: ${doing}, ${Math.round((Date.now() - begun) / 1000)} s ...`;
        }, PROGRESS_MS);
        try {
          const other = unpacked(await asked(`model?id=${encodeURIComponent(id)}`));
          page.add(other);
          // A short name leads to a model with another id.
          found = other.models[0]?.id ?? id;
        } finally {
          clearInterval(watch);
        }
      }
      // Whoever asked for another one meanwhile gets that.
      if (turn !== newest) return;
      status.textContent = `${found} is in the page.`;
      choose(found);
    } catch (error) {
      if (turn === newest) status.textContent = error instanceof Error ? error.message : String(error);
    }
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const id = field.value.trim();
    if (id !== "") void show(id, (model) => page.set({ model }));
  });
  /** A link may name a model that the page does not have yet. */
  const follow = () => {
    const wanted = wantedBy(location.hash);
    const { model } = wanted;
    if (typeof model === "string" && !known(model)) void show(model, (found) => page.take({ ...wanted, model: found }));
  };
  addEventListener("hashchange", follow);
  follow();
  asked("models").then(
    ({ models }) => names.replaceChildren(...models.map((/** @type {{ id: string }} */ { id }) => html("option", { value: id }))),
    (error) => { status.textContent = error.message; },
  );
  return { element, update: () => undefined };
}
