/** What a screen reader gets: news, and the answer sentence by sentence as it comes. */

import { $, make } from "./dom.js";

const NUM_KEPT = 20;
const SENTENCE_END = /[.!?:;…。！？]["'”’)\]]*\s|\n/g;

export function say(text) {
  const region = $("live");
  region.append(make("p", { textContent: text }));
  while (region.childElementCount > NUM_KEPT) region.firstElementChild.remove();
}

/** Says a growing text in whole sentences. */
export class Speaker {
  #numSaid = 0;

  add(text) {
    const rest = text.slice(this.#numSaid);
    const last = [...rest.matchAll(SENTENCE_END)].at(-1);
    if (last) this.#say(rest.slice(0, last.index + last[0].length));
  }

  end(text) {
    this.#say(text.slice(this.#numSaid));
  }

  #say(text) {
    this.#numSaid += text.length;
    if (text.trim()) say(text.trim());
  }
}
