// The nodes, and what they stand on.

import { get } from "./api.js";
import { h, put, table } from "./dom.js";
import { every } from "./pulse.js";
import { bytes, count, lasting, micros, moment } from "./words.js";

const EVERY = 2000;

const state = (good, yes, no) => h("span", { class: good ? "good" : "bad" }, good ? yes : no);

export function fleet(main) {
  const unknown = h("p", { class: "warning", hidden: true });
  const nodes = table("Nodes and their rules", [
    { head: "node", cell: (row) => row.node },
    { head: "rules", number: true, cell: (row) => `version ${row.version}` },
    { head: "up to date", cell: (row) => state(!row.behind, "yes", "behind") },
    { head: "source", cell: (row) => row.source },
    { head: "problem", rare: true, cell: (row) => row.problem ?? "" },
    { head: "seen", cell: (row) => row.seen ? moment(row.seen) : "now" },
  ], (row) => row.node);
  const servers = table("Redis servers", [
    { head: "server", cell: (row) => row.server },
    { head: "breaker", cell: (row) => state(row.up, "closed", "open") },
    { head: "opened", number: true, cell: (row) => count(row.opened) },
    { head: "late", number: true, cell: (row) => count(row.timeouts) },
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
    { head: "room for", number: true, cell: (row) => count(row.most) },
    { head: "accepted", number: true, cell: (row) => count(row.accepted) },
  ], (row) => row.listener);
  const upstreams = table("Upstreams of the gateway", [
    { head: "upstream", cell: (row) => row.upstream },
    { head: "in flight", number: true, cell: (row) => row.most ? `${row.inFlight} of ${row.most}` : count(row.inFlight) },
    { head: "servers", cell: (row) => row.servers.map(({ server, up }) => `${server} ${up ? "up" : "down"}`).join(", ") },
    { head: "outcomes", cell: (row) => Object.entries(row.outcomes).filter(([, times]) => times).map(([what, times]) => `${what} ${times}`).join(", ") },
  ], (row) => row.upstream);
  const facts = h("dl", { class: "facts" });
  const store = h("section", {}, h("h2", {}, "Store"), facts);
  const gateway = h("section", { hidden: true }, upstreams.element);

  main.append(h("h1", {}, "Fleet"), unknown, nodes.element, store,
    h("div", { class: "columns" }, h("section", {}, listeners.element), gateway));

  function show(now) {
    unknown.hidden = !now.unknown;
    put(unknown, now.unknown ? `Other nodes are not listed: ${now.unknown}` : "");
    nodes.show(now.nodes);
    listeners.show(now.listeners);
    gateway.hidden = now.upstreams.length === 0;
    upstreams.show(now.upstreams);
    const kept = now.store;
    const told = kept.kind === "memory"
      ? [["kept in", "the memory of this process"], ["clients", `${count(kept.keys)} of ${count(kept.maxKeys)}`],
        ["tables", bytes(kept.bytes)], ["expired", count(kept.expired)], ["in shared buckets for want of room", count(kept.overflowed)]]
      : [["kept in", "Redis"], ["nodes that share it", count(kept.fleet)], ["parts of checks without an answer in time", count(kept.late)],
        ["denied from memory", count(kept.remembered)], ["lost refunds", count(kept.lost)], ["failovers", count(kept.failovers)],
        ["leased", `${count(kept.leasedTokens)} tokens for ${count(kept.leasedClients)} clients`]];
    const process = now.process;
    told.push(["this process", `${bytes(process.residentBytes)}, ${count(process.threads)} threads, ${count(process.openFiles)} open files, ${lasting(process.cpuSeconds)} of processor time`]);
    facts.replaceChildren(...told.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
    if (kept.kind === "redis") {
      if (!servers.element.isConnected) store.append(servers.element);
      servers.show(kept.servers);
    }
  }

  return every(EVERY, async () => show(await get("/v1/fleet")));
}

function memory(row) {
  if (row.memory === null || row.memory === undefined) return "–";
  return row.maxMemory ? `${bytes(row.memory)} of ${bytes(row.maxMemory)}` : bytes(row.memory);
}
