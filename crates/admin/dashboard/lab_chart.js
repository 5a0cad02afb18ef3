// Charts of the Lab: offered and admitted requests over time, and the simulated count beside the textbook formula.

import { h, s } from "./dom.js";
import { ticks } from "./chart.js";
import { count, duration } from "./format.js";

const WIDTH = 760;
const LEFT = 46;
const RIGHT = 14;

/// Returns the chart of one limit: offered requests in grey, admitted ones in colour. Charts with the same `max` have the
/// same scale.
export function steps(line, window, max) {
  const height = 132;
  const [top, floor] = [10, height - 22];
  const { pieceSeconds, offered, admitted } = line.timeline;
  const length = pieceSeconds * offered.length;
  const marks = ticks(max, 3);
  const x = (seconds) => LEFT + seconds / length * (WIDTH - LEFT - RIGHT);
  const y = (value) => floor - value / marks.at(-1) * (floor - top);
  const area = (counts) => counts.reduce((path, value, piece) =>
    `${path}L${x(piece * pieceSeconds).toFixed(1)} ${y(value).toFixed(1)}L${x((piece + 1) * pieceSeconds).toFixed(1)} ${y(value).toFixed(1)}`,
  `M${LEFT} ${floor}`) + `L${WIDTH - RIGHT} ${floor}Z`;
  const windows = [];
  for (let at = 0; at <= length + 1e-9 && windows.length < 200; at += window) {
    windows.push(s("line", { class: "window", x1: x(at), x2: x(at), y1: top, y2: floor }));
  }
  const every = ticks(length, 6).filter((at) => at <= length);
  const summary = `${line.admitted} of ${line.offered} admitted`;
  const worst = line.bound === undefined ? "" : `, at most ${line.most} in any ${duration(line.windowSeconds)} (bound ${line.bound})`;
  return h("figure", { "data-line": line.name, "data-admitted": line.admitted },
    h("figcaption", {}, h("strong", {}, line.name), ` ${summary}${worst}`),
    s("svg", { class: "chart steps", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": `${line.name}: ${summary}${worst}` },
      marks.flatMap((mark) => [
        s("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(mark), y2: y(mark) }),
        s("text", { x: LEFT - 8, y: y(mark) + 4, "text-anchor": "end" }, count(mark)),
      ]),
      s("path", { class: "area offered", d: area(offered) }),
      s("path", { class: "area admitted", d: area(admitted) }),
      windows,
      every.map((at) => s("text", { x: x(at), y: height - 5, "text-anchor": "middle" }, at === 0 ? "0" : duration(at)))));
}

/// Returns the chart of requests admitted in one window, by the sync lag between nodes.
export function sweep({ limit, nodes, window, lag, points }) {
  const height = 240;
  const [top, floor] = [14, height - 40];
  const expected = (at) => limit * (1 + (nodes - 1) * Math.min(at / window, 1));
  const marks = ticks(Math.max(expected(window), ...points.map(({ admitted }) => admitted)), 5);
  const x = (at) => LEFT + at / window * (WIDTH - LEFT - RIGHT);
  const y = (value) => floor - value / marks.at(-1) * (floor - top);
  const path = points.map(({ lag, admitted }, index) => `${index ? "L" : "M"}${x(lag).toFixed(1)} ${y(admitted).toFixed(1)}`).join("");
  const here = points.find((point) => point.lag === lag);
  const description = here
    ? `With a sync lag of ${lag} ms, ${here.admitted} requests are admitted in one window of ${duration(window / 1000)}. The textbook formula gives ${Math.floor(expected(lag))}; the limit is ${limit}.`
    : `The limit is ${limit}.`;
  return h("figure", { class: "sweep", "data-code": here?.admitted, "data-textbook": Math.floor(expected(lag)) },
    h("figcaption", {}, h("strong", {}, "Admitted in one window, by sync lag"),
      h("ul", { class: "legend" }, h("li", { class: "textbook" }, "textbook: limit × (1 + (nodes − 1) × lag / window)"), h("li", { class: "code" }, "simulation"))),
    s("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": description },
      marks.flatMap((mark) => [
        s("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(mark), y2: y(mark) }),
        s("text", { x: LEFT - 8, y: y(mark) + 4, "text-anchor": "end" }, count(mark)),
      ]),
      s("line", { class: "bound", x1: LEFT, x2: WIDTH - RIGHT, y1: y(limit), y2: y(limit) }),
      s("line", { class: "line textbook", x1: x(0), y1: y(expected(0)), x2: x(window), y2: y(expected(window)) }),
      s("path", { class: "line code", d: path }),
      points.map(({ lag: at, admitted }) => s("circle", { class: at === lag ? "dot here" : "dot", cx: x(at), cy: y(admitted), r: at === lag ? 6 : 3.5 })),
      [0, 0.25, 0.5, 0.75, 1].map((part) => s("text", { x: x(window * part), y: floor + 18, "text-anchor": "middle" }, part ? duration(window * part / 1000) : "0")),
      s("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: height - 6, "text-anchor": "middle" }, "sync lag between nodes")),
    h("p", { id: "sweep-description" }, description));
}
