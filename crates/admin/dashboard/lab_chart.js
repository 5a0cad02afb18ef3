// The Lab's pictures: what was offered and admitted over time, and the textbook beside the code.

import { h, s } from "./dom.js";
import { ticks } from "./chart.js";
import { count, lasting } from "./words.js";

const WIDE = 760;
const LEFT = 46;
const RIGHT = 14;

/// One limit under the traffic: grey is what came, coloured what was let in. `most` makes several comparable.
export function steps(line, window, most) {
  const tall = 132;
  const [top, floor] = [10, tall - 22];
  const { pieceSeconds, offered, admitted } = line.timeline;
  const length = pieceSeconds * offered.length;
  const marks = ticks(most, 3);
  const x = (seconds) => LEFT + seconds / length * (WIDE - LEFT - RIGHT);
  const y = (value) => floor - value / marks.at(-1) * (floor - top);
  const area = (counts) => counts.reduce((path, value, piece) =>
    `${path}L${x(piece * pieceSeconds).toFixed(1)} ${y(value).toFixed(1)}L${x((piece + 1) * pieceSeconds).toFixed(1)} ${y(value).toFixed(1)}`,
  `M${LEFT} ${floor}`) + `L${WIDE - RIGHT} ${floor}Z`;
  const windows = [];
  for (let at = 0; at <= length + 1e-9 && windows.length < 200; at += window) {
    windows.push(s("line", { class: "window", x1: x(at), x2: x(at), y1: top, y2: floor }));
  }
  const every = ticks(length, 6).filter((at) => at <= length);
  const words = `${line.admitted} of ${line.offered} admitted`;
  const worst = line.bound === undefined ? "" : `, at most ${line.most} in any ${lasting(line.windowSeconds)} (promised ${line.bound})`;
  return h("figure", { "data-line": line.name, "data-admitted": line.admitted },
    h("figcaption", {}, h("strong", {}, line.name), ` ${words}${worst}`),
    s("svg", { class: "chart steps", viewBox: `0 0 ${WIDE} ${tall}`, role: "img", "aria-label": `${line.name}: ${words}${worst}` },
      marks.flatMap((mark) => [
        s("line", { class: "grid", x1: LEFT, x2: WIDE - RIGHT, y1: y(mark), y2: y(mark) }),
        s("text", { x: LEFT - 8, y: y(mark) + 4, "text-anchor": "end" }, count(mark)),
      ]),
      s("path", { class: "area offered", d: area(offered) }),
      s("path", { class: "area admitted", d: area(admitted) }),
      windows,
      every.map((at) => s("text", { x: x(at), y: tall - 5, "text-anchor": "middle" }, at === 0 ? "0" : lasting(at)))));
}

/// What nodes admit in one window by how late they tell each other.
export function sweep({ limit, nodes, window, lag, points }) {
  const tall = 240;
  const [top, floor] = [14, tall - 40];
  const expected = (at) => limit * (1 + (nodes - 1) * Math.min(at / window, 1));
  const marks = ticks(Math.max(expected(window), ...points.map(({ admitted }) => admitted)), 5);
  const x = (at) => LEFT + at / window * (WIDE - LEFT - RIGHT);
  const y = (value) => floor - value / marks.at(-1) * (floor - top);
  const path = points.map(({ lag, admitted }, place) => `${place ? "L" : "M"}${x(lag).toFixed(1)} ${y(admitted).toFixed(1)}`).join("");
  const here = points.find((point) => point.lag === lag);
  const said = here
    ? `At a lag of ${lag} ms the code admits ${here.admitted} in one window of ${lasting(window / 1000)}, the textbook expects ${Math.floor(expected(lag))}; the limit is ${limit}.`
    : `The limit is ${limit}.`;
  return h("figure", { class: "sweep", "data-code": here?.admitted, "data-textbook": Math.floor(expected(lag)) },
    h("figcaption", {}, h("strong", {}, "Admitted in one window, by lag"),
      h("ul", { class: "legend" }, h("li", { class: "textbook" }, "textbook: limit × (1 + (nodes − 1) × lag / window)"), h("li", { class: "code" }, "what the code admits"))),
    s("svg", { class: "chart", viewBox: `0 0 ${WIDE} ${tall}`, role: "img", "aria-label": said },
      marks.flatMap((mark) => [
        s("line", { class: "grid", x1: LEFT, x2: WIDE - RIGHT, y1: y(mark), y2: y(mark) }),
        s("text", { x: LEFT - 8, y: y(mark) + 4, "text-anchor": "end" }, count(mark)),
      ]),
      s("line", { class: "bound", x1: LEFT, x2: WIDE - RIGHT, y1: y(limit), y2: y(limit) }),
      s("line", { class: "line textbook", x1: x(0), y1: y(expected(0)), x2: x(window), y2: y(expected(window)) }),
      s("path", { class: "line code", d: path }),
      points.map(({ lag: at, admitted }) => s("circle", { class: at === lag ? "dot here" : "dot", cx: x(at), cy: y(admitted), r: at === lag ? 6 : 3.5 })),
      [0, 0.25, 0.5, 0.75, 1].map((part) => s("text", { x: x(window * part), y: floor + 18, "text-anchor": "middle" }, part ? lasting(window * part / 1000) : "0")),
      s("text", { x: (LEFT + WIDE - RIGHT) / 2, y: tall - 6, "text-anchor": "middle" }, "how late nodes hear of each other")),
    h("p", { id: "sweep-said" }, said));
}
