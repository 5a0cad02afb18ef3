// Line charts over time, as SVG. With the arrow keys the values of each second can be read, also by a screen reader.

import { h, s } from "./dom.js";
import { timeOfDay } from "./format.js";

/// Margins in pixels.
const LEFT = 56;
const RIGHT = 12;
const TOP = 10;
const BOTTOM = 22;

/// Returns about `wanted` round numbers from 0 to at least `max`.
export function ticks(max, wanted = 4) {
  if (!(max > 0)) return [0, 1];
  const rough = max / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
  const found = [0];
  while (found.at(-1) < max) found.push(Number((found.at(-1) + step).toPrecision(12)));
  return found;
}

/// Returns a chart of `series`, which are `{name, kind, of}`: `of(point)` returns a number or null. Points have a Unix
/// second `at`. `formatValue` formats the numbers.
export function timeChart(label, series, formatValue) {
  const picture = s("svg", { class: "chart", role: "img", tabindex: "0" });
  const readout = h("p", { class: "readout", "aria-live": "polite" });
  const legend = h("ul", { class: "legend", "aria-hidden": "true" },
    series.map(({ name, kind }) => h("li", { class: kind }, name)));
  const element = h("figure", {}, h("figcaption", {}, label, legend), picture, readout);
  let points = [];
  let span = 300;
  let selected = null;
  let scale = null;

  function draw(newPoints = points, newSpan = span) {
    points = newPoints;
    span = newSpan;
    const wide = Math.max(picture.clientWidth || 600, 200);
    const tall = picture.clientHeight || 200;
    const end = points.at(-1)?.at ?? Math.floor(Date.now() / 1000);
    const begin = end - span + 1;
    const inside = points.filter((point) => point.at >= begin);
    const max = Math.max(0, ...inside.flatMap((point) => series.map(({ of }) => of(point) ?? 0)));
    const marks = ticks(max);
    const ceiling = marks.at(-1);
    const x = (at) => LEFT + (at - begin) / Math.max(span - 1, 1) * (wide - LEFT - RIGHT);
    const y = (value) => tall - BOTTOM - value / ceiling * (tall - BOTTOM - TOP);
    scale = { begin, x, inside, wide };
    const grid = marks.flatMap((mark) => [
      s("line", { class: "grid", x1: LEFT, x2: wide - RIGHT, y1: y(mark), y2: y(mark) }),
      s("text", { x: LEFT - 8, y: y(mark) + 4, "text-anchor": "end" }, formatValue(mark)),
    ]);
    const minutes = [];
    for (let at = Math.ceil(begin / 60) * 60; at <= end; at += 60) {
      minutes.push(s("text", { x: x(at), y: tall - 5, "text-anchor": "middle" }, timeOfDay(at).slice(0, 5)));
    }
    // A series without values is not drawn: its line would cover the axis.
    const drawn = series.filter(({ of }) => inside.some((point) => of(point)));
    const lines = drawn.map(({ kind, of, area }) => {
      let path = "";
      let first = null;
      let last = null;
      for (const point of inside) {
        const value = of(point);
        if (value === null || value === undefined) { last = null; continue; }
        path += `${last === null ? "M" : "L"}${x(point.at).toFixed(1)} ${y(value).toFixed(1)}`;
        first ??= point.at;
        last = point.at;
      }
      const line = s("path", { class: `line ${kind}`, d: path });
      if (!area || first === null || last === null) return line;
      const under = `${path}L${x(last).toFixed(1)} ${y(0)}L${x(first).toFixed(1)} ${y(0)}Z`;
      return s("g", {}, s("path", { class: `area ${kind}`, d: under }), line);
    });
    const cursor = selected === null ? [] : [s("line", { class: "cursor", x1: x(selected), x2: x(selected), y1: TOP, y2: tall - BOTTOM })];
    picture.setAttribute("viewBox", `0 0 ${wide} ${tall}`);
    picture.replaceChildren(...grid, ...minutes, ...lines, ...cursor);
    updateText();
  }

  function updateText() {
    const at = selected ?? points.at(-1)?.at;
    const point = points.find((point) => point.at === at);
    const values = point ? series.map(({ name, of }) => `${name} ${of(point) === null ? "–" : formatValue(of(point))}`) : [];
    const text = point ? `${timeOfDay(point.at)}: ${values.join(", ")}` : "nothing yet";
    picture.setAttribute("aria-label", `${label}. ${text}`);
    // A screen reader reads only a second that the user selected, not each new one.
    readout.textContent = selected === null ? "" : text;
  }

  function select(at) {
    const known = scale?.inside ?? [];
    selected = known.length === 0 || at === null ? null
      : known.reduce((near, point) => Math.abs(point.at - at) < Math.abs(near.at - at) ? point : near).at;
    draw();
  }

  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const part = (event.clientX - box.left - LEFT) / Math.max(box.width - LEFT - RIGHT, 1);
    select(scale.begin + part * (span - 1));
  });
  picture.addEventListener("pointerleave", () => select(null));
  picture.addEventListener("blur", () => select(null));
  picture.addEventListener("keydown", (event) => {
    const from = selected ?? points.at(-1)?.at;
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30 };
    if (event.key === "Escape") select(null);
    else if (event.key === "Home") select(scale.begin);
    else if (event.key === "End") select(points.at(-1)?.at ?? null);
    else if (event.key in steps && from) select(from + steps[event.key]);
    else return;
    event.preventDefault();
  });
  const observer = new ResizeObserver(() => draw());
  observer.observe(picture);
  return { element, draw };
}
