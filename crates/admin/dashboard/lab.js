// The Lab: what a limit makes of traffic. The numbers come from the server, which runs the code that decides.

import { send } from "./api.js";
import { h, table } from "./dom.js";
import { steps, sweep } from "./lab_chart.js";
import { count, lasting } from "./words.js";

const ALGORITHMS = ["token_bucket", "fixed_window", "sliding_window", "sliding_log", "leaky_bucket"];

/// Those that nodes can keep without asking about each request.
const AHEAD = ["token_bucket", "fixed_window", "sliding_window"];

/// Questions that people ask before they choose a limit.
const SCENES = {
  "Boundary attack": {
    about: "A client spends its limit late in a window, and again when the next one begins.",
    traffic: "boundary", algorithms: ["fixed_window", "sliding_window", "token_bucket", "sliding_log"],
    limit: 20, burst: 20, windowMillis: 1000, attackPercent: 85, nodes: 1, accuracy: "exact", syncMillis: 200, rate: 50, count: 30, lengthMillis: 2000,
  },
  "Sync lag": {
    about: "Nodes decide alone and tell each other late what they admitted.",
    traffic: "steady", algorithms: ["fixed_window"],
    limit: 60, burst: 60, windowMillis: 1000, attackPercent: 85, nodes: 3, accuracy: "synced", syncMillis: 400, rate: 270, count: 30, lengthMillis: 1000,
  },
  Burst: {
    about: "Everything comes at once: where is there room for it?",
    traffic: "burst", algorithms: ["token_bucket", "leaky_bucket", "fixed_window"],
    limit: 10, burst: 50, windowMillis: 1000, attackPercent: 85, nodes: 1, accuracy: "exact", syncMillis: 200, rate: 50, count: 30, lengthMillis: 2000,
  },
  "Steady traffic": {
    about: "More comes than the limit allows, evenly.",
    traffic: "steady", algorithms: ["token_bucket", "fixed_window", "sliding_window", "sliding_log"],
    limit: 20, burst: 40, windowMillis: 1000, attackPercent: 85, nodes: 1, accuracy: "exact", syncMillis: 200, rate: 50, count: 30, lengthMillis: 5000,
  },
};

/// `[name, words, least, most, step, unit]`.
const SLIDERS = [
  ["limit", "Limit", 1, 200, 1, ""],
  ["burst", "Burst (token_bucket)", 1, 400, 1, ""],
  ["windowMillis", "Window", 100, 10000, 100, "ms"],
  ["attackPercent", "Attack at", 0, 99, 1, "% of a window"],
  ["count", "At once", 1, 400, 1, ""],
  ["rate", "Requests per second, all nodes", 1, 2000, 1, ""],
  ["nodes", "Nodes", 1, 16, 1, ""],
  ["syncMillis", "Sync every", 10, 2000, 10, "ms"],
  ["lengthMillis", "Time shown", 1000, 30000, 1000, "ms"],
];

export function lab(main) {
  let state = { ...SCENES["Boundary attack"] };
  let asked = 0;
  let running = false;

  const about = h("p", { id: "scene-about" });
  const scenes = Object.entries(SCENES).map(([name, scene]) => h("button", {
    type: "button", "aria-pressed": "false", "data-scene": name, onclick: () => choose(name, scene),
  }, name));
  const sliders = Object.fromEntries(SLIDERS.map(([name, words, least, most, step, unit]) => {
    const said = h("output", { for: `lab-${name}` });
    const input = h("input", { type: "range", id: `lab-${name}`, min: least, max: most, step, oninput: () => set(name, Number(input.value)) });
    const element = h("div", { class: "slider" }, h("label", { for: `lab-${name}` }, words), input, said);
    return [name, { element, input, said, unit }];
  }));
  const algorithms = ALGORITHMS.map((name) => {
    const input = h("input", { type: "checkbox", id: `lab-${name}`, onchange: choice });
    return { name, input, element: h("label", { class: "tick" }, input, " ", name) };
  });
  const accuracy = h("select", { id: "lab-accuracy", onchange: () => set("accuracy", accuracy.value) },
    ["exact", "leased", "synced", "split"].map((name) => h("option", {}, name)));
  const traffic = h("select", { id: "lab-traffic", onchange: () => set("traffic", traffic.value) },
    [["boundary", "boundary attack"], ["steady", "steady"], ["bursty", "bursty"], ["burst", "all at once"]].map(([value, name]) => h("option", { value }, name)));
  const pictures = h("div", { id: "pictures" });
  const textbook = h("div", { id: "textbook" });
  const wrong = h("p", { class: "bad", role: "alert" });
  const numbers = table("What became of it", [
    { head: "limit", cell: (row) => row.name },
    { head: "offered", number: true, cell: (row) => count(row.offered) },
    { head: "admitted", number: true, cell: (row) => count(row.admitted) },
    { head: "denied", number: true, cell: (row) => count(row.denied) },
    { head: "in any window", number: true, cell: (row) => row.bound === undefined ? "" : `${count(row.most)} of ${count(row.bound)}` },
    { head: "within", number: true, cell: (row) => row.most ? (row.withinSeconds ? lasting(row.withinSeconds) : "at once") : "" },
    { head: "pace", number: true, cell: (row) => row.withinSeconds ? `${count(row.most / row.withinSeconds)}/s` : "" },
    { head: "over", number: true, cell: (row) => count(row.over) },
    { head: "textbook", number: true, rare: true, cell: (row) => count(row.textbook) },
    { head: "longest wait", number: true, rare: true, cell: (row) => row.longestWaitSeconds ? lasting(row.longestWaitSeconds) : "" },
  ], (row) => row.name);
  const took = h("p", { class: "quiet", id: "took" });

  main.append(h("h1", {}, "Lab"),
    h("div", { class: "row scenes", role: "group", "aria-label": "Scenes" }, scenes), about,
    h("div", { class: "bench" },
      h("form", { class: "controls", "aria-label": "What is tried", onsubmit: (event) => event.preventDefault() },
        h("label", { class: "field" }, h("span", {}, "Traffic"), traffic),
        h("fieldset", {}, h("legend", {}, "Algorithms"), algorithms.map(({ element }) => element)),
        h("label", { class: "field" }, h("span", {}, "Accuracy"), accuracy),
        SLIDERS.map(([name]) => sliders[name].element)),
      h("div", {}, wrong, numbers.element, textbook, pictures, took)));

  function choose(name, scene) {
    state = { ...scene };
    about.textContent = scene.about;
    for (const button of scenes) button.setAttribute("aria-pressed", String(button.dataset.scene === name));
    paint();
  }

  function set(name, value) {
    state[name] = value;
    paint();
  }

  function choice() {
    state.algorithms = algorithms.filter(({ input }) => input.checked).map(({ name }) => name);
    paint();
  }

  /// Shows what is set, and asks what comes of it.
  function paint() {
    for (const [name, { input, said, unit, element }] of Object.entries(sliders)) {
      input.value = state[name];
      const words = `${state[name]}${unit ? ` ${unit}` : ""}`;
      said.textContent = words;
      input.setAttribute("aria-valuetext", words);
      element.hidden = !matters(name);
    }
    for (const { name, input } of algorithms) {
      input.checked = state.algorithms.includes(name);
      input.disabled = state.accuracy !== "exact" && !AHEAD.includes(name);
    }
    accuracy.value = state.accuracy;
    traffic.value = state.traffic;
    asked += 1;
    run();
  }

  /// What says nothing about this traffic is not shown.
  function matters(name) {
    if (name === "attackPercent") return state.traffic === "boundary";
    if (name === "count") return state.traffic === "burst";
    if (name === "rate") return state.traffic === "steady" || state.traffic === "bursty";
    if (name === "burst") return state.algorithms.includes("token_bucket");
    if (name === "syncMillis") return state.accuracy === "synced";
    return true;
  }

  /// The question in the words of `/v1/lab`.
  function question(more = {}) {
    const { traffic, algorithms, limit, burst, windowMillis, attackPercent, nodes, accuracy, syncMillis, rate, count, lengthMillis } = { ...state, ...more };
    const kept = accuracy === "exact" ? algorithms : algorithms.filter((name) => AHEAD.includes(name));
    const body = { traffic, algorithms: kept, limit, windowMillis, nodes, accuracy, lengthMillis };
    if (kept.includes("token_bucket")) body.burst = burst;
    if (traffic === "boundary") body.attackPercent = attackPercent;
    if (traffic === "burst") body.count = count;
    if (traffic === "steady" || traffic === "bursty") body.rate = rate;
    if (accuracy === "synced") Object.assign(body, { syncMillis, maxAhead: "unbounded" });
    return body;
  }

  /// One question at a time; while somebody drags, those in between are left out.
  async function run() {
    if (running) return;
    running = true;
    while (running) {
      const answering = asked;
      try {
        await answer();
        wrong.textContent = "";
      } catch (problem) {
        wrong.textContent = problem.message;
      }
      running = answering !== asked && main.isConnected;
    }
  }

  async function answer() {
    const asking = question();
    if (asking.algorithms.length === 0) throw new Error(`Choose an algorithm${state.accuracy === "exact" ? "" : ` that nodes can keep: ${AHEAD.join(", ")}`}.`);
    const window = state.windowMillis / 1000;
    const report = await send("POST", "/v1/lab", asking);
    numbers.show(report.lines);
    const most = Math.max(1, ...report.lines.flatMap(({ timeline }) => timeline.offered));
    pictures.replaceChildren(...report.lines.map((line) => steps(line, window, most)));
    took.textContent = `Computed by this server in ${lasting(report.tookMicros / 1e6)}: ${count(report.lines.reduce((sum, line) => sum + line.offered, 0))} requests.`;
    took.dataset.accuracy = asking.accuracy;
    await compare();
  }

  /// The textbook's line and the code's own count, for lags from none to a whole window.
  async function compare() {
    const name = AHEAD.filter((name) => name !== "token_bucket").find((name) => state.algorithms.includes(name));
    if (state.accuracy !== "synced" || state.nodes < 2 || state.traffic !== "steady" || !name) {
      textbook.replaceChildren();
      return;
    }
    const window = state.windowMillis;
    const lags = [...Array.from({ length: 11 }, (_, part) => Math.round(window * part / 100) * 10), state.syncMillis];
    const wanted = [...new Set(lags)].filter((lag) => lag <= window && lag <= 60000).sort((one, other) => one - other);
    const points = await Promise.all(wanted.map(async (lag) => {
      const accuracy = lag < 10 ? "exact" : "synced";
      const report = await send("POST", "/v1/lab", question({ accuracy, syncMillis: lag, algorithms: [name], lengthMillis: window }));
      return { lag, admitted: report.lines[0].admitted };
    }));
    const { limit, nodes, syncMillis } = state;
    textbook.replaceChildren(sweep({ limit, nodes, window, lag: syncMillis, points }));
  }

  choose("Boundary attack", SCENES["Boundary attack"]);
  return () => { running = false; };
}
