// What happens now.

import { get } from "./api.js";
import { timeChart } from "./chart.js";
import { h, put, table } from "./dom.js";
import { listen } from "./pulse.js";
import { client, count, micros, rate } from "./words.js";

/// Figures are means of so many seconds, so that they can be read.
const MEAN = 5;

export function live(main) {
  const tile = (name, kind, whole = name) => {
    const value = h("strong", { class: kind }, "–");
    return { value, element: h("div", { class: "tile", role: "group", "aria-label": whole }, h("span", {}, name), value) };
  };
  const tiles = {
    allowed: tile("allowed/s", "allowed", "allowed per second"),
    denied: tile("denied/s", "denied", "denied per second"),
    failedOpen: tile("failed open/s", "failed", "failed open per second"),
    p50: tile("p50"),
    p99: tile("p99"),
    blocked: tile("on the block list"),
  };
  const decisions = timeChart("Checks per second", [
    { name: "allowed", kind: "allowed", of: (second) => second.allowed, area: true },
    { name: "denied", kind: "denied", of: (second) => second.denied + second.blocked, area: true },
    { name: "failed open", kind: "failed", of: (second) => second.failedOpen },
    { name: "unavailable", kind: "unavailable", of: (second) => second.unavailable },
  ], (value) => count(value));
  const latency = timeChart("How long a check takes", [
    { name: "p99", kind: "p99", of: (second) => second.p99Micros },
    { name: "p50", kind: "p50", of: (second) => second.p50Micros },
  ], micros);
  const rules = table("Rules by what they do now", [
    { head: "rule", cell: (row) => row.rule },
    { head: "allowed/s", number: true, cell: (row) => rate(row.perSecond.allowed) },
    { head: "denied/s", number: true, cell: (row) => rate(row.perSecond.denied + row.perSecond.blocked) },
    { head: "failed open/s", number: true, cell: (row) => rate(row.perSecond.failedOpen) },
    { head: "allowed", number: true, cell: (row) => count(row.total.allowed) },
    { head: "denied", number: true, cell: (row) => count(row.total.denied + row.total.blocked) },
  ], (row) => row.rule);
  const denied = table("Denied most in the last minutes", [
    { head: "client", cell: (row) => h("span", { title: row.id }, client(row.client, row.id)), once: true },
    { head: "rule", cell: (row) => row.rule },
    { head: "denials", number: true, cell: (row) => count(row.denials) },
  ], (row) => `${row.rule} ${row.id}`, "nobody");

  main.append(
    h("h1", {}, "Live"),
    h("div", { class: "tiles" }, Object.values(tiles).map(({ element }) => element)),
    decisions.element,
    latency.element,
    h("div", { class: "columns" }, h("section", {}, rules.element), h("section", {}, denied.element)),
  );

  let beats = 0;
  return listen(async ({ seconds, now }) => {
    const last = seconds.slice(-MEAN);
    const mean = (of) => last.reduce((sum, second) => sum + of(second), 0) / Math.max(last.length, 1);
    const quick = [...last].reverse().find((second) => second.p50Micros !== null);
    put(tiles.allowed.value, rate(mean((second) => second.allowed)));
    put(tiles.denied.value, rate(mean((second) => second.denied + second.blocked)));
    put(tiles.failedOpen.value, rate(mean((second) => second.failedOpen)));
    put(tiles.p50.value, micros(quick?.p50Micros));
    put(tiles.p99.value, micros(quick?.p99Micros));
    put(tiles.blocked.value, count(now.blocked));
    // A server that was just started has little to show, and shows it in full width.
    const span = Math.min(Math.max(seconds.length, 60), 300);
    decisions.draw(seconds, span);
    latency.draw(seconds, span);
    const busy = (row) => row.perSecond.allowed + row.perSecond.denied + row.perSecond.blocked;
    rules.show([...now.rules].sort((one, other) => busy(other) - busy(one)).slice(0, 20));
    beats += 1;
    if (beats % 2 === 1) denied.show((await get("/v1/top?by=denials&limit=10").catch(() => ({ clients: [] }))).clients);
  });
}
