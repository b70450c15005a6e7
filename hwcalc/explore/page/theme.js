// Light or dark: by the system, until somebody presses the button. The choice is kept nowhere.

import { html } from "./tables.js";

const DARK = matchMedia("(prefers-color-scheme: dark)");

/** Whether the page is dark now. */
function isDark() {
  const chosen = document.documentElement.getAttribute("data-theme");
  return chosen === null ? DARK.matches : chosen === "dark";
}

/** Calls back when colours have changed: a canvas has to be drawn anew. @param {() => void} callback */
export function onTheme(callback) {
  DARK.addEventListener("change", callback);
  document.addEventListener("themechange", callback);
}

/** The button for the header. */
export function themeButton() {
  const words = () => `${isDark() ? "Light" : "Dark"} colours`;
  const button = html("button", {
    type: "button",
    id: "theme",
    class: "theme",
    onclick: () => {
      document.documentElement.setAttribute("data-theme", isDark() ? "light" : "dark");
      document.dispatchEvent(new Event("themechange"));
    },
  });
  const name = () => (button.textContent = words());
  onTheme(name);
  name();
  return button;
}
