/** Notices when this tab was asleep: put away by the browser, or with the whole machine. */

const TICK_MS = 5_000;
const SLEPT_MS = 150_000; // timers of a tab that is merely hidden fire once a minute

export function onWake(listener) {
  let tickedAtMs = Date.now();
  setInterval(() => {
    const sleptMs = Date.now() - tickedAtMs;
    tickedAtMs = Date.now();
    if (sleptMs > SLEPT_MS) listener();
  }, TICK_MS);
}
