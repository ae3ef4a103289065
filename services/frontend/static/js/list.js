/** The list of chats at the side; on a phone it lies over the page. */

import { $, make } from "./dom.js";

export class ChatList {
  #list = $("list");
  #side = $("side");
  #menu = $("menu");
  #onDelete;

  /** @param {(id: string, title: string) => void} onDelete */
  constructor(onDelete) {
    this.#onDelete = onDelete;
    this.#menu.addEventListener("click", () => this.#toggle(!this.#side.classList.contains("open")));
    $("scrim").addEventListener("click", () => this.close());
    this.#side.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.#side.classList.contains("open")) {
        this.close();
        this.#menu.focus();
      }
    });
  }

  show(titles, currentId) {
    this.#list.replaceChildren(...titles.map(({ id, title }) => {
      const link = make("a", { href: `#${id}`, textContent: title, title });
      link.addEventListener("click", () => this.close());
      if (id === currentId) link.setAttribute("aria-current", "page");
      const remove = make("button", {
        type: "button", className: "icon", textContent: "×", "aria-label": `Delete ${title}`,
        on: { click: () => this.#onDelete(id, title) },
      });
      return make("li", {}, link, remove);
    }));
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
