// Who is blocked.

import { get, send } from "./api.js";
import { actions, field, h, table, tell } from "./dom.js";
import { every } from "./pulse.js";
import { client, lasting, moment } from "./words.js";

const EVERY = 2000;
const PAGE = 200;

export function blocks(main) {
  let after = [];
  const list = table("Blocked", [
    { head: "who", cell: (row) => h("span", { title: row.id }, client(row.ip, row.id)), once: true },
    { head: "for another", number: true, cell: (row) => lasting(row.secondsLeft) },
    { head: "by", cell: (row) => row.rule ? `${row.by} of ${row.rule}` : row.by },
    { head: "reason", cell: (row) => row.reason ?? "" },
    { head: "since", cell: (row) => moment(row.added) },
    { head: actions(), once: true, cell: (row) => h("button", { type: "button", "aria-label": `Let off ${row.ip ?? row.id}`, onclick: () => off(row.id) }, "Let off") },
  ], (row) => row.id, "nobody");
  const full = h("p", { class: "warning", hidden: true });
  const next = h("button", { type: "button", hidden: true }, "Next");
  const first = h("button", { type: "button", hidden: true, onclick: () => { after = []; load(); } }, "From the start");
  main.append(h("h1", {}, "Block list"),
    h("section", {}, h("h2", {}, "Block"), blockForm(null, load)), full, list.element, h("div", { class: "row" }, first, next));

  async function off(id) {
    try {
      await send("DELETE", "/v1/block", { id });
      tell(`${id} is let off.`, "good");
    } catch (problem) {
      tell(problem.message, "bad");
    }
    await load();
  }

  async function load() {
    const from = after.at(-1);
    const now = await get(`/v1/block?limit=${PAGE}${from ? `&after=${encodeURIComponent(from)}` : ""}`);
    list.show(now.entries);
    full.hidden = !now.refused;
    full.textContent = `The list was full ${now.refused} times: those clients were not blocked.`;
    next.hidden = !now.next;
    next.onclick = () => { after.push(now.next); load(); };
    first.hidden = after.length === 0;
  }
  return every(EVERY, load);
}

/// Asks for how long, and blocks whom it is about.
function blockForm(whom, done) {
  const attribute = h("input", { value: "ip", id: "attribute", required: true });
  const value = h("input", { id: "value", required: true, placeholder: "192.0.2.7 or 10.0.0.0/8" });
  const length = h("input", { id: "length", value: "10m", required: true, size: 8 });
  const reason = h("input", { id: "reason", maxlength: 200 });
  const wrong = h("p", { class: "bad", role: "alert" });
  return h("form", { class: "row", onsubmit: submit },
    whom ? null : field("Attribute", attribute), whom ? null : field("Value", value),
    field("For", length), field("Reason", reason), h("button", { class: "main" }, "Block"), wrong);

  async function submit(event) {
    event.preventDefault();
    const subject = whom ?? { attribute: attribute.value.trim(), value: value.value };
    const body = { ...subject, for: length.value };
    if (reason.value.trim()) body.reason = reason.value.trim();
    try {
      const entry = await send("POST", "/v1/block", body);
      wrong.textContent = "";
      value.value = "";
      tell(`${entry.ip ?? entry.id} is blocked until ${moment(entry.until)}.`, "good");
      done?.();
    } catch (problem) {
      wrong.textContent = problem.message;
    }
  }
}

/// The same about somebody who is shown already.
export function blockDialog(whom, done) {
  const dialog = h("dialog", { "aria-label": "Block", onclose: () => dialog.remove() },
    h("h2", {}, `Block ${client(null, whom.id)}`),
    blockForm(whom, () => { dialog.close(); done?.(); }),
    h("button", { type: "button", onclick: () => dialog.close() }, "Leave it"));
  document.body.append(dialog);
  dialog.showModal();
}
