/** One message of a chat, as elements. */

import { copyButton } from "./clipboard.js";
import { fileViews } from "./attachments.js";
import { button, fit, make } from "./dom.js";
import { figuresLine } from "./figures.js";
import { rendered } from "./markdown.js";
import { callViews, resultsForm } from "./toolcalls.js";
import { versionOf } from "./versions.js";

const LONG_CHARS = 3_000;
const HEADINGS = { user: "You", assistant: "Answer", tool: "A tool's result" };

/**
 * @param {object} message of a chat.
 * @param {boolean} isLast
 * @param {object} actions what its buttons do: `edit(element)`, `retry`, `version(at)`, `putBack`,
 *   `answerCalls`.
 */
export function messageView(message, isLast, actions) {
  const view = make("article", { className: `turn ${message.role} ${message.state ?? ""}` });
  view.append(make("h2", { className: "hidden", textContent: HEADINGS[message.role] }));
  if (message.role === "assistant") fillAnswer(view, message, isLast, actions);
  else fillSaid(view, message, actions);
  return view;
}

function fillSaid(view, message, actions) {
  const bubble = make("div", { className: "bubble plain", textContent: message.content });
  view.append(...fileViews(message.files ?? []));
  if (message.content) view.append(bubble);
  const row = make("div", { className: "actions" }, copyButton("Copy message", () => message.content));
  if (message.role === "user") {
    const edit = button("Edit", () => actions.edit(view), { "aria-label": "Edit message" });
    row.append(edit);
  }
  if (message.content.length > LONG_CHARS) {
    bubble.classList.add("folded");
    const toggle = button("Show all", () => {
      const isFolded = bubble.classList.toggle("folded");
      toggle.textContent = isFolded ? "Show all" : "Show less";
      toggle.setAttribute("aria-expanded", String(!isFolded));
    }, { "aria-expanded": "false" });
    row.prepend(toggle);
  }
  view.append(row);
}

function fillAnswer(view, message, isLast, actions) {
  if (message.reasoning_content) view.append(thoughts(message.reasoning_content, "Thoughts"));
  const bubble = make("div", { className: "bubble" });
  if (message.content) bubble.append(rendered(message.content));
  const isCutOff = message.finish === "length" || message.state !== "done";
  const calls = message.tool_calls ?? [];
  bubble.append(...callViews(calls, isCutOff));
  view.append(bubble);
  const notice = noticeOf(message);
  if (notice) view.append(make("p", { className: "notice", textContent: notice }));
  const isAnswerable = isLast && calls.length > 0 && message.finish === "tool_calls";
  if (isAnswerable) view.append(resultsForm(calls, actions.answerCalls));
  const line = message.figures && figuresLine(message.figures);
  if (line) view.append(line);
  if (message.state !== "running") view.append(answerActions(message, isLast, actions));
}

function answerActions(message, isLast, actions) {
  const row = make("div", { className: "actions" }, ...versionButtons(message, actions));
  if (message.content) row.append(copyButton("Copy answer", () => message.content));
  if (isLast) {
    const isOver = message.state === "done" || message.state === "stopped";
    row.append(button(isOver ? "Regenerate" : "Try again", actions.retry, { className: "quiet retry" }));
  }
  if (isLast && message.replaced) row.append(button("Put back what was there", actions.putBack));
  return row;
}

function versionButtons(message, actions) {
  const { at, num } = versionOf(message);
  if (num === 1) return [];
  const step = (label, text, to) => button(text, () => actions.version(to), {
    "aria-label": label, title: label, disabled: to < 0 || to >= num, className: "quiet step",
  });
  const text = make("span", { className: "remark", textContent: `${at + 1} of ${num}` });
  return [step("Earlier version", "‹", at - 1), text, step("Later version", "›", at + 1)];
}

function noticeOf({ state, reason, finish }) {
  if (state === "unanswered") return `Not answered. ${reason}`;
  if (state === "broken") return `The answer broke off. ${reason}`;
  if (state === "stopped") return "Stopped.";
  if (state === "done" && finish === "length") return "Cut off: that is as long as an answer may be.";
  return "";
}

function thoughts(text, label) {
  const body = make("div", { className: "plain", textContent: text });
  return make("details", { className: "thoughts" }, make("summary", { textContent: label }), body);
}

/** An answer that is being written. */
export class LiveAnswer {
  element;
  #bubble = make("div", { className: "bubble" });
  #thoughts = null;
  #timer = null;
  #tookMs = 0;
  #afterDraw;

  constructor(afterDraw) {
    const heading = make("h2", { className: "hidden", textContent: HEADINGS.assistant });
    this.element = make("article", { className: "turn assistant running" }, heading, this.#bubble);
    this.#afterDraw = afterDraw;
  }

  /** Draw it soon; seldom, where drawing takes long. */
  update(reply) {
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      const startedAtMs = performance.now();
      this.#draw(reply);
      this.#tookMs = performance.now() - startedAtMs;
      this.#afterDraw();
    }, Math.max(30, 5 * this.#tookMs));
  }

  end() {
    clearTimeout(this.#timer);
  }

  #draw(reply) {
    if (reply.reasoning) {
      if (this.#thoughts === null) {
        this.#thoughts = thoughts("", "Thinking…");
        this.#bubble.before(this.#thoughts);
      }
      const [summary, body] = this.#thoughts.children;
      body.textContent = reply.reasoning;
      summary.textContent = reply.content ? "Thoughts" : "Thinking…";
    }
    const calls = reply.message.tool_calls ?? [];
    this.#bubble.replaceChildren(rendered(reply.content), ...callViews(calls, false));
  }
}

/** A message of the user's, opened for changes. */
export function editor(text, { onSave, onCancel }) {
  const area = make("textarea", { value: text, "aria-label": "Your message, changed" });
  const save = () => { if (area.value.trim()) onSave(area.value); };
  const row = make(
    "div", { className: "row" },
    make("span", { className: "remark", textContent: "What came after it is answered again." }),
    button("Cancel", onCancel),
    make("button", { type: "button", className: "main", on: { click: save } }, "Send"),
  );
  const keys = (event) => {
    if (event.key === "Escape") onCancel();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
  };
  const element = make("div", { className: "editor", on: { keydown: keys } }, area, row);
  area.addEventListener("input", () => fit(area));
  return { element, area };
}
