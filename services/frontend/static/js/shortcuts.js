/** Keys: those of the message box, and single ones for while no field has the focus. */

import { $, make } from "./dom.js";

const OFF = "symphony-single-keys-off";
const IN_THE_BOX = [
  ["Enter", "send"],
  ["Shift + Enter", "new line"],
  ["↑", "edit the last message, if the box is empty"],
  ["Escape", "stop the answer; otherwise leave the box"],
];

function isOff() {
  try {
    return localStorage.getItem(OFF) === "1";
  } catch {
    return false;
  }
}

export class Shortcuts {
  #dialog = $("keys");
  #single;

  /** @param {[string, string, () => void][]} single key, what it does, and does it. */
  constructor(single) {
    this.#single = [...single, ["?", "this list", () => this.open()]];
    const isOn = $("keys-on");
    isOn.checked = !isOff();
    isOn.addEventListener("change", () => {
      try {
        localStorage.setItem(OFF, isOn.checked ? "" : "1");
      } catch {
        // it holds until the page is left
      }
    });
    addEventListener("keydown", (event) => {
      const isModified = event.ctrlKey || event.metaKey || event.altKey;
      const field = event.target.closest?.("input, textarea, select, [contenteditable]");
      if (isModified || field || event.isComposing || !isOn.checked) return;
      if (document.querySelector("dialog[open]")) return;
      const known = this.#single.find(([key]) => key === event.key);
      if (!known) return;
      event.preventDefault();
      known[2]();
    });
  }

  open() {
    const rows = ([key, text]) => [make("dt", {}, make("kbd", { textContent: key })), make("dd", { textContent: text })];
    $("keys-box").replaceChildren(...IN_THE_BOX.flatMap(rows));
    $("keys-single").replaceChildren(...this.#single.flatMap(rows));
    this.#dialog.showModal();
  }
}
