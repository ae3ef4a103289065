/** Text files that go with the next message. */

import { $, button, make } from "./dom.js";
import { bytes } from "./units.js";

const FILES_MAX = 10;
const BYTES_MAX = 1_048_576;
const SHOWN_CHARS = 20_000;

/** @throws {Error} it is not text, or too large. */
async function read(file) {
  if (file.size > BYTES_MAX) throw new Error(`${file.name} is larger than ${bytes(BYTES_MAX)}.`);
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw new Error(`${file.name} is not a text file in UTF-8.`);
  }
  if (text.includes("\0")) throw new Error(`${file.name} is not a text file.`);
  return { name: file.name, text };
}

export class Attachments {
  #strip = $("files");
  #files = [];
  #onTrouble;

  #onChanged;

  /** @param {{onTrouble: (text: string) => void, onChanged: () => void}} handlers */
  constructor({ onTrouble, onChanged }) {
    this.#onTrouble = onTrouble;
    this.#onChanged = onChanged;
    const add = (files) => this.#add(files);
    $("attach").addEventListener("click", () => $("file").click());
    $("file").addEventListener("change", async () => {
      await add([...$("file").files]);
      $("file").value = ""; // so that the same one can be chosen again
    });
    const isOfFiles = (event) => event.dataTransfer?.types.includes("Files");
    addEventListener("dragover", (event) => { if (isOfFiles(event)) event.preventDefault(); });
    addEventListener("drop", (event) => {
      if (!isOfFiles(event)) return;
      event.preventDefault();
      if (!document.querySelector("dialog[open]")) add([...event.dataTransfer.files]);
    });
    $("text").addEventListener("paste", (event) => {
      if (event.clipboardData.files.length === 0) return;
      event.preventDefault();
      add([...event.clipboardData.files]);
    });
  }

  get files() {
    return this.#files;
  }

  set files(files) {
    this.#files = files;
    this.#draw();
  }

  async #add(added) {
    const results = await Promise.allSettled(added.map(read));
    const files = results.flatMap(({ value }) => value ?? []);
    const troubles = results.flatMap(({ reason }) => reason?.message ?? []);
    if (this.#files.length + files.length > FILES_MAX) troubles.push(`At most ${FILES_MAX} files go with a message.`);
    this.files = [...this.#files, ...files].slice(0, FILES_MAX);
    this.#onTrouble(troubles.join(" "));
    this.#onChanged();
  }

  #draw() {
    this.#strip.replaceChildren(...this.#files.map((file) => {
      const remove = () => {
        this.files = this.#files.filter((other) => other !== file);
        this.#onChanged();
      };
      const cross = button("×", remove, { className: "icon", "aria-label": `Remove ${file.name}` });
      return make("li", {}, make("span", { textContent: labelOf(file) }), cross);
    }));
    this.#strip.hidden = this.#files.length === 0;
  }
}

function labelOf({ name, text }) {
  return `${name} · ${bytes(new Blob([text]).size)}`;
}

/** A message's files, each to unfold. */
export function fileViews(files) {
  return files.map((file) => {
    const body = make("pre", { tabIndex: 0, role: "group", "aria-label": file.name });
    const unfold = () => {
      const more = file.text.length > SHOWN_CHARS ? "\n…" : "";
      body.textContent = file.text.slice(0, SHOWN_CHARS) + more;
    };
    const summary = make("summary", { textContent: labelOf(file) });
    return make("details", { className: "file", on: { toggle: unfold } }, summary, body);
  });
}

/** What the model gets of a message: its files, then what was typed. */
export function contentWith({ content, files = [] }) {
  const parts = files.map(({ name, text }) => {
    const longest = Math.max(0, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
    const fence = "`".repeat(Math.max(3, longest + 1));
    return `File ${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
  });
  return [...parts, content].filter(Boolean).join("\n\n");
}
