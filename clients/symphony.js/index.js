/**
 * Chats with a Symphony server, and announces a turn while it is still being typed.
 *
 *     const symphony = new Symphony({ baseURL: "http://127.0.0.1:8080/v1", model: "smollm2-135m" });
 *     const session = symphony.session();
 *     session.watch(document.querySelector("textarea"));
 *
 * A hint is never needed for an answer. So none throws, and no turn waits for one.
 */

const HINT_TIMEOUT_MS = 5_000;
const EMPTY_AFTER_MS = 5_000;
const EVENT_CHARS_MAX = 16 * 1024 * 1024;
const ID_CHARS_MAX = 256;

/** What the server refused, or why it could not be asked. */
export class SymphonyError extends Error {
  name = "SymphonyError";

  /**
   * @param {string} message
   * @param {object} [details] status: of HTTP, null where there was none; code, type, param: the
   *   server's, or the code `connection_failed`, `stream_broken` or `bad_event`; retryAfterS: its
   *   `Retry-After`.
   */
  constructor(message, { status, code, type, param, retryAfterS, cause } = {}) {
    super(message, { cause });
    this.status = status ?? null;
    this.code = code ?? null;
    this.type = type ?? null;
    this.param = param ?? null;
    this.retryAfterS = retryAfterS ?? null;
  }
}

/** A server, and how to ask it. `apiKey` and `model` may be set at any time. */
export class Symphony {
  #fetch;

  /**
   * @param {object} [options] baseURL: with or without `/v1`, by default the page's own server;
   *   model: asked where a session or a turn names none; fetch: what to use in place of it.
   */
  constructor({ baseURL, apiKey = null, model = null, fetch } = {}) {
    this.baseURL = versioned(baseURL ?? globalThis.location?.origin);
    this.apiKey = apiKey;
    this.model = model;
    this.#fetch = fetch ?? ((...args) => globalThis.fetch(...args));
  }

  /** A conversation, by the name that the server knows it by; without one, a new one. */
  session(id = newSessionId(), { model = null } = {}) {
    return new Session(this, id, model);
  }

  /** What can be asked now: the entries of `/v1/models`. */
  async models({ signal } = {}) {
    const response = await this.request("GET", "/models", { signal });
    return (await response.json()).data;
  }

  /**
   * Send a request below `/v1`.
   *
   * @returns {Promise<Response>} whose status is one of success; its body is still to be read.
   * @throws {SymphonyError} anything else came, or nothing.
   */
  async request(method, path, { body, signal, keepalive = false } = {}) {
    const headers = {};
    if (this.apiKey) headers.Authorization = `Bearer ${this.apiKey}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const init = { method, headers, signal, keepalive };
    if (body !== undefined) init.body = JSON.stringify(body);
    let response;
    try {
      response = await this.#fetch(this.baseURL + path, init);
    } catch (error) {
      signal?.throwIfAborted();
      const details = { code: "connection_failed", cause: error };
      throw new SymphonyError("The server cannot be reached.", details);
    }
    if (!response.ok) throw await refusal(response);
    return response;
  }
}

/** A conversation. Made by `Symphony.session`. */
export class Session {
  #symphony;
  #hints = Promise.resolve(); // one after the other, so that none overtakes an earlier one
  #advisedAtMs = null; // when the coming turn was announced
  #numTurns = 0;
  #numRunning = 0;
  #watchers = new Set();

  constructor(symphony, id, model) {
    if (typeof id !== "string" || !id || id.length > ID_CHARS_MAX || id === "." || id === "..") {
      throw new TypeError(`a session's id has 1 to ${ID_CHARS_MAX} characters, and is no dots`);
    }
    this.#symphony = symphony;
    this.id = id;
    this.model = model;
  }

  /** Whether the coming turn was announced. */
  get isAdvised() {
    return this.#advisedAtMs !== null;
  }

  /**
   * Announce each turn as it begins to be typed or pasted, once. What was announced is taken back
   * when the text has been gone for a while, and when the page is left.
   *
   * @param {HTMLElement} element a textarea, an input, or anything editable.
   * @param {object} [options] emptyAfterMs: how long that while is; onAdvised: called with whether
   *   a turn is announced, as often as that changes.
   * @returns {() => void} ends it.
   */
  watch(element, { emptyAfterMs = EMPTY_AFTER_MS, onAdvised } = {}) {
    let emptied = null;
    const check = () => {
      clearTimeout(emptied);
      if (this.#numRunning > 0) return;
      if (textOf(element)) {
        if (!this.isAdvised) this.advise();
      } else if (this.isAdvised) {
        emptied = setTimeout(() => {
          if (this.isAdvised && this.#numRunning === 0) this.invalidate();
        }, emptyAfterMs);
        emptied.unref?.(); // of Node, which need not stay up for it
      }
    };
    const leave = () => {
      if (this.isAdvised) this.invalidate({ keepalive: true });
    };
    let sent = ""; // what some pages leave standing until it is answered announces nothing
    const watcher = {
      onAdvised,
      onBegin: () => { sent = textOf(element); },
      onEnd: () => { if (textOf(element) !== sent) check(); },
    };
    element.addEventListener("input", check);
    this.#watchers.add(watcher);
    globalThis.addEventListener?.("pagehide", leave);
    globalThis.addEventListener?.("pageshow", check); // the browser may have kept the page
    return () => {
      clearTimeout(emptied);
      element.removeEventListener("input", check);
      this.#watchers.delete(watcher);
      globalThis.removeEventListener?.("pagehide", leave);
      globalThis.removeEventListener?.("pageshow", check);
    };
  }

  /**
   * Say that the session's next turn is coming.
   *
   * @param {object} [options] expectedArrival: in seconds from now, if it is known; priority: 0 to
   *   9; ttlMs: for how long it is expected.
   * @returns {Promise<object | null>} what the server makes of it; null if that is unknown. It
   *   never rejects.
   */
  advise({ expectedArrival, priority, ttlMs } = {}) {
    this.#setAdvised(this.#advisedAtMs ?? performance.now());
    const body = { session_id: this.id, expected_arrival: expectedArrival, priority };
    body.model_id = this.model ?? this.#symphony.model ?? undefined;
    body.ttl_ms = ttlMs;
    const turn = this.#numTurns;
    return this.#hint(() => {
      if (turn !== this.#numTurns) return null; // the turn itself was quicker
      return this.#symphony.request("POST", "/advisories", { body, signal: soon() });
    });
  }

  /**
   * Say that it is not coming after all.
   *
   * @param {object} [options] keepalive: it has to outlive the page.
   * @returns {Promise<object | null>} as of `advise`.
   */
  invalidate({ keepalive = false } = {}) {
    this.#setAdvised(null);
    const path = `/advisories/${encodeURIComponent(this.id)}`;
    const send = () => this.#symphony.request("DELETE", path, { keepalive, signal: soon() });
    return this.#hint(send, keepalive);
  }

  /**
   * Take a turn. It is sent when the first event is asked for; who stops asking stops the turn.
   *
   * @param {object[]} messages the whole history, as OpenAI writes it.
   * @param {object} [options] signal: an AbortSignal; model; anything else is a field of the
   *   request, such as `temperature`, `max_tokens` or `tools`.
   * @yields {{type: string}} `start`, `content`, `reasoning`, `tool_call`, `finish`, `usage`.
   * @throws {SymphonyError} the server's error, or a stream that broke off; the signal's reason.
   */
  async *chat(messages, { signal, model, ...fields } = {}) {
    if ((fields.n ?? 1) !== 1) throw new TypeError("n: a session goes on from one answer");
    const hintLeadMs = this.#begin();
    try {
      const body = {
        ...fields,
        model: model ?? this.model ?? this.#symphony.model,
        messages,
        session_id: this.id,
        stream: true,
        stream_options: { ...fields.stream_options, include_usage: true },
      };
      const response = await this.#symphony.request("POST", "/chat/completions", { body, signal });
      yield { type: "start", hintLeadMs };
      for await (const data of eventData(response.body, signal)) {
        if (data === "[DONE]") return;
        yield* told(data);
      }
      throw new SymphonyError("The stream broke off.", { code: "stream_broken" });
    } finally {
      this.#end();
    }
  }

  /** Have the server forget the session and its memory. One that it does not know is no error. */
  async forget() {
    try {
      await this.#symphony.request("DELETE", `/sessions/${encodeURIComponent(this.id)}`);
    } catch (error) {
      if (error.status !== 404) throw error;
    }
  }

  #begin() {
    const advisedAtMs = this.#advisedAtMs;
    this.#setAdvised(null);
    this.#numTurns += 1;
    this.#numRunning += 1;
    for (const watcher of this.#watchers) watcher.onBegin();
    return advisedAtMs === null ? null : performance.now() - advisedAtMs;
  }

  #end() {
    this.#numRunning -= 1;
    for (const watcher of this.#watchers) watcher.onEnd(); // the next turn may be half typed
  }

  #setAdvised(atMs) {
    const was = this.isAdvised;
    this.#advisedAtMs = atMs;
    if (was === this.isAdvised) return;
    for (const watcher of this.#watchers) watcher.onAdvised?.(this.isAdvised);
  }

  #hint(send, isUrgent = false) {
    const earlier = isUrgent ? Promise.resolve() : this.#hints;
    const answer = earlier.then(send).then((response) => response && response.json());
    this.#hints = answer.catch(() => null);
    return this.#hints;
  }
}

/** What a turn's events add up to. */
export class Reply {
  content = "";
  reasoning = "";
  toolCalls = [];
  finishReason = null;
  usage = null;
  hintLeadMs = null;

  /** Take the next event; gives back the reply. */
  add(event) {
    switch (event.type) {
      case "start": this.hintLeadMs = event.hintLeadMs; break;
      case "content": this.content += event.text; break;
      case "reasoning": this.reasoning += event.text; break;
      case "finish": this.finishReason = event.reason; break;
      case "usage": this.usage = event.usage; break;
      case "tool_call": {
        this.toolCalls[event.index] ??= { id: "", name: "", arguments: "" };
        const call = this.toolCalls[event.index];
        call.id ||= event.id ?? "";
        call.name ||= event.name ?? "";
        call.arguments += event.arguments;
      }
    }
    return this;
  }

  /** Whether anything was said. */
  get isEmpty() {
    return !this.content && !this.reasoning && this.toolCalls.length === 0;
  }

  /** As it goes into the history of the next turn. */
  get message() {
    const message = { role: "assistant", content: this.content };
    if (this.reasoning) message.reasoning_content = this.reasoning;
    const calls = this.toolCalls.filter(Boolean);
    if (calls.length > 0) {
      message.tool_calls = calls.map(({ id, ...called }) => ({
        id, type: "function", function: called,
      }));
    }
    return message;
  }
}

/** Server-sent events as they come, cut anywhere. */
export class EventParser {
  #begun = []; // pieces of a line without its end: joined once, however many they are
  #data = [];
  #numBegun = 0; // characters of them
  #numData = 0;
  #skipsNewline = false; // a line ended in CR, and what follows may be its LF

  /**
   * @param {string} text what came.
   * @yields {string} the data of each event that is whole now.
   */
  *push(text) {
    if (this.#skipsNewline && text) {
      this.#skipsNewline = false;
      if (text[0] === "\n") text = text.slice(1);
    }
    let start = 0;
    for (const end of text.matchAll(/\r\n|\n|\r/g)) {
      const line = this.#begun.join("") + text.slice(start, end.index);
      this.#begun = [];
      this.#numBegun = 0;
      start = end.index + end[0].length;
      if (end[0] === "\r" && start === text.length) this.#skipsNewline = true;
      const data = this.#take(line);
      if (data !== null) yield data;
    }
    if (start < text.length) this.#begun.push(text.slice(start));
    this.#numBegun += text.length - start;
    if (this.#numBegun + this.#numData > EVENT_CHARS_MAX) {
      throw new SymphonyError("The server sent an event without an end.", { code: "bad_event" });
    }
  }

  #take(line) {
    if (line === "") {
      const data = this.#data.length > 0 ? this.#data.join("\n") : null;
      this.#data = [];
      this.#numData = 0;
      return data;
    }
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    if (name !== "data") return null; // a comment, whose name is empty, or what a chat has no use of
    const value = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
    this.#data.push(value);
    this.#numData += value.length;
    return null;
  }
}

async function* eventData(body, signal) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser();
  try {
    for (;;) {
      let read;
      try {
        read = await reader.read();
      } catch (error) {
        signal?.throwIfAborted();
        const details = { code: "stream_broken", cause: error };
        throw new SymphonyError("The connection was lost.", details);
      }
      if (read.done) return;
      yield* parser.push(decoder.decode(read.value, { stream: true }));
    }
  } finally {
    reader.cancel().catch(() => {}); // hangs up, if there is more to come
  }
}

function* told(data) {
  const chunk = parsed(data);
  if (chunk.error) {
    const { message, ...details } = Object(chunk.error);
    throw new SymphonyError(String(message ?? chunk.error), details);
  }
  for (const choice of chunk.choices ?? []) {
    const delta = choice.delta ?? {};
    const thought = delta.reasoning_content ?? delta.reasoning;
    if (thought) yield { type: "reasoning", text: thought };
    if (delta.content) yield { type: "content", text: delta.content };
    for (const [at, call] of (delta.tool_calls ?? []).entries()) {
      yield {
        type: "tool_call",
        index: call.index ?? at,
        id: call.id ?? null,
        name: call.function?.name ?? null,
        arguments: call.function?.arguments ?? "",
      };
    }
    if (choice.finish_reason) yield { type: "finish", reason: choice.finish_reason };
  }
  if (chunk.usage) yield { type: "usage", usage: chunk.usage };
}

function parsed(data) {
  try {
    return Object(JSON.parse(data));
  } catch (cause) {
    const details = { code: "bad_event", cause };
    throw new SymphonyError("The server sent an event that is none of a chat.", details);
  }
}

async function refusal(response) {
  const text = await response.text().catch(() => "");
  let error = {};
  try {
    error = Object(JSON.parse(text).error);
  } catch {
    // a proxy's page, or nothing
  }
  const { code, type, param } = error;
  const retryAfterS = Number.parseFloat(response.headers.get("retry-after") ?? "") || null;
  const message = String(error.message ?? `The server answered with HTTP ${response.status}.`);
  return new SymphonyError(message, { status: response.status, code, type, param, retryAfterS });
}

function versioned(url) {
  if (!url) throw new TypeError("baseURL: give the server's address");
  return `${String(url).replace(/\/+$/, "").replace(/\/v1$/, "")}/v1`;
}

function newSessionId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12)); // randomUUID is for HTTPS only
  return `js-${Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

function textOf(element) {
  return (element.value ?? element.textContent ?? "").trim();
}

function soon() {
  return AbortSignal.timeout(HINT_TIMEOUT_MS);
}
