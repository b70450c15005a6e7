// What a word means, on hover and on focus. One bubble for the whole page, which the element names as its description.

import { html } from "./tables.js";

const HINT_GAP = 6;
const HINT_MARGIN = 8;

const hintBubble = () => document.getElementById("hint") ?? document.body.appendChild(html("div", { id: "hint", role: "tooltip", hidden: true }));

/** @param {Element} element */
function showHint(element) {
  const bubble = hintBubble();
  bubble.textContent = element.getAttribute("data-hint");
  bubble.hidden = !bubble.textContent;
  const box = element.getBoundingClientRect();
  const own = bubble.getBoundingClientRect();
  const left = Math.max(HINT_MARGIN, Math.min(box.left, window.innerWidth - own.width - HINT_MARGIN));
  const above = box.top - own.height - HINT_GAP;
  bubble.style.left = `${left + window.scrollX}px`;
  bubble.style.top = `${(above > 0 ? above : box.bottom + HINT_GAP) + window.scrollY}px`;
  element.setAttribute("aria-describedby", "hint");
}

/** @param {Element} element */
function hideHint(element) {
  hintBubble().hidden = true;
  element.removeAttribute("aria-describedby");
}

/**
 * Gives an element a hint, or another one. An element that takes no focus by itself gets a place in the order of keys.
 * @template {HTMLElement | SVGElement} E @param {E} element @param {string} text @returns {E}
 */
export function hint(element, text) {
  const first = !element.hasAttribute("data-hint");
  element.setAttribute("data-hint", text);
  if (!first) return element;
  if (element.tabIndex < 0) element.setAttribute("tabindex", "0");
  for (const event of ["pointerenter", "focus"]) element.addEventListener(event, () => showHint(element));
  for (const event of ["pointerleave", "blur"]) element.addEventListener(event, () => hideHint(element));
  element.addEventListener("keydown", (event) => /** @type {KeyboardEvent} */ (event).key === "Escape" && hideHint(element));
  return element;
}
