/** The box that messages are written in. */

import { $, fit } from "./dom.js";

const TOO_SOON_MS = 400; // the second click of a double click on Send is none on Stop

export class Composer {
  #area = $("text");
  #send = $("send");
  #stop = $("stop");
  #changedAtMs = 0;
  #drafts = new Map();

  /** @param {{onSend: (text: string) => boolean, onStop: () => void}} handlers `onSend` gives back
   *    whether it takes the text. */
  constructor({ onSend, onStop }) {
    const submit = () => {
      const text = this.#area.value.toWellFormed?.() ?? this.#area.value;
      if (!text.trim() || !onSend(text)) return;
      this.#area.value = "";
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
      if (event.key === "Escape" && !event.isComposing && !this.#stop.hidden) onStop();
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
    if (fromId) this.#drafts.set(fromId, this.#area.value);
    this.#area.value = this.#drafts.get(toId) ?? "";
    fit(this.#area);
  }

  focus() {
    if (!matchMedia("(pointer: coarse)").matches) this.#area.focus(); // no keyboard unasked for
  }
}
