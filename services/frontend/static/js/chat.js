/** The page: which chat is shown, and what its buttons do. */

import { Symphony } from "/static/symphony.js";
import { Composer } from "./composer.js";
import { $, fit } from "./dom.js";
import { freshChat, lastAsked, titleFor } from "./history.js";
import { ChatList } from "./list.js";
import { Speaker, say } from "./live.js";
import { Log } from "./log.js";
import { editor } from "./message.js";
import { ModelPicker } from "./models.js";
import { SettingsDialog, defaultSettings, enteredKey } from "./settings.js";
import { onWake } from "./sleep.js";
import { Conflict, Store } from "./store.js";
import { TAB, isAlive, onChanged } from "./tabs.js";
import { Turn, settleLeft } from "./turn.js";

export class ChatPage {
  #symphony = new Symphony({ baseURL: location.origin, apiKey: enteredKey() });
  #store = new Store((error) => this.#tellUnkept(error));
  #sessions = new Map();
  #turns = new Map(); // those that run in this tab, by chat
  #chat = null; // the one that is shown
  #unwatch = () => {};
  #notices = new Map(); // shown above the messages, by subject
  #log = new Log($("log"), (at) => this.#actionsOf(at));
  #list = new ChatList((id, title) => this.#delete(id, title));
  #models = new ModelPicker($("model"), this.#symphony, {
    onError: (error) => this.#onError(error, "models"),
    onChange: (id) => this.#setModel(id),
  });
  #settings = new SettingsDialog((settings, key) => this.#setSettings(settings, key));
  #composer = new Composer({
    onSend: (text) => this.#say(text),
    onStop: () => this.#turns.get(this.#chat.id)?.stop(),
  });

  async start() {
    $("new").addEventListener("click", () => this.#begin());
    $("settings-open").addEventListener("click", () => this.#settings.open(this.#chat.settings));
    $("skip").addEventListener("click", (event) => {
      event.preventDefault(); // what stands behind # is the chat
      this.#composer.area.focus();
    });
    addEventListener("hashchange", () => this.#openNamed());
    addEventListener("focus", () => this.#models.refresh());
    addEventListener("online", () => this.#models.refresh({ isUrgent: true }));
    onChanged((id) => this.#onChangedElsewhere(id));
    onWake(() => {
      for (const turn of this.#turns.values()) turn.wake();
      this.#models.refresh({ isUrgent: true });
      this.#reload();
    });
    await this.#openNamed();
    await this.#models.refresh();
  }

  async #openNamed() {
    const id = location.hash.slice(1);
    if (id === this.#chat?.id) return;
    const chat = id ? await this.#store.load(id) : null;
    if (id !== location.hash.slice(1)) return; // another one was asked for meanwhile
    if (id && chat === null) this.#notice("chat", "That chat is not in this browser.");
    this.#show(chat ?? freshChat(defaultSettings(), this.#models.value || null));
  }

  #begin() {
    this.#list.close();
    if (this.#chat.messages.length === 0) return this.#composer.area.focus();
    history.pushState(null, "", location.pathname);
    this.#show(freshChat(this.#chat.settings, this.#models.value || null));
    this.#composer.area.focus();
  }

  /** Another chat comes before the user's eyes. */
  #show(chat) {
    const earlier = this.#chat;
    const session = this.#session(chat.id);
    if (earlier && earlier.id !== chat.id) {
      this.#unwatch();
      const left = this.#session(earlier.id);
      if (left.isAdvised) left.invalidate(); // what was to come next comes no sooner than later
      this.#notice("turn", "");
    }
    if (earlier?.id !== chat.id) {
      this.#log.forget();
      this.#composer.switchDraft(earlier?.id, chat.id);
      const onAdvised = (is) => { $("hint").textContent = is ? "memory called" : ""; };
      onAdvised(session.isAdvised);
      this.#unwatch = session.watch(this.#composer.area, { onAdvised });
    }
    this.#chat = chat;
    this.#models.choose(chat.model);
    this.#draw();
    this.#showList();
    const turn = this.#turns.get(chat.id);
    if (turn && turn.at !== null) turn.answer = this.#beginLive(turn);
    if (earlier?.id !== chat.id) {
      $("log").scrollTop = $("log").scrollHeight;
      this.#composer.focus();
    }
    this.#settleLeft(chat);
  }

  #draw() {
    const { title, messages } = this.#chat;
    $("title").textContent = title;
    document.title = messages.length > 0 ? `${title} – Symphony` : "Symphony";
    this.#log.show(messages);
    this.#showState();
  }

  #showState() {
    const { id, lease } = this.#chat;
    const isElsewhere = lease !== null && lease !== TAB;
    const isRunning = this.#turns.has(id);
    this.#composer.setState(isRunning ? "running" : isElsewhere ? "elsewhere" : "ready");
    this.#notice("elsewhere", isElsewhere ? "An answer is being written in another tab." : "");
  }

  async #showList() {
    this.#list.show(await this.#store.list(), this.#chat.id);
  }

  #session(id) {
    if (!this.#sessions.has(id)) this.#sessions.set(id, this.#symphony.session(id));
    return this.#sessions.get(id);
  }

  /** A tab that is gone may have left a turn: its chat is free. */
  async #settleLeft({ id, lease }) {
    if (lease === null || this.#turns.has(id) || (lease !== TAB && await isAlive(lease))) return;
    const settle = (chat) => { if (chat.lease === lease) settleLeft(chat); };
    const chat = await this.#store.update(id, settle).catch(() => null);
    if (chat && this.#chat.id === id) {
      this.#chat = chat;
      this.#draw();
    }
  }

  #onChangedElsewhere(id) {
    this.#showList();
    if (id === this.#chat.id && !this.#turns.has(id)) this.#reload();
  }

  async #reload() {
    const { id, messages } = this.#chat;
    const chat = await this.#store.load(id);
    if (this.#chat.id !== id || this.#turns.has(id)) return;
    if (chat !== null) return this.#show(chat);
    if (messages.length === 0) return; // it was not said anything in yet
    this.#notice("chat", "That chat was deleted in another tab.");
    history.replaceState(null, "", location.pathname);
    this.#show(freshChat(defaultSettings(), this.#models.value || null));
  }

  // What the user does

  #say(text) {
    const isFirst = this.#chat.messages.length === 0;
    return this.#turn((chat) => {
      if (chat.messages.length === 0) chat.title = titleFor(text);
      chat.messages.push({ role: "user", content: text });
    }, { fresh: isFirst ? this.#chat : null, text });
  }

  #actionsOf(at) {
    return {
      edit: (view) => this.#edit(at, view),
      retry: () => this.#replace(lastAsked(this.#chat.messages) + 1),
      putBack: () => this.#putBack(),
      answerCalls: (results) => this.#turn((chat) => { chat.messages.push(...results); }),
    };
  }

  #edit(at, view) {
    if (this.#turns.has(this.#chat.id)) return;
    const session = this.#session(this.#chat.id);
    const close = () => {
      unwatch();
      if (session.isAdvised && !this.#composer.area.value.trim()) session.invalidate();
      this.#log.invalidate(at);
      this.#draw();
      this.#log.view(at)?.querySelector("[aria-label='Edit message']")?.focus();
    };
    const { content } = this.#chat.messages[at];
    const { element, area } = editor(content, {
      onCancel: close,
      onSave: (text) => {
        if (!this.#replace(at, [{ role: "user", content: text }])) return;
        unwatch();
        this.#log.invalidate(at);
      },
    });
    const unwatch = session.watch(area);
    view.replaceChildren(element);
    fit(area);
    area.focus();
    area.setSelectionRange(content.length, content.length);
  }

  /** Say it otherwise from message `at` on. What was there can be put back until it is answered. */
  #replace(at, messages = []) {
    return this.#turn((chat) => {
      const last = chat.messages.at(-1);
      const removed = chat.messages.splice(at, Infinity, ...messages);
      const isWorthKeeping = removed.some(({ state }) => state === "done" || state === "stopped");
      if (isWorthKeeping) chat.replaced = { at, messages: removed };
      else if (last.replaced) chat.replaced = last.replaced;
      if (at === 0) chat.title = titleFor(messages[0].content);
    });
  }

  async #putBack() {
    if (this.#turns.has(this.#chat.id)) return;
    this.#chat = await this.#store.update(this.#chat.id, (chat) => {
      const replaced = chat.messages.at(-1)?.replaced;
      if (replaced) chat.messages.splice(replaced.at, Infinity, ...replaced.messages);
    });
    this.#draw();
    this.#composer.focus();
  }

  async #setModel(id) {
    await this.#change((chat) => { chat.model = id; });
  }

  async #setSettings(settings, key) {
    this.#symphony.apiKey = key;
    this.#notice("models", "");
    this.#models.refresh({ isUrgent: true });
    await this.#change((chat) => { chat.settings = settings; });
  }

  async #change(change) {
    change(this.#chat);
    const { id, messages } = this.#chat;
    if (messages.length === 0) return; // it is kept once something is said in it
    await this.#store.update(id, change).catch(() => this.#reload());
  }

  async #delete(id, title) {
    const dialog = $("confirm");
    $("confirm-text").textContent = `“${title}” goes from this browser, and its memory from the server.`;
    dialog.returnValue = "";
    dialog.showModal();
    await new Promise((resolve) => { dialog.addEventListener("close", resolve, { once: true }); });
    if (dialog.returnValue !== "yes") return;
    this.#turns.get(id)?.stop();
    const session = this.#session(id);
    try {
      await this.#store.remove(id);
    } catch {
      this.#notice("chat", "The chat could not be deleted from this browser.");
    }
    if (this.#chat.id === id) {
      history.replaceState(null, "", location.pathname);
      this.#show(freshChat(this.#chat.settings, this.#models.value || null));
    } else {
      this.#showList();
    }
    $("new").focus();
    session.forget().catch((error) => {
      this.#notice("chat", `The server still has its memory of the chat: ${error.message}`);
    });
  }

  // Turns

  /**
   * Take a turn of the chat that is shown.
   *
   * @param {(chat: object) => void} change what is said in it.
   * @returns {boolean} whether it begins.
   */
  #turn(change, { fresh = null, text = "" } = {}) {
    const { id, lease } = this.#chat;
    if (this.#turns.has(id) || (lease !== null && lease !== TAB)) return false;
    const trouble = this.#models.trouble;
    this.#notice("turn", trouble);
    if (trouble) {
      $("model").focus();
      return false;
    }
    const session = this.#session(id);
    const turn = new Turn(this.#store, session, (reply) => {
      turn.answer?.update(reply);
      turn.speaker.add(reply.content);
    });
    turn.speaker = new Speaker();
    this.#turns.set(id, turn); // from here on a second click or key does nothing
    this.#composer.setState("running");
    const model = this.#models.value;
    const said = (chat) => {
      chat.model = model;
      change(chat);
    };
    this.#run(id, turn, said, fresh, text);
    return true;
  }

  async #run(id, turn, change, fresh, text) {
    let outcome = null;
    try {
      const chat = await turn.begin(change, fresh);
      if (this.#chat.id === id) this.#onBegun(chat, turn);
      this.#showList();
      outcome = await turn.take(chat);
      turn.speaker.end(turn.reply.content);
      if (outcome.error) this.#onError(outcome.error, "turn");
    } catch (error) {
      if (!(error instanceof Conflict)) throw error;
      this.#notice("turn", error.message);
      say(error.message);
      if (turn.at === null && text && !this.#composer.area.value) this.#composer.area.value = text;
    } finally {
      this.#turns.delete(id);
      if (this.#chat.id === id) {
        this.#log.end();
        this.#chat = outcome?.chat ?? (await this.#store.load(id)) ?? this.#chat;
        this.#draw();
      }
      this.#showList();
    }
  }

  #onBegun(chat, turn) {
    this.#chat = chat;
    if (location.hash.slice(1) !== chat.id) history.replaceState(null, "", `#${chat.id}`);
    this.#draw();
    turn.answer = this.#beginLive(turn);
    this.#composer.focus();
  }

  #beginLive(turn) {
    const answer = this.#log.begin(turn.at);
    answer.update(turn.reply);
    return answer;
  }

  #onError(error, subject) {
    if (error.code === "model_not_found") this.#models.refresh({ isUrgent: true });
    if (error.status === 401) {
      this.#notice("models", "The server asks for an API key: enter it in the settings.");
      if (!document.querySelector("dialog[open]")) this.#settings.open(this.#chat.settings, "key");
    } else if (subject === "models") {
      this.#notice("models", `No models: ${error.message}`);
    } else if (error.code !== "stopped") {
      say(`Not answered to the end. ${error.message}`);
    }
  }

  #tellUnkept(error) {
    const why = error?.name === "QuotaExceededError" ? "its storage is full" : "its storage refuses";
    this.#notice("store", error ? `This browser keeps the chat only until you leave: ${why}.` : "");
  }

  #notice(subject, text) {
    if (text) this.#notices.set(subject, text);
    else this.#notices.delete(subject);
    const shown = [...this.#notices.values()].join(" ");
    if ($("notice").textContent !== shown) $("notice").textContent = shown;
    $("notice").hidden = shown === "";
  }
}
