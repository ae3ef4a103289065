/** What a chat is asked with besides its messages, in a dialog. */

import { $ } from "./dom.js";
import { settingsOf } from "./schema.js";
import { chosenTheme, keepTheme } from "./theme.js";

const DEFAULTS = "symphony-settings";
const KEY = "symphony-key";
const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];

/** What new chats begin with. */
export function defaultSettings() {
  try {
    return settingsOf(JSON.parse(localStorage.getItem(DEFAULTS)) ?? {});
  } catch {
    return {};
  }
}

/** The key that was entered in this tab; null: the browser sends what it was asked for, if anything. */
export function enteredKey() {
  return read(sessionStorage, KEY) || null;
}

export class SettingsDialog {
  #dialog = $("settings");
  #form = this.#dialog.querySelector("form");
  #onSave;

  /** @param {(settings: object, key: string | null) => void} onSave */
  constructor(onSave) {
    this.#onSave = onSave;
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#save();
    });
    this.#form.tools.addEventListener("input", () => this.#complain(""));
    this.#form.querySelector("[value=cancel]").addEventListener("click", () => this.#dialog.close());
  }

  /** @param {string} [field] where the cursor is to be. */
  open(settings, field = "system") {
    const { elements } = this.#form;
    for (const name of ["system", "reasoning_effort", ...NUMBERS]) {
      elements[name].value = settings[name] ?? "";
    }
    elements.tools.value = settings.tools ? JSON.stringify(settings.tools, null, 2) : "";
    elements.theme.value = chosenTheme();
    elements.key.value = enteredKey() ?? "";
    this.#complain("");
    if (!this.#dialog.open) this.#dialog.showModal();
    elements[field].focus();
  }

  #save() {
    const { elements } = this.#form;
    let tools = null;
    try {
      tools = toolsOf(elements.tools.value);
    } catch (error) {
      this.#complain(error.message);
      elements.tools.focus();
      return;
    }
    const settings = { system: elements.system.value.trim() || null, tools };
    settings.reasoning_effort = elements.reasoning_effort.value || null;
    for (const name of NUMBERS) {
      const text = elements[name].value;
      settings[name] = text === "" ? null : Number(text);
    }
    write(localStorage, DEFAULTS, JSON.stringify(settings));
    keepTheme(elements.theme.value);
    write(sessionStorage, KEY, elements.key.value.trim());
    this.#dialog.close();
    this.#onSave(settings, elements.key.value.trim() || null);
  }

  #complain(text) {
    $("tools-error").textContent = text;
    this.#form.tools.setAttribute("aria-invalid", String(text !== ""));
  }
}

function toolsOf(text) {
  if (!text.trim()) return null;
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new Error(`Tools: no JSON: ${error.message}`);
  }
  if (!Array.isArray(tools) || !tools.every((tool) => tool?.function?.name)) {
    throw new Error('Tools: give a list of {"type": "function", "function": {"name": …}}.');
  }
  return tools.length > 0 ? tools : null;
}

function read(storage, name) {
  try {
    return storage.getItem(name);
  } catch {
    return null;
  }
}

function write(storage, name, value) {
  try {
    storage.setItem(name, value);
  } catch {
    // full or refused: it holds for this chat all the same
  }
}
