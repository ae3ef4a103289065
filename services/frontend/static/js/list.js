/** The list of chats at the side, and the search in it; on a phone it lies over the page. */

import { $, make } from "./dom.js";

const TYPED_MS = 150;

export class ChatList {
  #list = $("list");
  #side = $("side");
  #menu = $("menu");
  #search = $("search");
  #actions;
  #typed = null;

  /** @param {{remove: Function, rename: Function, search: Function}} actions with a chat's id and
   *    title; `search` is called when the list is to be shown again. */
  constructor(actions) {
    this.#actions = actions;
    this.#menu.addEventListener("click", () => this.#toggle(!this.#side.classList.contains("open")));
    $("scrim").addEventListener("click", () => this.close());
    this.#side.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.#side.classList.contains("open")) {
        this.close();
        this.#menu.focus();
      }
    });
    this.#search.addEventListener("input", () => {
      clearTimeout(this.#typed);
      this.#typed = setTimeout(() => actions.search(), TYPED_MS);
    });
  }

  /** What is searched for; empty: all are shown. */
  get query() {
    return this.#search.value.trim();
  }

  /** @param {{id: string, title: string, excerpt?: string}[]} chats */
  show(chats, currentId) {
    this.#list.replaceChildren(...chats.map(({ id, title, excerpt }) => {
      const link = make("a", { href: `#${id}`, title }, make("span", { textContent: title }));
      if (excerpt) link.append(make("small", { textContent: excerpt }));
      link.addEventListener("click", () => this.close());
      if (id === currentId) link.setAttribute("aria-current", "page");
      const act = (label, text, action) => make("button", {
        type: "button", className: "icon", textContent: text, "aria-label": `${label} ${title}`,
        title: label, on: { click: () => action(id, title) },
      });
      const { rename, remove } = this.#actions;
      return make("li", {}, link, act("Rename", "✎", rename), act("Delete", "×", remove));
    }));
    $("found").textContent = this.query && chats.length === 0 ? "No chat has these words." : "";
  }

  focusSearch() {
    this.#toggle(true);
    this.#search.focus();
    this.#search.select();
  }

  close() {
    this.#toggle(false);
  }

  #toggle(isOpen) {
    this.#side.classList.toggle("open", isOpen);
    $("scrim").hidden = !isOpen;
    this.#menu.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) $("new").focus();
  }
}
