/** The box that messages are written in. */

import { Attachments } from "./attachments.js";
import { $, fit } from "./dom.js";

const TOO_SOON_MS = 400; // the second click of a double click on Send is none on Stop

export class Composer {
  #area = $("text");
  #send = $("send");
  #stop = $("stop");
  #changedAtMs = 0;
  #drafts = new Map();
  #attachments;

  /**
   * @param {{onSend: (text: string, files: object[]) => boolean, onStop: () => void,
   *   onEditLast: () => void, onTrouble: (text: string) => void, onFiles: () => void}} handlers
   *   `onSend` gives back whether it takes the text.
   */
  constructor({ onSend, onStop, onEditLast, onTrouble, onFiles }) {
    const onChanged = () => {
      this.#area.focus();
      onFiles();
    };
    this.#attachments = new Attachments({ onTrouble, onChanged });
    const submit = () => {
      const text = this.#area.value.toWellFormed?.() ?? this.#area.value;
      const { files } = this.#attachments;
      if ((!text.trim() && files.length === 0) || !onSend(text, files)) return;
      this.#area.value = "";
      this.#attachments.files = [];
      fit(this.#area);
    };
    $("form").addEventListener("submit", (event) => {
      event.preventDefault();
      submit();
    });
    this.#area.addEventListener("input", () => fit(this.#area));
    this.#area.addEventListener("keydown", (event) => {
      const isTouch = matchMedia("(pointer: coarse)").matches; // there Enter begins a new line
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !isTouch) {
        event.preventDefault();
        if (!event.repeat) submit();
      }
      if (event.key === "Escape" && !event.isComposing) {
        if (this.#stop.hidden) this.#area.blur(); // single keys are shortcuts then
        else onStop();
      }
      if (event.key === "ArrowUp" && this.#area.value === "" && !event.isComposing) {
        event.preventDefault();
        onEditLast();
      }
    });
    this.#stop.addEventListener("click", () => {
      if (performance.now() - this.#changedAtMs > TOO_SOON_MS) onStop();
    });
  }

  get area() {
    return this.#area;
  }

  /** @param {"ready" | "running" | "elsewhere"} state of the chat that is shown. */
  setState(state) {
    const isStoppable = state === "running";
    if (this.#stop.hidden === isStoppable) this.#changedAtMs = performance.now();
    this.#send.disabled = state !== "ready";
    if (!isStoppable && document.activeElement === this.#stop) this.#send.focus();
    this.#stop.hidden = !isStoppable;
  }

  /** Text for a message that was not sent yet stays with its chat. */
  switchDraft(fromId, toId) {
    if (fromId) this.#drafts.set(fromId, { text: this.#area.value, files: this.#attachments.files });
    this.draft = this.#drafts.get(toId) ?? { text: "", files: [] };
  }

  get isEmpty() {
    return this.#area.value === "" && this.#attachments.files.length === 0;
  }

  set draft({ text, files }) {
    this.#area.value = text;
    this.#attachments.files = files;
    fit(this.#area);
  }

  focus() {
    if (!matchMedia("(pointer: coarse)").matches) this.#area.focus(); // no keyboard unasked for
  }
}
