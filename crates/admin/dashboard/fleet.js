// The page "Fleet": the nodes, their store, and the listeners and upstreams of this node.

import { get } from "./api.js";
import { h, setContent, table } from "./dom.js";
import { bytes, count, dateTime, duration, micros } from "./format.js";
import { poll } from "./live_feed.js";

const POLL_MILLIS = 2000;

const state = (good, yes, no) => h("span", { class: good ? "good" : "bad" }, good ? yes : no);

export function fleet(main) {
  const unknown = h("p", { class: "warning", hidden: true });
  const nodes = table("Nodes and their rules", [
    { head: "node", cell: (row) => row.node },
    { head: "rules", number: true, cell: (row) => `version ${row.version}` },
    { head: "up to date", cell: (row) => state(!row.behind, "yes", "behind") },
    { head: "source", cell: (row) => row.source },
    { head: "problem", hideEmpty: true, cell: (row) => row.problem ?? "" },
    { head: "last report", cell: (row) => row.seen ? dateTime(row.seen) : "now" },
  ], (row) => row.node);
  const servers = table("Redis servers", [
    { head: "server", cell: (row) => row.server },
    { head: "breaker", cell: (row) => state(row.up, "closed", "open") },
    { head: "opened", number: true, cell: (row) => count(row.opened) },
    { head: "timeouts", number: true, cell: (row) => count(row.timeouts) },
    { head: "failed", number: true, cell: (row) => count(row.failures) },
    { head: "p50", number: true, cell: (row) => micros(row.p50Micros) },
    { head: "p99", number: true, cell: (row) => micros(row.p99Micros) },
    { head: "memory", number: true, cell: (row) => memory(row) },
    { head: "keys", number: true, cell: (row) => count(row.keys) },
    { head: "evicted", number: true, cell: (row) => count(row.evicted) },
  ], (row) => row.server);
  const listeners = table("Listeners of this node", [
    { head: "listener", cell: (row) => row.listener },
    { head: "open", number: true, cell: (row) => count(row.open) },
    { head: "maximum", number: true, cell: (row) => count(row.most) },
    { head: "accepted", number: true, cell: (row) => count(row.accepted) },
  ], (row) => row.listener);
  const upstreams = table("Upstreams of the gateway", [
    { head: "upstream", cell: (row) => row.upstream },
    { head: "in flight", number: true, cell: (row) => row.most ? `${row.inFlight} of ${row.most}` : count(row.inFlight) },
    { head: "servers", cell: (row) => row.servers.map(({ server, up }) => `${server} ${up ? "up" : "down"}`).join(", ") },
    { head: "outcomes", cell: (row) => Object.entries(row.outcomes).filter(([, times]) => times).map(([outcome, times]) => `${outcome} ${times}`).join(", ") },
  ], (row) => row.upstream);
  const facts = h("dl", { class: "facts" });
  const store = h("section", {}, h("h2", {}, "Store"), facts);
  const gateway = h("section", { hidden: true }, upstreams.element);

  main.append(h("h1", {}, "Fleet"), unknown, nodes.element, store,
    h("div", { class: "columns" }, h("section", {}, listeners.element), gateway));

  function show(now) {
    unknown.hidden = !now.unknown;
    setContent(unknown, now.unknown ? `Other nodes are not listed: ${now.unknown}` : "");
    nodes.show(now.nodes);
    listeners.show(now.listeners);
    gateway.hidden = now.upstreams.length === 0;
    upstreams.show(now.upstreams);
    const report = now.store;
    const rows = report.kind === "memory"
      ? [["state in", "the memory of this process"], ["clients", `${count(report.keys)} of ${count(report.maxKeys)}`],
        ["tables, logs and slots", `${bytes(report.bytes)} of ${bytes(report.maxBytes)}`], ["expired buckets", count(report.expired)],
        ["charges to overflow buckets", count(report.overflowed)], ["charges denied for lack of memory", count(report.growthDenied)]]
      : [["state in", "Redis"], ["nodes that share it", count(report.fleet)], ["parts of checks without a reply in time", count(report.late)],
        ["denials from the cache", count(report.remembered)], ["lost refunds", count(report.lost)], ["failovers", count(report.failovers)],
        ["leased", `${count(report.leasedTokens)} tokens for ${count(report.leasedClients)} clients`]];
    const process = now.process;
    rows.push(["this process", `${bytes(process.residentBytes)}, ${count(process.threads)} threads, ${count(process.openFiles)} open files, ${duration(process.cpuSeconds)} of CPU time`]);
    facts.replaceChildren(...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
    if (report.kind === "redis") {
      if (!servers.element.isConnected) store.append(servers.element);
      servers.show(report.servers);
    }
  }

  return poll(POLL_MILLIS, async () => show(await get("/v1/fleet")));
}

function memory(row) {
  if (row.memory === null || row.memory === undefined) return "–";
  return row.maxMemory ? `${bytes(row.memory)} of ${bytes(row.maxMemory)}` : bytes(row.memory);
}
