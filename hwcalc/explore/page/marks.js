// What is drawn over the lines of the chart: their numbers, the chosen length, where a model no longer fits.

import { exact } from "./tables.js";

const COLORS = 8;
const DASHES = [[], [7, 4], [2, 3]];
const MARK = 5;
const MOST_LETTERS = 20;
const LINE_HEIGHT = 13;

/** How the line of the n-th model looks: another colour for eight of them, then another dash. @param {number} place */
export function lineStyle(place) {
  return { color: (place % COLORS) + 1, dash: DASHES[Math.floor(place / COLORS) % DASHES.length] ?? [] };
}

/** A colour as a canvas takes it: of `light-dark(...)` it knows nothing. @param {HTMLElement} element @param {string} color */
export function pixelsOf(element, color) {
  const probe = element.appendChild(document.createElement("i"));
  probe.style.color = color;
  // Where the system forces colours, every text would have its one.
  probe.style.forcedColorAdjust = "none";
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/**
 * Text with a border of the ground's colour, so that a line behind it does not cross it.
 * @param {CanvasRenderingContext2D} context @param {string} text @param {number} x @param {number} y @param {string} color @param {string} ground
 */
function write(context, text, x, y, color, ground) {
  context.lineWidth = 4 * devicePixelRatio;
  context.lineJoin = "round";
  context.strokeStyle = ground;
  context.strokeText(text, x, y);
  context.fillStyle = color;
  context.fillText(text, x, y);
}

/** The name of a line, short enough for the edge of the chart. @param {CurveLine} line */
function nameOf({ model }) {
  const name = model.id.split("/").at(-1) ?? model.id;
  return name.length > MOST_LETTERS ? `${name.slice(0, MOST_LETTERS - 1)}…` : name;
}

/** @param {CanvasRenderingContext2D} context @param {number} x @param {number} y @param {number} size @param {string} color */
function cross(context, x, y, size, color) {
  context.beginPath();
  context.strokeStyle = color;
  context.lineWidth = 2.5 * devicePixelRatio;
  context.moveTo(x - size, y - size);
  context.lineTo(x + size, y + size);
  context.moveTo(x + size, y - size);
  context.lineTo(x - size, y + size);
  context.stroke();
}

/**
 * Moves labels down that would cover each other.
 * @param {{ x: number, y: number, width: number }[]} labels @param {number} height
 */
function apart(labels, height) {
  labels.sort((one, other) => one.y - other.y);
  for (const [place, label] of labels.entries()) {
    for (const above of labels.slice(0, place)) {
      const meet = above.x < label.x + label.width && label.x < above.x + above.width;
      if (meet && label.y - above.y < height) label.y = above.y + height;
    }
  }
}

/**
 * @param {uPlot} chart
 * @param {Drawing} drawing
 * @param {Palette} palette
 * @param {boolean} named whether there is room for names at the ends of lines
 */
export function marksOf(chart, { curves, state, shown, hidden }, palette, named) {
  const { ink, surface, lines } = palette;
  const context = chart.ctx;
  const scale = devicePixelRatio;
  const at = (/** @type {number} */ tokens, /** @type {number} */ bytes) => ({ x: chart.valToPos(tokens, "x", true), y: chart.valToPos(bytes, "y", true) });
  const { left, top, width, height } = chart.bbox;
  context.save();
  context.beginPath();
  context.rect(left - 12 * scale, top - 12 * scale, width + (named ? 170 : 36) * scale, height + 12 * scale);
  context.clip();
  context.font = `600 ${12 * scale}px ${palette.font}`;
  context.textAlign = "left";

  const now = chart.valToPos(state.seq, "x", true);
  context.strokeStyle = ink;
  context.lineWidth = scale;
  context.setLineDash([3 * scale, 3 * scale]);
  context.beginPath();
  context.moveTo(now, top);
  context.lineTo(now, top + height);
  context.stroke();
  context.setLineDash([]);
  /** Where words stand already. @type {{ from: number, to: number, y: number }[]} */
  const taken = [];
  /**
   * Words beside a place, on the side where there is more room, and as near to its height as no other words are.
   * @param {string} words @param {number} x @param {number} distance @param {number} wanted
   */
  const beside = (words, x, distance, wanted) => {
    const size = context.measureText(words).width;
    const from = x > left + width / 2 ? x - distance * scale - size : x + distance * scale;
    const line = LINE_HEIGHT * scale;
    const near = Math.min(top + height - 8 * scale, Math.max(top + 12 * scale, wanted));
    const heights = Array.from({ length: Math.ceil(height / line) }, (_, place) => [near - place * line, near + place * line]).flat();
    const free = (/** @type {number} */ y) => taken.every((one) => from >= one.to || from + size <= one.from || Math.abs(y - one.y) > line - 1);
    const y = heights.find((one) => one > top && one < top + height && free(one)) ?? near;
    write(context, words, from, y, ink, surface);
    taken.push({ from, to: from + size, y });
  };
  beside(`${exact(state.seq)} tokens`, now, 6, top + height);
  const room = curves.room.find((bytes) => bytes !== null);
  if (room !== undefined && room !== null) beside(shown === "total" ? "may be used of the GPU" : "left for the cache", left, 4, at(1, room).y - 8 * scale);

  const visible = curves.lines.filter((line) => !hidden.has(line.model.id));
  const labels = visible.flatMap((line) => {
    const bytes = line.bytes(line.end) ?? Math.max(...line.values.map(Number));
    return bytes === 0 ? [] : [{ ...at(line.end, bytes), text: named ? nameOf(line) : String(line.place + 1) }];
  });
  for (const line of visible) {
    const chosen = line.model.id === state.model;
    const color = lines[line.place] ?? ink;
    const here = line.bytes(state.seq);
    if (chosen && here !== null) {
      const { x, y } = at(state.seq, here);
      context.beginPath();
      context.fillStyle = color;
      context.strokeStyle = surface;
      context.lineWidth = 2 * scale;
      context.arc(x, y, MARK * scale, 0, 2 * Math.PI);
      context.fill();
      context.stroke();
    }
    // A model that fits nowhere has no last length: the words beside the chart say so.
    if (line.fits >= line.end || (line.fits === 0 && !chosen)) continue;
    const tokens = Math.max(line.fits, curves.lengths[0] ?? 1);
    const { x, y } = at(tokens, line.bytes(tokens) ?? 1);
    cross(context, x, y, (chosen ? MARK + 1 : MARK - 1) * scale, color);
    if (!chosen) continue;
    beside(line.fits === 0 ? "fits at no length" : `fits up to ${exact(line.fits)}`, x, 12, y + (x > left + width / 2 ? -10 : 16) * scale);
  }
  context.font = `600 ${11 * scale}px ${palette.font}`;
  const wide = labels.map((label) => ({ ...label, width: context.measureText(label.text).width + 4 * scale }));
  apart(wide, LINE_HEIGHT * scale);
  for (const { x, y, text } of wide) write(context, text, x + 4 * scale, y + 4 * scale, ink, surface);
  context.restore();
}
