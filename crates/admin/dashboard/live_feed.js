// The live data of the server: requested once a second for all pages, and stored for five minutes.

import { get } from "./api.js";

const HISTORY_SECONDS = 300;
const POLL_MILLIS = 1000;

const subscribers = new Set();
const feed = { seconds: [], now: null };

/// Calls `onUpdate` now and after every update. Returns a function that ends the subscription.
export function subscribe(onUpdate) {
  subscribers.add(onUpdate);
  if (feed.now) onUpdate(feed);
  return () => subscribers.delete(onUpdate);
}

async function update() {
  const state = document.getElementById("state");
  try {
    const last = feed.seconds.at(-1)?.at;
    const now = await get(last ? `/v1/live?since=${last}` : "/v1/live");
    // After a restart of the server, the seconds of the old process are dropped.
    if (feed.now && feed.now.started !== now.started) feed.seconds = [];
    feed.seconds = feed.seconds.concat(now.seconds).slice(-HISTORY_SECONDS);
    feed.now = now;
    state.textContent = now.ready ? `${now.node} is ready` : `${now.node} is not ready`;
    state.className = now.ready ? "good" : "bad";
    for (const onUpdate of subscribers) onUpdate(feed);
  } catch (error) {
    state.textContent = error.message;
    state.className = "bad";
  }
}

/// Requests the live data every second, except while the tab is hidden.
export async function startFeed() {
  for (;;) {
    if (!document.hidden) await update();
    await new Promise((resolve) => setTimeout(resolve, POLL_MILLIS));
  }
}

/// Calls `work` now and every `millis`. Returns a function that stops it. Errors are ignored: the feed shows them at the
/// top of the page.
export function poll(millis, work) {
  let stopped = false;
  (async () => {
    while (!stopped) {
      if (!document.hidden) await work().catch(() => {});
      await new Promise((resolve) => setTimeout(resolve, millis));
    }
  })();
  return () => { stopped = true; };
}
