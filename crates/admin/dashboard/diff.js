// The difference of two texts, line by line.

import { h } from "./dom.js";

/// Most lines of a text that is compared. Longer texts take too long, and their differences are not readable.
const MAX_LINES = 3000;
/// Unchanged lines that are shown around a change.
const CONTEXT_LINES = 2;

/// Returns `[mark, line]` in order, where the mark is "+", "-" or " "; null for texts that are too long.
function compare(before, after) {
  const from = before.split("\n");
  const to = after.split("\n");
  if (from.length > MAX_LINES || to.length > MAX_LINES) return null;
  let head = 0;
  while (head < from.length && head < to.length && from[head] === to[head]) head += 1;
  let tail = 0;
  while (tail < from.length - head && tail < to.length - head && from.at(-1 - tail) === to.at(-1 - tail)) tail += 1;
  const [a, b] = [from.slice(head, from.length - tail), to.slice(head, to.length - tail)];
  // Lengths of the longest common subsequences, from the end to the start.
  const common = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      common[i][j] = a[i] === b[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
    }
  }
  const found = from.slice(0, head).map((line) => [" ", line]);
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { found.push([" ", a[i]]); i += 1; j += 1; }
    else if (i < a.length && (j === b.length || common[i + 1][j] >= common[i][j + 1])) { found.push(["-", a[i]]); i += 1; }
    else { found.push(["+", b[j]]); j += 1; }
  }
  return found.concat(from.slice(from.length - tail).map((line) => [" ", line]));
}

/// Returns an element with the changes and a few lines around them; null if the texts are equal.
export function diffView(before, after) {
  const all = compare(before, after);
  if (all === null) return h("p", { class: "quiet" }, "The documents are too long to be compared line by line.");
  const near = (index) => all.slice(Math.max(index - CONTEXT_LINES, 0), index + CONTEXT_LINES + 1).some(([mark]) => mark !== " ");
  const kinds = { "+": "more", "-": "less", " ": "same" };
  const rows = [];
  let skipped = false;
  all.forEach(([mark, line], index) => {
    if (near(index)) {
      if (skipped) rows.push(h("span", { class: "cut" }, "⋯"));
      rows.push(h("span", { class: kinds[mark] }, `${mark} ${line}`));
      skipped = false;
    } else skipped = rows.length > 0;
  });
  return rows.length ? h("pre", { class: "diff", tabindex: "0", "aria-label": "Changed lines" }, rows) : null;
}
