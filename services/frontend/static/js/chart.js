/** A chart of the last ten minutes: two lines at most, with axes, and a cursor that reads them. */

import { make } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const SPAN_S = 600;
const GAP_S = 35; // longer without a point, and the line is broken
const LEFT_PX = 58;
const RIGHT_PX = 10;
const TOP_PX = 10;
const BOTTOM_PX = 22;
const NAMES = ["first", "second"];

function draw(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

/** The least of 1, 2, 5, 10, … that is not below `value`. */
export function roundTop(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= value * 0.999);
}

export class Chart {
  element;
  #title;
  #lines;
  #written;
  #topMin;
  #svg = draw("svg", { class: "chart", role: "img" });
  #legend = make("p", { className: "legend" });
  #points = [];
  #nowS = 0;
  #cursorPx = null;

  /**
   * @param {string} title
   * @param {{name: string, label: string}[]} lines which figures of a point.
   * @param {(value: number) => string} written with its unit.
   * @param {number} topMin the least that the axis reaches to.
   */
  constructor(title, lines, written, topMin = 0) {
    this.#title = title;
    this.#lines = lines;
    this.#written = written;
    this.#topMin = topMin;
    this.element = make("section", { "aria-label": title }, make("h2", { textContent: title }));
    this.element.append(this.#svg, this.#legend);
    const move = (event) => {
      this.#cursorPx = event.clientX - this.#svg.getBoundingClientRect().left;
      this.#draw();
    };
    this.#svg.addEventListener("pointermove", move);
    this.#svg.addEventListener("pointerdown", move);
    this.#svg.addEventListener("pointerleave", () => {
      this.#cursorPx = null;
      this.#draw();
    });
    new ResizeObserver(() => this.#draw()).observe(this.#svg);
  }

  /** @param {object[]} points `{at, ...figures}`, the oldest first; a figure may be null. */
  show(points, nowS) {
    this.#points = points;
    this.#nowS = nowS;
    this.#draw();
  }

  #draw() {
    const { width, height } = this.#svg.getBoundingClientRect();
    if (width === 0 || this.#points.length === 0) return;
    const values = this.#lines.flatMap(({ name }) => this.#points.map((point) => point[name] ?? 0));
    const top = Math.max(roundTop(Math.max(...values)), this.#topMin);
    const right = width - RIGHT_PX;
    const bottom = height - BOTTOM_PX;
    const x = (atS) => right - ((this.#nowS - atS) / SPAN_S) * (right - LEFT_PX);
    const y = (value) => bottom - (value / top) * (bottom - TOP_PX);
    const parts = this.#axes(top, { x, y, right, bottom });
    for (const [at, { name }] of [...this.#lines.entries()].reverse()) {
      parts.push(...this.#line(name, NAMES[at], { x, y, bottom }));
    }
    const read = this.#read(x);
    if (this.#cursorPx !== null && read) {
      const px = x(read.at);
      parts.push(draw("line", { class: "cursor", x1: px, x2: px, y1: TOP_PX, y2: bottom }));
      for (const [at, { name }] of this.#lines.entries()) {
        if (read[name] === null) continue;
        parts.push(draw("circle", { class: `dot ${NAMES[at]}`, cx: px, cy: y(read[name]), r: 3.5 }));
      }
    }
    this.#svg.replaceChildren(...parts);
    this.#describe(read);
  }

  #axes(top, { x, y, right, bottom }) {
    const parts = [];
    for (const value of [0, top / 2, top]) {
      parts.push(draw("line", { class: "grid", x1: LEFT_PX, x2: right, y1: y(value), y2: y(value) }));
      const place = { x: LEFT_PX - 8, y: y(value) + 4, "text-anchor": "end" };
      parts.push(draw("text", place, this.#written(value)));
    }
    const everyMin = right - LEFT_PX < 320 ? 5 : 2;
    for (let min = 10; min >= 0; min -= everyMin) {
      const px = x(this.#nowS - 60 * min);
      parts.push(draw("line", { class: "grid", x1: px, x2: px, y1: bottom, y2: bottom + 4 }));
      const anchor = min === 0 ? "end" : "middle";
      const place = { x: px, y: bottom + 17, "text-anchor": anchor };
      parts.push(draw("text", place, min === 0 ? "now" : `−${min} min`));
    }
    return parts;
  }

  /** Its runs of points without a gap. */
  #line(name, className, { x, y, bottom }) {
    const runs = [];
    let beforeS = -Infinity;
    for (const point of this.#points) {
      if (point[name] === null || point[name] === undefined) continue;
      if (point.at - beforeS > GAP_S) runs.push([]);
      runs.at(-1).push([x(point.at), y(point[name])]);
      beforeS = point.at;
    }
    return runs.flatMap((run) => {
      const path = `M${run.map((place) => place.map((px) => px.toFixed(1)).join(",")).join("L")}`;
      if (run.length === 1) {
        return [draw("circle", { class: `dot ${className}`, cx: run[0][0], cy: run[0][1], r: 2 })];
      }
      const line = draw("path", { class: `line ${className}`, d: path });
      if (className !== NAMES[0]) return [line];
      const under = `${path}L${run.at(-1)[0].toFixed(1)},${bottom}L${run[0][0].toFixed(1)},${bottom}Z`;
      return [draw("path", { class: `area ${className}`, d: under }), line];
    });
  }

  /** The point under the cursor; without one the latest. */
  #read(x) {
    if (this.#cursorPx === null) return this.#points.at(-1);
    const distance = (point) => Math.abs(x(point.at) - this.#cursorPx);
    return this.#points.reduce((best, point) => (distance(point) < distance(best) ? point : best));
  }

  #describe(point) {
    const read = this.#lines.map(({ name, label }) => [label, this.#shown(point[name])]);
    const keys = read.map(([label, text], at) =>
      make("span", { className: `key ${NAMES[at]}` }, `${label} `, make("b", { textContent: text })));
    if (this.#cursorPx !== null) {
      const agoS = Math.round(this.#nowS - point.at);
      const ago = agoS < 5 ? "now" : `${Math.floor(agoS / 60)}:${String(agoS % 60).padStart(2, "0")} min ago`;
      keys.push(make("span", { className: "when", textContent: ago }));
    }
    this.#legend.replaceChildren(...keys);
    const now = this.#lines.map(({ name, label }) => `${label} ${this.#shown(this.#points.at(-1)[name])}`);
    this.#svg.setAttribute("aria-label", `${this.#title}, the last ten minutes. Now: ${now.join(", ")}`);
  }

  #shown(value) {
    return value === null || value === undefined ? "–" : this.#written(value);
  }
}
