// The page "Rules": the active rules, their activity, and an editor.

import { get } from "./api.js";
import { actionsHeading, h, notify, table } from "./dom.js";
import { editor } from "./editor.js";
import { count, rate } from "./format.js";
import { subscribe } from "./live_feed.js";

export function rules(main) {
  let counts = new Map();
  let known = [];
  let version = null;
  const edit = editor(() => load());
  const list = table("Active rules", [
    { head: "rule", cell: (row) => row.name },
    { head: "applies to", cell: (row) => row.match.map(({ attribute, wanted }) => `${attribute} ${wanted}`).join(", ") || "every request" },
    { head: "counts by", cell: (row) => row.per.join(", ") || "one bucket for all" },
    { head: "limit", cell: (row) => limit(row) },
    { head: "at most", cell: (row) => row.fleet ? `${row.bound}; ${row.fleet}` : row.bound },
    { head: "mode", cell: (row) => row.mode },
    { head: "allowed/s", number: true, cell: (row) => rate(perSecond(row, "allowed")) },
    { head: "denied/s", number: true, cell: (row) => rate(perSecond(row, "denied")) },
    { head: "allowed", number: true, cell: (row) => count(total(row, "allowed")) },
    { head: "denied", number: true, cell: (row) => count(total(row, "denied")) },
    { head: actionsHeading(), once: true, cell: (row) => h("button", { type: "button", "aria-label": `Edit ${row.name}`, onclick: () => edit.selectRule(row.name) }, "Edit") },
  ], (row) => row.name, "no rules");
  main.append(h("h1", {}, "Rules"), list.element, edit.element);

  async function load() {
    try {
      const all = await get("/v1/rules");
      known = all.rules;
      version = all.version;
      list.show(known);
      return all;
    } catch (error) {
      notify(error.message, "bad");
      return null;
    }
  }

  // Shadow rules have counters of their own.
  const counters = (row, outcome) => row.mode === "shadow" ? { allowed: ["shadowAllowed"], denied: ["shadowDenied"] }[outcome]
    : { allowed: ["allowed"], denied: ["denied", "blocked"] }[outcome];
  const sum = (from, row, outcome) => counters(row, outcome).reduce((sum, name) => sum + (from?.[name] ?? 0), 0);
  const perSecond = (row, outcome) => sum(counts.get(row.name)?.perSecond, row, outcome);
  const total = (row, outcome) => sum(counts.get(row.name)?.total, row, outcome);

  load().then(() => edit.open());
  return subscribe(({ now }) => {
    counts = new Map(now.rules.map((rule) => [rule.rule, rule]));
    if (version !== null && now.rulesVersion !== version) {
      load();
      edit.onVersionChange(now.rulesVersion);
    }
    list.show(known);
  });
}

function limit(row) {
  const parts = [row.limit];
  if (row.tiers) parts.push(`tiers by ${row.tiers.by}`);
  if (row.overrides) parts.push(`${row.overrides.length} overrides`);
  if (row.accuracy !== "exact") parts.push(row.accuracy);
  return parts.join(", ");
}
