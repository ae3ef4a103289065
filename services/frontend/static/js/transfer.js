/** Export and import: chats as a file, and chats of a file. */

import { $, make } from "./dom.js";
import { Malformed, chatOf } from "./schema.js";
import { randomId } from "./tabs.js";

const FORMAT = "symphony-chats";
const VERSION = 1;
const BYTES_MAX = 64 * 1_048_576;
const CHATS_MAX = 2_000;
const UNFINISHED = "The chat was exported before the answer was over.";

const plural = (num) => `${num} ${num === 1 ? "chat" : "chats"}`;

/** @returns {string} a file of these chats. */
export function fileOf(chats) {
  const exported = chats.map(({ lease: _, ...chat }) => chat);
  return JSON.stringify({ format: FORMAT, version: VERSION, chats: exported }, null, 1);
}

/**
 * The chats of a file, each with an id of its own: so they are no other chat's session.
 *
 * @param {string} text
 * @param {object[]} here `{id, origin, updatedAtMs}` of the chats that are here already.
 * @returns {{chats: object[], numKnown: number, numMalformed: number}}
 * @throws {Malformed} it is no such file, or too many chats.
 */
export function chatsOf(text, here) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Malformed("The file is not JSON.");
  }
  if (file?.format !== FORMAT || !Array.isArray(file.chats)) throw new Malformed("The file has no exported chats.");
  if (file.version !== VERSION) throw new Malformed("The file is of another version of this page.");
  if (here.length + file.chats.length > CHATS_MAX) {
    throw new Malformed(`At most ${CHATS_MAX} chats are kept: ${here.length} are here, ${file.chats.length} in the file.`);
  }
  const known = new Set(here.flatMap(({ id, origin, updatedAtMs }) => [`${id}@${updatedAtMs}`, origin ?? ""]));
  const found = { chats: [], numKnown: 0, numMalformed: 0 };
  for (const value of file.chats) {
    try {
      const chat = chatOf(value);
      for (const message of chat.messages) {
        if (message.state === "running") Object.assign(message, { state: "broken", reason: UNFINISHED });
      }
      const origin = chat.origin ?? `${chat.id}@${chat.updatedAtMs}`;
      if (known.has(origin) || known.has(`${chat.id}@${chat.updatedAtMs}`)) found.numKnown += 1;
      else found.chats.push({ ...chat, id: randomId("web-"), lease: null, origin: `${chat.id}@${chat.updatedAtMs}` });
      known.add(`${chat.id}@${chat.updatedAtMs}`);
    } catch (error) {
      if (!(error instanceof Malformed)) throw error;
      found.numMalformed += 1;
    }
  }
  return found;
}

export class TransferDialog {
  #dialog = $("transfer");
  #store;
  #shown;
  #onImported;

  /** @param {{shown: () => object, onImported: () => void}} page the chat that is shown. */
  constructor(store, { shown, onImported }) {
    this.#store = store;
    this.#shown = shown;
    this.#onImported = onImported;
    $("export-one").addEventListener("click", () => this.#export([this.#shown()], this.#shown().title));
    $("export-all").addEventListener("click", async () => this.#export(await this.#store.all(), "all chats"));
    $("import").addEventListener("click", () => $("import-file").click());
    $("import-file").addEventListener("change", async () => {
      const [file] = $("import-file").files;
      if (file) await this.#import(file);
      $("import-file").value = "";
    });
  }

  async open() {
    this.#tell("");
    const { length } = await this.#store.list();
    $("export-all").disabled = length === 0;
    $("export-all").textContent = `Export all ${length > 1 ? `${length} ` : ""}chats`;
    $("export-one").disabled = this.#shown().messages.length === 0;
    this.#dialog.showModal();
  }

  #export(chats, name) {
    const url = URL.createObjectURL(new Blob([fileOf(chats)], { type: "application/json" }));
    const day = new Date().toISOString().slice(0, 10);
    const safeName = name.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "chat";
    make("a", { href: url, download: `symphony-${safeName}-${day}.json` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
    this.#tell(`${plural(chats.length)} exported.`);
  }

  async #import(file) {
    try {
      if (file.size > BYTES_MAX) throw new Malformed("The file is larger than 64 MiB.");
      const { chats, numKnown, numMalformed } = chatsOf(await file.text(), await this.#store.list());
      await this.#store.add(chats);
      const parts = [`${plural(chats.length)} imported.`];
      if (numKnown) parts.push(`${numKnown} already here.`);
      if (numMalformed) parts.push(`${numMalformed} not readable.`);
      this.#tell(parts.join(" "));
    } catch (error) {
      this.#tell(error instanceof Malformed ? error.message : "This browser's storage does not take the chats.", true);
    }
    this.#onImported();
  }

  #tell(text, isBad = false) {
    $("transfer-state").textContent = text;
    $("transfer-state").classList.toggle("error", isBad);
  }
}
