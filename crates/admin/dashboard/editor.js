// Another text for the rules: checked while it is written, compared with what is in force, and pushed.

import { Problem, ask, get } from "./api.js";
import { shown } from "./diff.js";
import { actions, field, h, tell } from "./dom.js";
import { moment } from "./words.js";

/// It is checked when nobody has typed for so long.
const PAUSE = 300;

/// `pushed` is called when other rules are in force.
export function editor(pushed) {
  let before = "";
  let tag = null;
  let checked = null;
  let elsewhere = null;
  let timer = 0;

  const text = h("textarea", { id: "document", spellcheck: "false", autocapitalize: "off", wrap: "off", rows: 18, "aria-describedby": "checked" });
  const numbers = h("pre", {});
  const verdict = h("div", { id: "checked", class: "verdict", role: "status" });
  const changes = h("div", { class: "changes" });
  const note = h("input", { id: "note", maxlength: 200, placeholder: "why" });
  const by = h("input", { id: "by", maxlength: 200, placeholder: "who" });
  const push = h("button", { type: "button", id: "push", class: "main", disabled: true, onclick: send }, "Push");
  const undo = h("button", { type: "button", disabled: true, onclick: () => { text.value = before; changed(); } }, "Undo all");
  const older = h("div", { class: "scroll" });
  const moved = h("p", { class: "warning", hidden: true });
  const heading = h("h2", {}, "Edit");
  const element = h("section", { class: "editor" }, heading, moved,
    h("label", { for: "document" }, "Document, in YAML"),
    h("div", { class: "paper" }, h("div", { class: "numbers", "aria-hidden": "true" }, numbers), text),
    verdict, changes,
    h("div", { class: "row" }, field("By", by), field("Note", note), push, undo),
    h("details", { id: "history", ontoggle: (event) => event.target.open && history() }, h("summary", {}, "Versions"), older));

  text.addEventListener("input", changed);
  text.addEventListener("scroll", follow);

  async function open() {
    try {
      const answer = await ask("GET", "/v1/rules", { headers: { accept: "application/yaml" } });
      before = answer.body;
      // What a push has to match.
      tag = answer.headers.get("etag");
      text.value = before;
      moved.hidden = true;
    } catch (problem) {
      text.value = "";
      text.disabled = true;
      verdict.textContent = problem.message;
      return;
    }
    try {
      await get("/v1/rules/history?limit=1");
      elsewhere = null;
    } catch (problem) {
      elsewhere = problem.status === 409 ? problem.message : null;
    }
    heading.textContent = elsewhere ? "Try" : "Edit";
    changed();
  }

  /// The numbers stay beside their lines.
  function follow() {
    numbers.style.transform = `translateY(${-text.scrollTop}px)`;
  }

  function changed() {
    const count = text.value.split("\n").length;
    numbers.textContent = Array.from({ length: count }, (_, line) => line + 1).join("\n");
    follow();
    checked = null;
    push.disabled = true;
    undo.disabled = text.value === before;
    clearTimeout(timer);
    timer = setTimeout(check, PAUSE);
  }

  async function check() {
    const document = text.value;
    if (document === before) {
      changes.replaceChildren();
      verdict.className = "verdict";
      verdict.textContent = elsewhere ? `Nothing is changed. ${sentence(elsewhere)}` : "Nothing is changed.";
      return;
    }
    try {
      const answer = await ask("POST", "/v1/rules/diff", { body: document });
      if (text.value !== document) return;
      checked = document;
      push.disabled = elsewhere !== null;
      verdict.className = "verdict good";
      verdict.textContent = elsewhere ? `Every rule is fine. ${sentence(elsewhere)}` : "Every rule is fine. This is what would change:";
      changes.replaceChildren(...[summary(answer.body), shown(before, document)].filter(Boolean));
    } catch (problem) {
      if (text.value !== document) return;
      verdict.className = "verdict bad";
      changes.replaceChildren();
      verdict.replaceChildren(problem instanceof Problem ? sentence(problem.message) : String(problem), wrongs(problem));
    }
  }

  function wrongs(problem) {
    const errors = problem.body?.errors ?? [];
    return h("ul", {}, errors.map(({ line, message }) => h("li", {},
      line ? h("button", { type: "button", onclick: () => at(line) }, `line ${line}`) : null, ` ${message}`)));
  }

  /// Puts the cursor into a line.
  function at(line) {
    const starts = text.value.split("\n").slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
    const ends = text.value.indexOf("\n", starts);
    text.focus();
    text.setSelectionRange(starts, ends < 0 ? text.value.length : ends);
    const tall = text.scrollHeight / Math.max(text.value.split("\n").length, 1);
    text.scrollTop = Math.max((line - 4) * tall, 0);
  }

  async function send() {
    if (checked === null || checked !== text.value) return;
    push.disabled = true;
    const headers = { "if-match": tag, "content-type": "application/yaml" };
    if (by.value.trim()) headers["tidegate-by"] = encodeURIComponent(by.value.trim());
    if (note.value.trim()) headers["tidegate-note"] = encodeURIComponent(note.value.trim());
    try {
      const answer = await ask("PUT", "/v1/rules", { body: checked, headers });
      tell(`Version ${answer.body.version} is in force.`, "good");
      note.value = "";
      pushed();
      await open();
      if (element.querySelector("#history").open) history();
    } catch (problem) {
      push.disabled = false;
      verdict.className = "verdict bad";
      verdict.textContent = sentence(problem.message);
      if (problem.status === 412) {
        replaced(problem.body?.version);
        // Whoever has just pressed the button below looks elsewhere.
        moved.scrollIntoView({ block: "center" });
      }
    }
  }

  /// Somebody else was faster. What was written here stays until it is thrown away.
  function replaced(number) {
    moved.hidden = false;
    moved.replaceChildren(`Version ${number} is in force by now, and this text was made from another. `,
      h("button", { type: "button", onclick: open }, `Load version ${number}`));
  }

  async function history() {
    try {
      const { versions } = await get("/v1/rules/history?limit=20");
      older.replaceChildren(h("table", {}, h("caption", {}, "Versions"),
        h("thead", {}, h("tr", {}, ["version", "when", "by", "note", actions()].map((head) => h("th", { scope: "col" }, head)))),
        h("tbody", {}, versions.map((item) => h("tr", {},
          h("th", { scope: "row" }, String(item.version)), h("td", {}, moment(item.at)), h("td", {}, item.by), h("td", {}, item.note),
          h("td", {}, h("button", { type: "button", "aria-label": `Take version ${item.version} into the editor`, onclick: () => take(item.version) }, "Take")))))));
    } catch (problem) {
      older.replaceChildren(h("p", { class: "quiet" }, sentence(problem.message)));
    }
  }

  async function take(number) {
    try {
      text.value = (await ask("GET", `/v1/rules?version=${number}`)).body;
      changed();
    } catch (problem) {
      tell(problem.message, "bad");
    }
  }

  return {
    element,
    open,
    /// Goes to a rule of the document.
    go(name) {
      const place = text.value.split("\n").findIndex((line) => names(line) === name);
      at(place < 0 ? 1 : place + 1);
    },
    moved(number) {
      if (text.value === before) open(); else replaced(number);
    },
  };
}

/// The name that a line gives a rule.
function names(line) {
  const found = /(?:^|[\s{-])name:\s*("(?:[^"\\]|\\.)*"|'[^']*'|[^,}#]+)/.exec(line)?.[1].trim();
  return found?.replace(/^(["'])(.*)\1$/, "$2");
}

function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}

/// What changes, rule by rule.
function summary({ added, removed, changed, same }) {
  const items = [
    ...added.map((name) => h("li", { class: "more" }, `new: ${name}`)),
    ...removed.map((name) => h("li", { class: "less" }, `gone: ${name}`)),
    ...changed.map(({ rule, fields }) => h("li", {}, `${rule}: `, fields.map(({ field, from, to }) => `${field} ${from ?? "nothing"} → ${to ?? "nothing"}`).join("; "))),
  ];
  if (items.length === 0) items.push(h("li", {}, "no rule says anything else than before"));
  return h("ul", { id: "summary" }, items, h("li", { class: "quiet" }, `${same} stay as they are`));
}
