// The command lines of the state, to copy, and what else leaves the page.

import { copyText, shareButtons } from "./share.js";
import { html } from "./tables.js";

const SAID_MS = 2000;

/** A command line broken at its blanks only: an option and its value stay together. @param {string} line */
function unbroken(line) {
  const words = line.split(" ");
  /** @type {string[]} */
  const parts = [];
  for (const word of words) {
    const last = parts.at(-1);
    if (last !== undefined && /^--?[a-z][\w-]*$/i.test(last) && !word.startsWith("-")) parts[parts.length - 1] = `${last} ${word}`;
    else parts.push(word);
  }
  return parts.flatMap((part, place) => [place === 0 ? "" : " ", html("span", { class: "word" }, part)]);
}

/**
 * @param {Page} page
 * @returns {Section}
 */
export function commandSection(page) {
  const said = html("span", { class: "note", role: "status" });
  let timer = 0;
  const tell = (/** @type {string} */ words) => {
    said.textContent = words;
    clearTimeout(timer);
    timer = setTimeout(() => (said.textContent = ""), SAID_MS);
  };
  /** @param {string} id @param {string} button */
  const copied = (id, button) => {
    const line = html("code", { id, tabindex: 0 });
    const copy = () => void copyText(line.textContent ?? "", line).then((done) => tell(done ? "Copied." : "Selected: copy it with Ctrl+C."));
    return { line, element: html("div", { class: "command" }, html("pre", {}, line), html("button", { type: "button", id: button, onclick: copy }, "Copy")) };
  };
  const plan = copied("command-line", "copy");
  const start = copied("start-line", "copy-start");
  const started = html("h3", {}, "What starts it");
  const remark = html("p", { class: "note" });
  const element = html(
    "section",
    { class: "panel", id: "command", "aria-labelledby": "command-title" },
    html("h2", { id: "command-title" }, "The same on the command line"),
    plan.element,
    started,
    start.element,
    remark,
    shareButtons(page, said, plan.line),
    said,
  );
  return {
    element,
    update(state, answer) {
      plan.line.replaceChildren(...unbroken(page.command(state)));
      const fits = !("refused" in answer) && (answer.fit.verdict === "fits" || answer.fit.verdict === "probably");
      const found = fits ? page.start(state) : null;
      for (const part of [started, start.element, remark]) part.hidden = found === null;
      start.line.replaceChildren(...(found === null ? [] : unbroken(found.command)));
      remark.textContent = found?.remark ?? "";
      remark.hidden ||= remark.textContent === "";
    },
  };
}
