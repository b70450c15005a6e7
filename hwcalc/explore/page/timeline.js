// A replay over time, the page of `kvplan simulate --plot FILE.html`: how full the pool is, and how many requests run and wait.

import { panel } from "./bars.js";
import { pixelsOf } from "./marks.js";
import { details, exact, html, tableOf } from "./tables.js";
import { onTheme, themeButton } from "./theme.js";

const CHART_HEIGHT = 260;

/** Two digits after the point, where there are any. @param {number} value */
function rounded(value) {
  return value.toLocaleString("en-US", { maximumFractionDigits: 2 });
}

/** @param {Timeline} timeline @returns {TimeChart[]} */
function chartsOf({ use, use_max, running, waiting }) {
  const percent = (/** @type {number[]} */ shares) => shares.map((share) => 100 * share);
  return [
    { id: "pool", title: "The pool", unit: "% in use", least: 100, lines: [{ label: "fullest", values: percent(use_max), area: true }, { label: "mean", values: percent(use) }] },
    { id: "requests", title: "Requests", unit: "requests", least: 1, lines: [{ label: "running", values: running }, { label: "waiting", values: waiting, dash: [6, 3] }] },
  ];
}

/**
 * A panel with one chart, as wide as the page. The pointer shows the same moment in all charts, and dragging across one zooms it.
 * @param {Timeline} timeline @param {TimeChart} chart
 */
function sectionOf({ times, unit: moment }, { id, title, unit, least, lines }) {
  const most = lines.map(({ label, values }) => `${label} at most ${rounded(Math.max(...values))}`).join(", ");
  const box = html("div", { class: "chart timeline", role: "img", "aria-label": `${title}, ${unit}: ${most}. All numbers are in the table below.` });
  const table = details(`Table: ${title.toLowerCase()} over time`);
  table.show(() => tableOf({ caption: `${title} (${unit})`, head: [moment, ...lines.map(({ label }) => label)], rows: times.map((time, place) => [rounded(time), ...lines.map(({ values }) => rounded(values[place] ?? 0))]) }));
  const element = panel(id, title, box, table.element);
  /** @type {uPlot | null} */
  let drawn = null;
  const draw = () => {
    drawn?.destroy();
    const color = (/** @type {string} */ name) => pixelsOf(element, `var(--${name})`);
    const axis = { stroke: color("ink-soft"), font: `12px ${getComputedStyle(element).fontFamily}`, grid: { stroke: color("grid"), width: 1 }, ticks: { stroke: color("grid"), width: 1 } };
    const value = (/** @type {uPlot} */ _, /** @type {number | null} */ number) => (number === null ? "-" : rounded(number));
    /** @type {uPlot.Options} */
    const options = {
      width: Math.max(200, box.clientWidth),
      height: CHART_HEIGHT,
      cursor: { y: false, sync: { key: "time" } },
      scales: { x: { time: false }, y: { range: (_, __, highest) => [0, Math.max(least, highest) * 1.05] } },
      axes: [{ ...axis, label: moment }, { ...axis, label: unit, values: (_, splits) => splits.map(exact) }],
      series: [
        { label: moment, value },
        ...lines.map(({ label, dash, area }, place) => ({ label, value, width: 1.5, points: { show: false }, stroke: color(`series-${place + 1}`), ...(dash && { dash }), ...(area && { fill: color("raised") }) })),
      ],
    };
    drawn = new uPlot(options, [times, ...lines.map(({ values }) => values)], box);
  };
  new ResizeObserver(() => drawn?.width !== Math.max(200, box.clientWidth) && draw()).observe(box);
  onTheme(draw);
  return element;
}

const main = document.querySelector("main");
/** @type {Timeline} */
const timeline = JSON.parse(document.getElementById("payload")?.textContent ?? "{}");
document.querySelector("header")?.append(themeButton());
main?.replaceChildren(html("p", { class: "lead", id: "answer" }, timeline.caption), ...chartsOf(timeline).map((chart) => sectionOf(timeline, chart)));
