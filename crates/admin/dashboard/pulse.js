// What happens now: asked once a second for all pages together, and kept for five minutes.

import { get } from "./api.js";

const KEPT = 300;
const EVERY = 1000;

const heard = new Set();
export const pulse = { seconds: [], now: null };

/// Calls `hear` now and whenever there is something new; the answer ends that.
export function listen(hear) {
  heard.add(hear);
  if (pulse.now) hear(pulse);
  return () => heard.delete(hear);
}

async function beat() {
  const state = document.getElementById("state");
  try {
    const last = pulse.seconds.at(-1)?.at;
    const now = await get(last ? `/v1/live?since=${last}` : "/v1/live");
    // A server that was started anew may be behind what its predecessor said.
    if (pulse.now && pulse.now.started !== now.started) pulse.seconds = [];
    pulse.seconds = pulse.seconds.concat(now.seconds).slice(-KEPT);
    pulse.now = now;
    state.textContent = now.ready ? `${now.node} is ready` : `${now.node} is not ready`;
    state.className = now.ready ? "good" : "bad";
    for (const hear of heard) hear(pulse);
  } catch (problem) {
    state.textContent = problem.message;
    state.className = "bad";
  }
}

export async function start() {
  for (;;) {
    if (!document.hidden) await beat();
    await new Promise((resolve) => setTimeout(resolve, EVERY));
  }
}

/// Does something now and again until it is ended. What fails is said at the top of the page anyway.
export function every(millis, work) {
  let over = false;
  (async () => {
    while (!over) {
      if (!document.hidden) await work().catch(() => {});
      await new Promise((resolve) => setTimeout(resolve, millis));
    }
  })();
  return () => { over = true; };
}
