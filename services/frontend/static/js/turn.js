/** A turn of a chat: it takes the chat for this tab, streams the answer, and keeps what came. */

import { Reply, SymphonyError } from "/static/symphony.js";
import { fieldsOf, historyOf } from "./history.js";
import { Conflict } from "./store.js";
import { TAB, isAlive } from "./tabs.js";

const KEEP_EVERY_MS = 2_000;
const AWAKE_MS = 10_000;

const STOPPED = new SymphonyError("Stopped.", { code: "stopped" });
const DEAD = new SymphonyError("The connection was lost while this tab was asleep.", {
  code: "stream_broken",
});

export class Turn {
  reply = new Reply();
  at = null; // which of the chat's messages the answer is
  #store;
  #session;
  #abort = new AbortController();
  #sentAtMs = 0;
  #firstAtMs = null;
  #lastAtMs = null;
  #eventAtMs = 0;
  #keptAtMs = 0;
  #keeping = null;
  #onReply;

  constructor(store, session, onReply) {
    this.#store = store;
    this.#session = session;
    this.#onReply = onReply;
  }

  /**
   * Begin: no other tab can now, until `take` is over.
   *
   * @param {(chat: object) => object | void} change what is said in this turn; it may give fields
   *   of the answer.
   * @returns {Promise<object>} the chat, with an answer that runs.
   * @throws {Conflict} another tab is at it.
   */
  async begin(change, fresh) {
    const claim = (isFree) => (chat) => {
      if (!isFree(chat.lease)) throw new Conflict("An answer is being written in another tab.");
      if (chat.lease !== TAB) settleLeft(chat);
      const fields = change(chat);
      chat.lease = TAB;
      chat.messages.push({ role: "assistant", content: "", state: "running", ...fields });
    };
    const id = this.#session.id;
    const holder = (await this.#store.load(id))?.lease ?? null;
    const isGone = holder !== null && !(await isAlive(holder));
    const isFree = (lease) => lease === null || (isGone && lease === holder);
    const chat = await this.#store.update(id, claim(isFree), fresh);
    this.at = chat.messages.length - 1;
    return chat;
  }

  /**
   * Ask, and stream.
   *
   * @param {object} chat what `begin` gave.
   * @returns {Promise<{chat: object, error: SymphonyError | null}>}
   * @throws {Conflict} another tab took over, as it may when this one sleeps.
   */
  async take(chat) {
    this.#sentAtMs = this.#keptAtMs = performance.now();
    this.#eventAtMs = Date.now();
    let error = null;
    try {
      const options = {
        ...fieldsOf(chat.settings),
        model: chat.model,
        return_cached_tokens_details: true,
        signal: this.#abort.signal,
      };
      for await (const event of this.#session.chat(historyOf(chat), options)) this.#onEvent(event);
    } catch (thrown) {
      if (thrown instanceof Conflict) throw thrown;
      error = thrown instanceof SymphonyError ? thrown : new SymphonyError(thrown.message);
    }
    await this.#keeping;
    return { chat: await this.#update((kept) => this.#settle(kept, error)), error };
  }

  stop() {
    this.#abort.abort(STOPPED);
  }

  /** The tab was asleep: a stream that says nothing soon will say nothing any more. */
  wake() {
    const wokenAtMs = Date.now();
    setTimeout(() => {
      if (this.#eventAtMs < wokenAtMs) this.#abort.abort(DEAD);
    }, AWAKE_MS);
  }

  #onEvent(event) {
    const now = performance.now();
    this.#eventAtMs = Date.now();
    this.reply.add(event);
    if (event.type !== "start") this.#firstAtMs ??= now;
    if (["content", "reasoning", "tool_call"].includes(event.type)) this.#lastAtMs = now;
    this.#onReply(this.reply, event);
    if (now - this.#keptAtMs > KEEP_EVERY_MS && this.#keeping === null) {
      this.#keptAtMs = now;
      const save = (chat) => { chat.messages[this.at] = this.#message("running", chat); };
      const lost = (error) => this.#abort.abort(error);
      this.#keeping = this.#update(save).catch(lost).finally(() => { this.#keeping = null; });
    }
  }

  #update(change) {
    return this.#store.update(this.#session.id, (chat) => {
      if (chat.lease !== TAB) throw new Conflict("This chat went on in another tab.");
      change(chat);
    });
  }

  #settle(chat, error) {
    const { replaced } = chat; // what this turn stands in place of, if it is an edit or a repeat
    chat.lease = null;
    delete chat.replaced;
    let state = "done";
    if (error) state = error.code === "stopped" ? "stopped" : "broken";
    if (error && this.reply.isEmpty) state = "unanswered";
    const message = this.#message(state, chat);
    if (error) message.reason = error.message;
    if (state === "unanswered" && replaced) message.replaced = replaced;
    chat.messages[this.at] = message;
  }

  #message(state, chat) {
    const { finishReason, usage, hintLeadMs } = this.reply;
    const firstTokenMs = this.#firstAtMs === null ? null : this.#firstAtMs - this.#sentAtMs;
    const figures = { usage, hintLeadMs, firstTokenMs, tokensPerS: this.#tokensPerS(usage) };
    const message = { ...this.reply.message, state, finish: finishReason, figures };
    const { versions } = chat.messages[this.at];
    return versions ? { ...message, versions } : message;
  }

  /** From the first token to the last, as they reached the browser. */
  #tokensPerS(usage) {
    const tookMs = this.#lastAtMs - this.#firstAtMs;
    return usage?.completion_tokens > 1 && tookMs >= 1 ? (1_000 * (usage.completion_tokens - 1)) / tookMs : null;
  }
}

/** A turn that a tab left behind, which is gone: nothing more comes of it. */
export function settleLeft(chat) {
  chat.lease = null;
  delete chat.replaced;
  const last = chat.messages.at(-1);
  if (last?.state !== "running") return;
  const isEmpty = !last.content && !last.reasoning_content && !last.tool_calls;
  last.state = isEmpty ? "unanswered" : "broken";
  last.reason = "The page was closed before the answer was over.";
}
