// The rules: what they do now, and another text for them.

import { get } from "./api.js";
import { actions, h, table, tell } from "./dom.js";
import { editor } from "./editor.js";
import { listen } from "./pulse.js";
import { count, rate } from "./words.js";

export function rules(main) {
  let counts = new Map();
  let known = [];
  let version = null;
  const edit = editor(() => load());
  const list = table("Rules in force", [
    { head: "rule", cell: (row) => row.name },
    { head: "applies to", cell: (row) => row.match.map(({ attribute, wanted }) => `${attribute} ${wanted}`).join(", ") || "every request" },
    { head: "counts by", cell: (row) => row.per.join(", ") || "all together" },
    { head: "limit", cell: (row) => limit(row) },
    { head: "at most", cell: (row) => row.fleet ? `${row.bound}; ${row.fleet}` : row.bound },
    { head: "mode", cell: (row) => row.mode },
    { head: "allowed/s", number: true, cell: (row) => rate(now(row, "allowed")) },
    { head: "denied/s", number: true, cell: (row) => rate(now(row, "denied")) },
    { head: "allowed", number: true, cell: (row) => count(total(row, "allowed")) },
    { head: "denied", number: true, cell: (row) => count(total(row, "denied")) },
    { head: actions(), once: true, cell: (row) => h("button", { type: "button", "aria-label": `Edit ${row.name}`, onclick: () => edit.go(row.name) }, "Edit") },
  ], (row) => row.name, "no rules");
  main.append(h("h1", {}, "Rules"), list.element, edit.element);

  async function load() {
    try {
      const all = await get("/v1/rules");
      known = all.rules;
      version = all.version;
      list.show(known);
      return all;
    } catch (problem) {
      tell(problem.message, "bad");
      return null;
    }
  }

  // A rule that only counts says so in words of its own.
  const names = (row, what) => row.mode === "shadow" ? { allowed: ["shadowAllowed"], denied: ["shadowDenied"] }[what]
    : { allowed: ["allowed"], denied: ["denied", "blocked"] }[what];
  const sum = (from, row, what) => names(row, what).reduce((sum, name) => sum + (from?.[name] ?? 0), 0);
  const now = (row, what) => sum(counts.get(row.name)?.perSecond, row, what);
  const total = (row, what) => sum(counts.get(row.name)?.total, row, what);

  load().then(() => edit.open());
  return listen(({ now }) => {
    counts = new Map(now.rules.map((rule) => [rule.rule, rule]));
    if (version !== null && now.rulesVersion !== version) {
      load();
      edit.moved(now.rulesVersion);
    }
    list.show(known);
  });
}

function limit(row) {
  const more = [row.limit];
  if (row.tiers) more.push(`tiers by ${row.tiers.by}`);
  if (row.overrides) more.push(`${row.overrides.length} overrides`);
  if (row.accuracy !== "exact") more.push(row.accuracy);
  return more.join(", ");
}
