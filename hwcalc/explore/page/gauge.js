import { html } from "./tables.js";
/** @param {Page} page @returns {Section} */
export function gaugeSection(page) {
  const element = html("section", { class: "panel" });
  return { element, update: () => void page };
}
