/** What a chat is, and which of its messages the model gets. */

import { contentWith } from "./attachments.js";
import { randomId } from "./tabs.js";

const TITLE_CHARS = 60;

/** A chat that nothing was said in yet. Its id is its session's. */
export function freshChat(settings, model) {
  return {
    id: randomId("web-"), title: "New chat", model, settings, messages: [], lease: null,
    updatedAtMs: Date.now(),
  };
}

/** What the list calls a chat that begins with this message. */
export function titleFor({ content, files = [] }) {
  const line = (content.trim() || files[0]?.name || "").replace(/\s+/g, " ");
  return line.length > TITLE_CHARS ? `${line.slice(0, TITLE_CHARS - 1).trimEnd()}…` : line;
}

/** The messages as the server takes them; what was never answered is left out. */
export function historyOf({ settings, messages }) {
  const sent = settings.system ? [{ role: "system", content: settings.system }] : [];
  for (const message of messages) {
    const { role, content, state, reasoning_content, tool_calls, tool_call_id } = message;
    if (role !== "assistant") {
      sent.push(role === "tool" ? { role, content, tool_call_id } : { role, content: contentWith(message) });
    } else if (state === "unanswered") {
      if (sent.at(-1)?.role === "user") sent.pop();
    } else if (state !== "running") {
      const answer = { role, content };
      if (reasoning_content) answer.reasoning_content = reasoning_content;
      if (tool_calls) answer.tool_calls = tool_calls;
      sent.push(answer);
    }
  }
  return sent;
}

/** The request's fields that a chat's settings stand for. */
export function fieldsOf({ system: _, ...settings }) {
  const given = Object.entries(settings).filter(([, value]) => value !== null && value !== undefined);
  return Object.fromEntries(given);
}

/** Where the last turn begins: at the last message of the user's or of a tool's answers. */
export function lastAsked(messages) {
  return messages.findLastIndex(({ role }) => role !== "assistant");
}
