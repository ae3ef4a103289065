/** A message's calls of tools, and a place to answer them. */

import { make } from "./dom.js";

/** @returns {Element[]} */
export function callViews(calls, isCutOff) {
  return calls.map((call, at) => {
    const isLast = at === calls.length - 1;
    const { name, arguments: given } = call.function;
    const head = make("div", { className: "code-head" }, make("span", {}, "calls ", make("b", { textContent: name })));
    if (isCutOff && isLast && !isObject(given)) {
      head.append(make("span", { className: "error", textContent: "cut off" }));
    }
    const pre = make("pre", { tabIndex: 0, role: "group", "aria-label": `Arguments of ${name}` });
    pre.append(make("code", { textContent: pretty(given) }));
    return make("div", { className: "code call" }, head, pre);
  });
}

/**
 * @param {(results: object[]) => void} onResults gets the messages that answer the calls.
 * @returns {Element}
 */
export function resultsForm(calls, onResults) {
  const areas = calls.map((call) => make("textarea", { rows: 2, spellcheck: false, required: true }));
  const labels = calls.map((call, at) => make("label", {}, `What ${call.function.name} gives`, areas[at]));
  const submit = (event) => {
    event.preventDefault();
    onResults(calls.map(({ id }, at) => ({ role: "tool", tool_call_id: id, content: areas[at].value })));
  };
  return make(
    "form", { className: "results", on: { submit } }, ...labels,
    make("button", { type: "submit", textContent: "Send results" }),
  );
}

function isObject(text) {
  try {
    return typeof JSON.parse(text) === "object";
  } catch {
    return false;
  }
}

function pretty(text) {
  return isObject(text) ? JSON.stringify(JSON.parse(text), null, 2) : text;
}
