/** The page's other tabs: which of them live, and what they changed. */

export const TAB = randomId("tab-");

const ANSWER_MS = 400;
const channel = new BroadcastChannel("symphony-chat");
const listeners = new Set();
const asked = new Map(); // tab: callbacks that wait for a sign of it

/** A unique name; `crypto.randomUUID` is for HTTPS only. */
export function randomId(prefix) {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return prefix + Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Tell the other tabs that a chat is not what it was. */
export function tellChanged(id) {
  channel.postMessage({ kind: "changed", id });
}

/** Listen to what other tabs change. */
export function onChanged(listener) {
  listeners.add(listener);
}

/** Whether a tab is there and awake. One that sleeps does not answer, and counts as gone. */
export function isAlive(tab) {
  if (tab === TAB) return Promise.resolve(true);
  return new Promise((resolve) => {
    const waiting = asked.get(tab) ?? new Set();
    asked.set(tab, waiting.add(resolve));
    setTimeout(() => {
      waiting.delete(resolve);
      resolve(false);
    }, ANSWER_MS);
    channel.postMessage({ kind: "ask", tab });
  });
}

channel.addEventListener("message", ({ data }) => {
  if (data.kind === "changed") for (const listener of listeners) listener(data.id);
  else if (data.kind === "ask" && data.tab === TAB) channel.postMessage({ kind: "here", tab: TAB });
  else if (data.kind === "here") {
    for (const resolve of asked.get(data.tab) ?? []) resolve(true);
    asked.delete(data.tab);
  }
});
