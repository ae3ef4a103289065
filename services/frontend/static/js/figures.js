/** Under an answer: where its prompt's KV was, the hint's lead, the first token, tokens a second. */

import { make } from "./dom.js";

const PLACES = {
  pool: "in the worker's KV pool",
  host: "in host memory",
  peer: "on another host",
  disk: "on disk",
  objects: "in the object store",
};

/** @returns {Element | null} of a message's `figures`; null: nothing is known. */
export function figuresLine({ usage, hintLeadMs, firstTokenMs, tokensPerS = null }) {
  if (!usage && firstTokenMs === null) return null;
  const parts = [];
  const line = make("div", { className: "figures" });
  if (usage) {
    const places = placesOf(usage);
    line.append(bar(places));
    parts.push(memoryText(usage, places));
  }
  parts.push(hintLeadMs === null ? "no hint" : `hint ${shown(hintLeadMs)} ahead`);
  if (firstTokenMs !== null) parts.push(`first token ${shown(firstTokenMs)}`);
  if (tokensPerS !== null) parts.push(`${tokensPerS.toFixed(tokensPerS < 10 ? 1 : 0)} tokens/s`);
  if (usage) parts.push(`${usage.completion_tokens} tokens generated`);
  line.append(make("span", { textContent: parts.join(" · ") }));
  return line;
}

function placesOf({ prompt_tokens: numPrompt, prompt_tokens_details: details }) {
  const numCached = details?.cached_tokens ?? 0;
  const known = details?.cached_tokens_details ?? {};
  const places = Object.keys(PLACES)
    .map((place) => ({ place, text: PLACES[place], num: Number(known[place]) || 0 }))
    .filter(({ num }) => num > 0);
  const numElsewhere = numCached - places.reduce((sum, { num }) => sum + num, 0);
  if (numElsewhere > 0) places.push({ place: "kept", text: "cached", num: numElsewhere });
  const numNew = Math.max(numPrompt - numCached, 0);
  if (numNew > 0) places.push({ place: "computed", text: "computed", num: numNew });
  return places;
}

function memoryText({ prompt_tokens: numPrompt }, places) {
  const counts = places.map(({ num, text }) => `${num} ${text}`).join(", ");
  return `${numPrompt} prompt tokens: ${counts}`;
}

function bar(places) {
  const segments = places.map(({ place, num }) => {
    const segment = make("span", { className: `at-${place}` });
    segment.style.flexGrow = num;
    return segment;
  });
  return make("span", { className: "bar", "aria-hidden": "true" }, ...segments);
}

function shown(ms) {
  return ms < 1_000 ? `${Math.round(ms)} ms` : `${(ms / 1_000).toFixed(1)} s`;
}
