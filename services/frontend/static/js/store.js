/**
 * Chats, kept in this browser's IndexedDB.
 *
 * Every change is a function of what is kept, applied in one transaction. So no tab writes over what
 * another one added. Where nothing can be kept, because the storage is full or there is none, the
 * chat goes on in this tab's memory, and its user is notified.
 */

import { Malformed, chatOf } from "./schema.js";
import { tellChanged } from "./tabs.js";

const NAME = "symphony-chat";
const VERSION = 1;
const CHATS = "chats";
const FOUND_MAX = 100;
const TITLES = "titles"; // what the list shows, so that it need not read what was said

/** The chat is not as it was thought to be: another tab has changed or deleted it. */
export class Conflict extends Error {
  name = "Conflict";
}

export class Store {
  #opened = null;
  #known = new Map(); // chats as this tab last saw them
  #unkept = new Set(); // those of which IndexedDB has not the latest
  #onUnkept;

  /** @param {(error: Error | null) => void} onUnkept called when something cannot be kept, or can again */
  constructor(onUnkept) {
    this.#onUnkept = onUnkept;
  }

  /** `{id, title, updatedAtMs}` of every chat, the latest first. */
  async list() {
    let titles = [];
    try {
      titles = await this.#ask([TITLES], "readonly", (tx) => tx.objectStore(TITLES).getAll());
    } catch {
      // there are those of this tab
    }
    const unkept = [...this.#unkept].map((id) => titleOf(this.#known.get(id)));
    const kept = titles.filter(({ id, title }) => !this.#unkept.has(id) && typeof title === "string");
    return [...kept, ...unkept].sort((a, b) => b.updatedAtMs - a.updatedAtMs);
  }

  /** A chat; null if there is none of that id. */
  async load(id) {
    const chat = await this.#read(id);
    if (chat === null) this.#known.delete(id);
    else this.#known.set(id, chat);
    return structuredClone(chat);
  }

  /** A chat as it is kept, or as this tab last saw it; null: there is none, or it is malformed. */
  async #read(id) {
    if (!this.#unkept.has(id)) {
      try {
        const chat = await this.#ask([CHATS], "readonly", (tx) => tx.objectStore(CHATS).get(id));
        return chat === undefined ? null : chatOf(chat);
      } catch (error) {
        if (error instanceof Malformed) return null;
      }
    }
    return this.#known.get(id) ?? null;
  }

  /**
   * Change a chat.
   *
   * @param {(chat: object) => void} change changes it in place; what it throws leaves it as it was.
   * @param {object} [fresh] what it begins as, if it is not there.
   * @returns {Promise<object>} the chat as it is now.
   * @throws {Conflict} it is not there, and there is no `fresh`.
   */
  async update(id, change, fresh = null) {
    let changed = null;
    const apply = (kept) => {
      const chat = structuredClone((this.#unkept.has(id) ? this.#known.get(id) : kept) ?? fresh);
      if (chat === null) throw new Conflict("This chat was deleted in another tab.");
      change(chat);
      chat.updatedAtMs = Date.now();
      changed = chat;
      return chat;
    };
    try {
      await this.#ask([CHATS, TITLES], "readwrite", (tx, fail) => {
        const request = tx.objectStore(CHATS).get(id);
        request.onsuccess = () => {
          try {
            tx.objectStore(CHATS).put(apply(request.result));
            tx.objectStore(TITLES).put(titleOf(changed));
          } catch (error) {
            fail(error);
          }
        };
        return request;
      });
      if (this.#unkept.delete(id) && this.#unkept.size === 0) this.#onUnkept(null);
    } catch (error) {
      if (changed === null) {
        if (error instanceof Conflict) throw error;
        apply(this.#known.get(id));
      }
      this.#unkept.add(id);
      this.#onUnkept(error);
    }
    this.#known.set(id, changed);
    tellChanged(id);
    return structuredClone(changed);
  }

  /** Every chat that is one, the latest first. */
  async all() {
    const chats = await Promise.all((await this.list()).map(({ id }) => this.#read(id)));
    return chats.filter((chat) => chat !== null);
  }

  /**
   * The chats that have these words, in any order and case, the latest first.
   *
   * @returns {Promise<{id: string, title: string, excerpt: string}[]>}
   */
  async search(query) {
    const wanted = query.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [];
    for (const title of await this.list()) {
      const chat = await this.#read(title.id); // one at a time: together they may be large
      const excerpt = chat && excerptOf(chat, wanted);
      if (excerpt !== null) found.push({ ...title, excerpt });
      if (found.length === FOUND_MAX) break;
    }
    return found;
  }

  /** Add chats: all, or none if the storage does not take them. */
  async add(chats) {
    if (chats.length === 0) return;
    await this.#ask([CHATS, TITLES], "readwrite", (tx) => {
      for (const chat of chats) tx.objectStore(TITLES).put(titleOf(chat));
      return chats.map((chat) => tx.objectStore(CHATS).put(chat)).at(-1);
    });
    tellChanged(chats[0].id);
  }

  /** Delete a chat. */
  async remove(id) {
    this.#known.delete(id);
    this.#unkept.delete(id);
    await this.#ask([CHATS, TITLES], "readwrite", (tx) => {
      tx.objectStore(TITLES).delete(id);
      return tx.objectStore(CHATS).delete(id);
    });
    tellChanged(id);
  }

  async #ask(names, mode, work) {
    this.#opened ??= open();
    let database;
    try {
      database = await this.#opened;
    } catch (error) {
      this.#opened = null;
      throw error;
    }
    return new Promise((resolve, reject) => {
      let failure = null;
      let tx;
      try {
        tx = database.transaction(names, mode);
      } catch (error) { // the browser has closed it
        this.#opened = null;
        reject(error);
        return;
      }
      const fail = (error) => {
        failure = error;
        tx.abort();
      };
      tx.onabort = () => reject(failure ?? tx.error ?? new Error("the storage is closed"));
      try {
        const request = work(tx, fail);
        tx.oncomplete = () => resolve(request.result);
      } catch (error) {
        fail(error);
      }
    });
  }
}

function titleOf({ id, title, updatedAtMs, origin }) {
  return origin ? { id, title, updatedAtMs, origin } : { id, title, updatedAtMs };
}

/** Where the first word is, with what is around it; empty: in the title; null: not all are there. */
function excerptOf({ title, messages }, wanted) {
  const texts = messages.map(({ content, files = [] }) => [content, ...files.map(({ name }) => name)].join(" "));
  const everything = [title, ...texts].join("\n").toLowerCase();
  if (!wanted.every((word) => everything.includes(word))) return null;
  const isInTitle = wanted.every((word) => title.toLowerCase().includes(word));
  const text = texts.find((each) => each.toLowerCase().includes(wanted[0]));
  if (isInTitle || !text) return "";
  const from = Math.max(0, text.toLowerCase().indexOf(wanted[0]) - 24);
  return `${from > 0 ? "…" : ""}${text.slice(from, from + 100).replace(/\s+/g, " ")}`;
}

function open() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, VERSION);
    request.onupgradeneeded = () => {
      for (const name of [CHATS, TITLES]) request.result.createObjectStore(name, { keyPath: "id" });
    };
    request.onblocked = () => reject(new Error("another tab holds the storage"));
    request.onerror = () => reject(request.error);
    request.onsuccess = () => {
      request.result.onversionchange = () => request.result.close();
      resolve(request.result);
    };
  });
}
