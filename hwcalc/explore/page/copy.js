// The command line of the state, to copy.

import { html } from "./tables.js";

const SAID_MS = 2000;

/**
 * Into the clipboard; without a clipboard (a page from disk may have none) by the selection.
 * @param {HTMLElement} element
 */
async function copied(element) {
  try {
    await navigator.clipboard.writeText(element.textContent ?? "");
    return true;
  } catch {
    const selection = getSelection();
    selection?.selectAllChildren(element);
    return document.execCommand("copy");
  }
}

/**
 * @param {Page} page
 * @returns {Section}
 */
export function commandSection(page) {
  const line = html("code", { id: "command-line", tabindex: 0 });
  const said = html("span", { class: "note", role: "status" });
  let timer = 0;
  const copy = async () => {
    said.textContent = (await copied(line)) ? "Copied." : "Selected: copy it with Ctrl+C.";
    clearTimeout(timer);
    timer = setTimeout(() => (said.textContent = ""), SAID_MS);
  };
  const element = html(
    "section",
    { class: "panel", id: "command", "aria-labelledby": "command-title" },
    html("h2", { id: "command-title" }, "The same on the command line"),
    html("div", { class: "command" }, html("pre", {}, line), html("button", { type: "button", id: "copy", onclick: copy }, "Copy"), said),
  );
  return {
    element,
    update(state) {
      line.textContent = page.command(state);
    },
  };
}
