/**
 * Chats as they must be. What is read from a file or from this browser's storage may be anything:
 * of it, known fields of the right kind are copied, and the rest is left behind.
 */

export const ID = /^[A-Za-z0-9_-]{1,64}$/;
export const TITLE_CHARS_MAX = 100;

const TEXT_CHARS_MAX = 4_000_000;
const ITEMS_MAX = 10_000;
const DEPTH_MAX = 32;
const STATES = ["done", "stopped", "broken", "unanswered", "running"];
const PLACES = ["pool", "host", "peer", "disk", "objects"];
const EFFORTS = ["none", "low", "medium", "high"];

export class Malformed extends Error {
  name = "Malformed";
}

function text(value, what, charsMax = TEXT_CHARS_MAX) {
  if (typeof value !== "string") throw new Malformed(`${what} is no text`);
  if (value.length > charsMax) throw new Malformed(`${what} is too long`);
  return value.toWellFormed?.() ?? value;
}

function object(value, what) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) {
    throw new Malformed(`${what} is no object`);
  }
  return value;
}

function list(value, what, itemsMax = ITEMS_MAX) {
  if (!Array.isArray(value)) throw new Malformed(`${what} is no list`);
  if (value.length > itemsMax) throw new Malformed(`${what} is too long`);
  return value;
}

const amount = (value) => (Number.isFinite(value) && value >= 0 ? value : null);
const given = (value) => value !== null && value !== undefined;

/** The fields that are there. */
function some(fields) {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => given(value)));
}

/**
 * @returns {object} a chat of what is one.
 * @throws {Malformed} it is none.
 */
export function chatOf(value) {
  const { id, title, model, settings, messages, updatedAtMs, isNamed, origin } = object(value, "the chat");
  if (typeof id !== "string" || !ID.test(id)) throw new Malformed("its id is none");
  return {
    id,
    title: text(title, "its title").slice(0, TITLE_CHARS_MAX),
    model: given(model) ? text(model, "its model", 1_000) : null,
    settings: settingsOf(given(settings) ? settings : {}),
    messages: messagesOf(messages, DEPTH_MAX),
    lease: typeof value.lease === "string" ? value.lease : null,
    updatedAtMs: amount(updatedAtMs) ?? 0,
    ...some({ isNamed: isNamed === true || null, origin: typeof origin === "string" ? origin.slice(0, 200) : null }),
  };
}

export function settingsOf(value) {
  const { system, tools, reasoning_effort: effort } = object(value, "its settings");
  const numbers = ["temperature", "top_p", "max_tokens", "seed"].map((name) => [name, amount(value[name])]);
  return {
    system: given(system) ? text(system, "its system prompt") : null,
    tools: given(tools) ? list(tools, "its tools", 1_000).map(toolOf) : null,
    reasoning_effort: EFFORTS.includes(effort) ? effort : null,
    ...Object.fromEntries(numbers),
  };
}

function toolOf(value) {
  text(object(object(value, "a tool").function, "a tool").name, "a tool's name", 1_000);
  return JSON.parse(text(JSON.stringify(value), "a tool", 100_000));
}

function messagesOf(value, depth) {
  return list(value, "its messages").map((each) => messageOf(object(each, "a message"), depth));
}

function messageOf(value, depth) {
  const { role } = value;
  const content = text(value.content ?? "", "a message");
  if (role === "user") {
    const files = value.files && list(value.files, "its files", 100).map(fileOf);
    return { role, content, ...some({ files: files?.length ? files : null }) };
  }
  if (role === "tool") return { role, content, tool_call_id: text(value.tool_call_id, "a call's id", 1_000) };
  if (role !== "assistant") throw new Malformed("a message has an unknown role");
  const state = value.state === "running" && depth < DEPTH_MAX ? "broken" : value.state;
  return {
    role,
    content,
    state: STATES.includes(state) ? state : "done",
    ...some({
      reasoning_content: given(value.reasoning_content) ? text(value.reasoning_content, "a thought") : null,
      tool_calls: value.tool_calls && list(value.tool_calls, "its calls", 1_000).map(callOf),
      finish: typeof value.finish === "string" ? value.finish.slice(0, 100) : null,
      reason: typeof value.reason === "string" ? value.reason.slice(0, 10_000) : null,
      figures: given(value.figures) ? figuresOf(object(value.figures, "its figures")) : null,
      versions: value.versions && versionsOf(list(value.versions, "its versions", 100), depth - 1),
      replaced: value.replaced && replacedOf(object(value.replaced, "what it replaced"), depth - 1),
    }),
  };
}

function fileOf(value) {
  const { name, text: said } = object(value, "a file");
  return { name: text(name, "a file's name", 1_000), text: text(said, "a file") };
}

function callOf(value) {
  const { id, function: called } = object(value, "a call");
  const { name, arguments: args } = object(called, "a call");
  const made = { name: text(name, "a call's name", 1_000), arguments: text(args, "a call's arguments") };
  return { id: text(id, "a call's id", 1_000), type: "function", function: made };
}

/** One place is null, that of the shown version; each other begins with an answer. */
function versionsOf(value, depth) {
  if (depth < 0 || value.length < 2) return null;
  const versions = value.map((messages) => (messages === null ? null : messagesOf(messages, depth)));
  const isWhole = versions.every((messages) => messages === null || messages[0]?.role === "assistant");
  if (!isWhole || versions.filter((messages) => messages === null).length !== 1) {
    throw new Malformed("its versions are none");
  }
  return versions;
}

function replacedOf({ at, messages }, depth) {
  if (depth < 0 || !Number.isSafeInteger(at) || at < 0) return null;
  return { at, messages: messagesOf(messages, depth) };
}

function figuresOf({ usage, hintLeadMs, firstTokenMs, tokensPerS }) {
  return {
    usage: given(usage) ? usageOf(object(usage, "its usage")) : null,
    hintLeadMs: amount(hintLeadMs),
    firstTokenMs: amount(firstTokenMs),
    tokensPerS: amount(tokensPerS),
  };
}

function usageOf({ prompt_tokens: prompt, completion_tokens: completion, prompt_tokens_details: details }) {
  const places = details?.cached_tokens_details ?? {};
  const counts = PLACES.map((place) => [place, amount(places[place])]);
  return {
    prompt_tokens: amount(prompt) ?? 0,
    completion_tokens: amount(completion) ?? 0,
    prompt_tokens_details: {
      cached_tokens: amount(details?.cached_tokens) ?? 0,
      cached_tokens_details: some(Object.fromEntries(counts)),
    },
  };
}
