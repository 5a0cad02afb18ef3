// The page "Lab": simulations of limits under traffic. The server runs them with the code that decides real requests.

import { send } from "./api.js";
import { h, table } from "./dom.js";
import { steps, sweep } from "./lab_chart.js";
import { count, duration } from "./format.js";

const ALGORITHMS = ["token_bucket", "fixed_window", "sliding_window", "sliding_log", "leaky_bucket"];

/// Algorithms that support another accuracy than exact.
const COORDINATED_ALGORITHMS = ["token_bucket", "fixed_window", "sliding_window"];

/// Predefined simulations.
const SCENES = {
  "Boundary attack": {
    about: "A client uses its limit at the end of a window, and again at the start of the next one.",
    traffic: "boundary", algorithms: ["fixed_window", "sliding_window", "token_bucket", "sliding_log"],
    limit: 20, burst: 20, windowMillis: 1000, attackPercent: 85, nodes: 1, accuracy: "exact", syncMillis: 200, rate: 50, count: 30, lengthMillis: 2000,
  },
  "Sync lag": {
    about: "Nodes decide alone, and report to each other after a delay what they admitted.",
    traffic: "steady", algorithms: ["fixed_window"],
    limit: 60, burst: 60, windowMillis: 1000, attackPercent: 85, nodes: 3, accuracy: "synced", syncMillis: 400, rate: 270, count: 30, lengthMillis: 1000,
  },
  Burst: {
    about: "All requests arrive at once. How many are admitted depends on the burst size.",
    traffic: "burst", algorithms: ["token_bucket", "leaky_bucket", "fixed_window"],
    limit: 10, burst: 50, windowMillis: 1000, attackPercent: 85, nodes: 1, accuracy: "exact", syncMillis: 200, rate: 50, count: 30, lengthMillis: 2000,
  },
  "Steady traffic": {
    about: "Requests arrive evenly, at a rate above the limit.",
    traffic: "steady", algorithms: ["token_bucket", "fixed_window", "sliding_window", "sliding_log"],
    limit: 20, burst: 40, windowMillis: 1000, attackPercent: 85, nodes: 1, accuracy: "exact", syncMillis: 200, rate: 50, count: 30, lengthMillis: 5000,
  },
};

/// `[name, label, min, max, step, unit]`.
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
  /// Number of changes of the settings, to detect a change while a simulation runs.
  let changes = 0;
  let running = false;

  const about = h("p", { id: "scene-about" });
  const scenes = Object.entries(SCENES).map(([name, scene]) => h("button", {
    type: "button", "aria-pressed": "false", "data-scene": name, onclick: () => chooseScene(name, scene),
  }, name));
  const sliders = Object.fromEntries(SLIDERS.map(([name, label, min, max, step, unit]) => {
    const output = h("output", { for: `lab-${name}` });
    const input = h("input", { type: "range", id: `lab-${name}`, min, max, step, oninput: () => set(name, Number(input.value)) });
    const element = h("div", { class: "slider" }, h("label", { for: `lab-${name}` }, label), input, output);
    return [name, { element, input, output, unit }];
  }));
  const algorithms = ALGORITHMS.map((name) => {
    const input = h("input", { type: "checkbox", id: `lab-${name}`, onchange: chooseAlgorithms });
    return { name, input, element: h("label", { class: "tick" }, input, " ", name) };
  });
  const accuracy = h("select", { id: "lab-accuracy", onchange: () => set("accuracy", accuracy.value) },
    ["exact", "leased", "synced", "split"].map((name) => h("option", {}, name)));
  const traffic = h("select", { id: "lab-traffic", onchange: () => set("traffic", traffic.value) },
    [["boundary", "boundary attack"], ["steady", "steady"], ["bursty", "bursty"], ["burst", "all at once"]].map(([value, name]) => h("option", { value }, name)));
  const pictures = h("div", { id: "pictures" });
  const textbook = h("div", { id: "textbook" });
  const failure = h("p", { class: "bad", role: "alert" });
  const numbers = table("Results", [
    { head: "limit", cell: (row) => row.name },
    { head: "offered", number: true, cell: (row) => count(row.offered) },
    { head: "admitted", number: true, cell: (row) => count(row.admitted) },
    { head: "denied", number: true, cell: (row) => count(row.denied) },
    { head: "in any window", number: true, cell: (row) => row.bound === undefined ? "" : `${count(row.most)} of ${count(row.bound)}` },
    { head: "within", number: true, cell: (row) => row.most ? (row.withinSeconds ? duration(row.withinSeconds) : "at once") : "" },
    { head: "rate", number: true, cell: (row) => row.withinSeconds ? `${count(row.most / row.withinSeconds)}/s` : "" },
    { head: "over", number: true, cell: (row) => count(row.over) },
    { head: "textbook", number: true, hideEmpty: true, cell: (row) => count(row.textbook) },
    { head: "longest wait", number: true, hideEmpty: true, cell: (row) => row.longestWaitSeconds ? duration(row.longestWaitSeconds) : "" },
  ], (row) => row.name);
  const took = h("p", { class: "quiet", id: "took" });

  main.append(h("h1", {}, "Lab"),
    h("div", { class: "row scenes", role: "group", "aria-label": "Scenes" }, scenes), about,
    h("div", { class: "bench" },
      h("form", { class: "controls", "aria-label": "Settings of the simulation", onsubmit: (event) => event.preventDefault() },
        h("label", { class: "field" }, h("span", {}, "Traffic"), traffic),
        h("fieldset", {}, h("legend", {}, "Algorithms"), algorithms.map(({ element }) => element)),
        h("label", { class: "field" }, h("span", {}, "Accuracy"), accuracy),
        SLIDERS.map(([name]) => sliders[name].element)),
      h("div", {}, failure, numbers.element, textbook, pictures, took)));

  function chooseScene(name, scene) {
    state = { ...scene };
    about.textContent = scene.about;
    for (const button of scenes) button.setAttribute("aria-pressed", String(button.dataset.scene === name));
    update();
  }

  function set(name, value) {
    state[name] = value;
    update();
  }

  function chooseAlgorithms() {
    state.algorithms = algorithms.filter(({ input }) => input.checked).map(({ name }) => name);
    update();
  }

  /// Shows the settings, and starts the simulation.
  function update() {
    for (const [name, { input, output, unit, element }] of Object.entries(sliders)) {
      input.value = state[name];
      const text = `${state[name]}${unit ? ` ${unit}` : ""}`;
      output.textContent = text;
      input.setAttribute("aria-valuetext", text);
      element.hidden = !isUsed(name);
    }
    for (const { name, input } of algorithms) {
      input.checked = state.algorithms.includes(name);
      input.disabled = state.accuracy !== "exact" && !COORDINATED_ALGORITHMS.includes(name);
    }
    accuracy.value = state.accuracy;
    traffic.value = state.traffic;
    changes += 1;
    run();
  }

  /// Returns whether a setting has an effect on this simulation. Other settings are hidden.
  function isUsed(name) {
    if (name === "attackPercent") return state.traffic === "boundary";
    if (name === "count") return state.traffic === "burst";
    if (name === "rate") return state.traffic === "steady" || state.traffic === "bursty";
    if (name === "burst") return state.algorithms.includes("token_bucket");
    if (name === "syncMillis") return state.accuracy === "synced";
    return true;
  }

  /// Returns the body of a request to `/v1/lab`.
  function requestBody(more = {}) {
    const { traffic, algorithms, limit, burst, windowMillis, attackPercent, nodes, accuracy, syncMillis, rate, count, lengthMillis } = { ...state, ...more };
    const supported = accuracy === "exact" ? algorithms : algorithms.filter((name) => COORDINATED_ALGORITHMS.includes(name));
    const body = { traffic, algorithms: supported, limit, windowMillis, nodes, accuracy, lengthMillis };
    if (supported.includes("token_bucket")) body.burst = burst;
    if (traffic === "boundary") body.attackPercent = attackPercent;
    if (traffic === "burst") body.count = count;
    if (traffic === "steady" || traffic === "bursty") body.rate = rate;
    if (accuracy === "synced") Object.assign(body, { syncMillis, maxAhead: "unbounded" });
    return body;
  }

  /// Runs one simulation at a time. While a slider is dragged, intermediate settings are skipped.
  async function run() {
    if (running) return;
    running = true;
    while (running) {
      const started = changes;
      try {
        await simulate();
        failure.textContent = "";
      } catch (error) {
        failure.textContent = error.message;
      }
      running = started !== changes && main.isConnected;
    }
  }

  async function simulate() {
    const body = requestBody();
    if (body.algorithms.length === 0) throw new Error(`Choose an algorithm${state.accuracy === "exact" ? "" : ` that supports this accuracy: ${COORDINATED_ALGORITHMS.join(", ")}`}.`);
    const window = state.windowMillis / 1000;
    const report = await send("POST", "/v1/lab", body);
    numbers.show(report.lines);
    const max = Math.max(1, ...report.lines.flatMap(({ timeline }) => timeline.offered));
    pictures.replaceChildren(...report.lines.map((line) => steps(line, window, max)));
    took.textContent = `Computed by this server in ${duration(report.tookMicros / 1e6)}: ${count(report.lines.reduce((sum, line) => sum + line.offered, 0))} requests.`;
    took.dataset.accuracy = body.accuracy;
    await compare();
  }

  /// Draws the textbook formula and the simulated count, for sync lags from 0 to a whole window.
  async function compare() {
    const name = COORDINATED_ALGORITHMS.filter((name) => name !== "token_bucket").find((name) => state.algorithms.includes(name));
    if (state.accuracy !== "synced" || state.nodes < 2 || state.traffic !== "steady" || !name) {
      textbook.replaceChildren();
      return;
    }
    const window = state.windowMillis;
    const lags = [...Array.from({ length: 11 }, (_, step) => Math.round(window * step / 100) * 10), state.syncMillis];
    const wanted = [...new Set(lags)].filter((lag) => lag <= window && lag <= 60000).sort((one, other) => one - other);
    const points = await Promise.all(wanted.map(async (lag) => {
      const accuracy = lag < 10 ? "exact" : "synced";
      const report = await send("POST", "/v1/lab", requestBody({ accuracy, syncMillis: lag, algorithms: [name], lengthMillis: window }));
      return { lag, admitted: report.lines[0].admitted };
    }));
    const { limit, nodes, syncMillis } = state;
    textbook.replaceChildren(sweep({ limit, nodes, window, lag: syncMillis, points }));
  }

  chooseScene("Boundary attack", SCENES["Boundary attack"]);
  return () => { running = false; };
}
