/** Which model or adapter is asked. One that goes away while it is chosen stays, and is marked. */

import { make } from "./dom.js";

const ASK_AGAIN_MS = 3_000;
const WHILE_NONE_MS = 1_000;
const FRESH_MS = 5_000;

export class ModelPicker {
  #select;
  #symphony;
  #onError;
  #models = [];
  #wanted = null;
  #drawn = ""; // so that a list that is open in front of its user stays as it is
  #askedAtMs = -Infinity;
  #timer = null;

  constructor(select, symphony, { onError, onChange }) {
    this.#select = select;
    this.#symphony = symphony;
    this.#onError = onError;
    select.addEventListener("change", () => {
      this.#wanted = select.value;
      this.#draw();
      onChange(select.value);
    });
    for (const name of ["focus", "pointerdown"]) select.addEventListener(name, () => this.refresh());
  }

  /** The model's id; empty: there is none. */
  get value() {
    return this.#select.value;
  }

  /** Why the chosen one cannot be asked; empty: it can. */
  get trouble() {
    if (!this.value) return "No model is being served yet.";
    return this.#isServed(this.value) ? "" : `${this.value} is not served any more: choose another.`;
  }

  choose(id) {
    this.#wanted = id ?? this.#wanted;
    this.#draw();
  }

  /** Ask what is served, unless that was a moment ago. */
  async refresh({ isUrgent = false } = {}) {
    const now = performance.now();
    if (!isUrgent && now - this.#askedAtMs < FRESH_MS) return;
    this.#askedAtMs = now;
    clearTimeout(this.#timer);
    try {
      const models = await this.#symphony.models();
      this.#models = models.filter(({ task }) => (task ?? "generate") === "generate");
      this.#draw();
      if (this.#models.length === 0) this.#again(WHILE_NONE_MS);
    } catch (error) {
      this.#onError(error);
      this.#again(ASK_AGAIN_MS);
    }
  }

  #again(afterMs) {
    this.#timer = setTimeout(() => this.refresh({ isUrgent: true }), afterMs);
  }

  #isServed(id) {
    return this.#models.some((model) => model.id === id);
  }

  #draw() {
    const options = [];
    const groups = new Map();
    for (const { id, parent } of this.#models) {
      const option = make("option", { value: id, textContent: id });
      if (!parent) {
        options.push(option);
        continue;
      }
      if (!groups.has(parent)) {
        groups.set(parent, make("optgroup", { label: `Adapters of ${parent}` }));
      }
      groups.get(parent).append(option);
    }
    const wanted = this.#wanted;
    if (wanted && this.#models.length > 0 && !this.#isServed(wanted)) {
      options.push(make("option", { value: wanted, textContent: `${wanted} (not served now)` }));
    }
    const drawn = JSON.stringify([this.#models.map(({ id, parent }) => [id, parent]), wanted]);
    if (drawn !== this.#drawn) this.#select.replaceChildren(...options, ...groups.values());
    this.#drawn = drawn;
    if (wanted && [...this.#select.options].some((option) => option.value === wanted)) {
      this.#select.value = wanted;
    }
    this.#symphony.model = this.value || null; // which is whose memory hints call
    this.#select.classList.toggle("missing", Boolean(this.value) && !this.#isServed(this.value));
  }
}
