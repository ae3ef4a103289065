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
import { Shortcuts } from "./shortcuts.js";
import { onWake } from "./sleep.js";
import { Conflict, Store } from "./store.js";
import { TAB, isAlive, onChanged } from "./tabs.js";
import { TransferDialog } from "./transfer.js";
import { Turn, settleLeft } from "./turn.js";
import { setAside, switchVersion, versionOf } from "./versions.js";

export class ChatPage {
  #symphony = new Symphony({ baseURL: location.origin, apiKey: enteredKey() });
  #store = new Store((error) => this.#tellUnkept(error));
  #sessions = new Map();
  #turns = new Map(); // those that run in this tab, by chat
  #chat = null; // the one that is shown
  #unwatch = () => {};
  #notices = new Map(); // shown above the messages, by subject
  #log = new Log($("log"), (at) => this.#actionsOf(at));
  #list = new ChatList({
    remove: (id, title) => this.#delete(id, title),
    rename: (id, title) => this.#rename(id, title),
    search: () => this.#showList(),
  });
  #transfer = new TransferDialog(this.#store, {
    shown: () => this.#chat,
    onImported: () => this.#showList(),
  });
  #models = new ModelPicker($("model"), this.#symphony, {
    onError: (error) => this.#onError(error, "models"),
    onChange: (id) => this.#setModel(id),
  });
  #settings = new SettingsDialog((settings, key) => this.#setSettings(settings, key));
  #composer = new Composer({
    onSend: (text, files) => this.#say(text, files),
    onStop: () => this.#turns.get(this.#chat.id)?.stop(),
    onEditLast: () => this.#editLast(),
    onTrouble: (text) => this.#notice("files", text),
    onFiles: () => this.#advise(),
  });
  #shortcuts = new Shortcuts([
    ["m", "the message box", () => this.#composer.area.focus()],
    ["n", "new chat", () => this.#begin()],
    ["/", "search chats", () => this.#list.focusSearch()],
    ["j", "the next chat in the list", () => this.#step(1)],
    ["k", "the one before", () => this.#step(-1)],
    ["t", "rename this chat", () => this.#renameShown()],
    ["e", "edit the last message", () => this.#editLast()],
    ["r", "regenerate the last answer", () => this.#press(".assistant:last-child .retry")],
    ["[", "its earlier version", () => this.#stepVersion(-1)],
    ["]", "its later version", () => this.#stepVersion(1)],
    ["c", "copy it", () => this.#press(".assistant:last-child [aria-label='Copy answer']")],
  ]);

  async start() {
    $("new").addEventListener("click", () => this.#begin());
    $("settings-open").addEventListener("click", () => this.#settings.open(this.#chat.settings));
    $("transfer-open").addEventListener("click", () => this.#transfer.open());
    $("keys-open").addEventListener("click", () => this.#shortcuts.open());
    $("rename-cancel").addEventListener("click", () => $("rename").close());
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
      const onAdvised = (is) => { $("hint").textContent = is ? "prefetching" : ""; };
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
    this.#showTitle();
    this.#log.show(this.#chat.messages);
    this.#showState();
  }

  #showTitle() {
    const { title, messages } = this.#chat;
    $("title").textContent = title;
    document.title = messages.length > 0 ? `${title} – Symphony` : "Symphony";
  }

  #showState() {
    const { id, lease } = this.#chat;
    const isElsewhere = lease !== null && lease !== TAB;
    const isRunning = this.#turns.has(id);
    this.#composer.setState(isRunning ? "running" : isElsewhere ? "elsewhere" : "ready");
    this.#notice("elsewhere", isElsewhere ? "An answer is being written in another tab." : "");
  }

  async #showList() {
    const { query } = this.#list;
    const chats = await (query ? this.#store.search(query) : this.#store.list());
    if (query === this.#list.query) this.#list.show(chats, this.#chat.id);
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

  #say(text, files) {
    const isFirst = this.#chat.messages.length === 0;
    const message = { role: "user", content: text, ...(files.length > 0 && { files }) };
    return this.#turn((chat) => {
      if (chat.messages.length === 0) chat.title = titleFor(message);
      chat.messages.push(message);
    }, { fresh: isFirst ? this.#chat : null, draft: { text, files } });
  }

  /** A file announces a turn as a key does; the last one that is removed withdraws it. */
  #advise() {
    if (this.#turns.has(this.#chat.id)) return;
    const session = this.#session(this.#chat.id);
    if (this.#composer.isEmpty && session.isAdvised) session.invalidate();
    else if (!this.#composer.isEmpty && !session.isAdvised) session.advise();
  }

  #actionsOf(at) {
    return {
      edit: (view) => this.#edit(at, view),
      retry: () => this.#regenerate(),
      version: (to) => this.#showVersion(at, to),
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
    const message = this.#chat.messages[at];
    const { content } = message;
    const { element, area } = editor(content, {
      onCancel: close,
      onSave: (text) => {
        if (!this.#replace(at, [{ ...message, content: text }])) return;
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
  #replace(at, messages) {
    return this.#turn((chat) => {
      const last = chat.messages.at(-1);
      const removed = chat.messages.splice(at, Infinity, ...messages);
      const isWorthKeeping = removed.some(({ state }) => state === "done" || state === "stopped");
      if (isWorthKeeping) chat.replaced = { at, messages: removed };
      else if (last.replaced) chat.replaced = last.replaced;
      if (at === 0 && !chat.isNamed) chat.title = titleFor(messages[0]);
    });
  }

  /** Another version of the last answer. */
  #regenerate() {
    return this.#turn((chat) => {
      const { replaced } = chat.messages.at(-1); // by an edit that was not answered yet
      if (replaced) chat.replaced = replaced;
      return setAside(chat.messages, lastAsked(chat.messages) + 1);
    });
  }

  async #showVersion(at, to) {
    const { id, lease } = this.#chat;
    if (this.#turns.has(id) || lease !== null) return;
    const change = (chat) => { if (chat.messages[at]?.versions) switchVersion(chat.messages, at, to); };
    this.#chat = await this.#store.update(id, change);
    this.#draw();
    const { at: shown, num } = versionOf(this.#chat.messages[at]);
    say(`Version ${shown + 1} of ${num}`);
    const steps = this.#log.view(at).querySelectorAll(".step:enabled");
    if (document.activeElement === document.body) steps[to > shown ? steps.length - 1 : 0]?.focus();
  }

  #stepVersion(step) {
    const at = this.#chat.messages.length - 1;
    const { at: shown, num } = at < 0 ? { at: 0, num: 1 } : versionOf(this.#chat.messages[at]);
    if (shown + step >= 0 && shown + step < num) this.#showVersion(at, shown + step);
  }

  #editLast() {
    const at = this.#chat.messages.findLastIndex(({ role }) => role === "user");
    const view = this.#log.view(at);
    if (view && !view.querySelector(".editor")) this.#edit(at, view);
  }

  #press(selector) {
    $("log").querySelector(selector)?.click();
  }

  /** To a chat further down or up in the list. */
  #step(step) {
    const links = [...document.querySelectorAll("#list a")];
    const at = links.findIndex((link) => link.hasAttribute("aria-current"));
    links[at < 0 ? 0 : at + step]?.click();
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

  #renameShown() {
    const { id, title, messages } = this.#chat;
    if (messages.length > 0) this.#rename(id, title);
  }

  async #rename(id, title) {
    $("rename-name").value = title;
    const asked = askedIn($("rename"));
    $("rename-name").select();
    const name = (await asked) ? $("rename-name").value.trim() : "";
    if (!name) return;
    const change = (chat) => Object.assign(chat, { title: name, isNamed: true });
    const chat = await this.#store.update(id, change).catch(() => null);
    if (chat && this.#chat.id === id) {
      Object.assign(this.#chat, { title: name, isNamed: true });
      this.#showTitle();
    }
    await this.#showList();
  }

  async #delete(id, title) {
    $("confirm-text").textContent = `“${title}” is deleted from this browser, and its session from the server.`;
    if (!(await askedIn($("confirm")))) return;
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
      this.#notice("chat", `The server still has the chat's session: ${error.message}`);
    });
  }

  // Turns

  /**
   * Take a turn of the chat that is shown.
   *
   * @param {(chat: object) => object | void} change what is said in it; fields of the answer.
   * @returns {boolean} whether it begins.
   */
  #turn(change, { fresh = null, draft = null } = {}) {
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
      return change(chat);
    };
    this.#run(id, turn, said, { fresh, draft });
    return true;
  }

  async #run(id, turn, change, { fresh, draft }) {
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
      if (turn.at === null && draft && this.#composer.isEmpty) this.#composer.draft = draft;
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

/** Opens a dialog; whether it was answered with yes. */
async function askedIn(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  await new Promise((resolve) => { dialog.addEventListener("close", resolve, { once: true }); });
  return dialog.returnValue === "yes";
}
