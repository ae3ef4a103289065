/**
 * Chats, kept in this browser's IndexedDB.
 *
 * Every change is a function of what is kept, applied in one transaction. So no tab writes over what
 * another one added. Where nothing can be kept, because the storage is full or there is none, the
 * chat goes on in this tab's memory, and its user is notified.
 */

import { tellChanged } from "./tabs.js";

const NAME = "symphony-chat";
const VERSION = 1;
const CHATS = "chats";
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
    const kept = titles.filter(({ id }) => !this.#unkept.has(id));
    return [...kept, ...unkept].sort((a, b) => b.updatedAtMs - a.updatedAtMs);
  }

  /** A chat; null if there is none of that id. */
  async load(id) {
    if (!this.#unkept.has(id)) {
      try {
        const chat = await this.#ask([CHATS], "readonly", (tx) => tx.objectStore(CHATS).get(id));
        if (chat === undefined) this.#known.delete(id);
        else this.#known.set(id, chat);
      } catch {
        // then it is as it was last seen
      }
    }
    return structuredClone(this.#known.get(id) ?? null);
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

function titleOf({ id, title, updatedAtMs }) {
  return { id, title, updatedAtMs };
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
