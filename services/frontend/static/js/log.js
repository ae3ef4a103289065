/** The chat's messages on the page. What did not change is not drawn again. */

import { make } from "./dom.js";
import { LiveAnswer, messageView } from "./message.js";

const NEAR_PX = 80;

export class Log {
  #element;
  #actionsOf;
  #drawn = []; // {key, view} of each message
  #live = null; // {at, answer}
  #endPx = 0; // where it was last scrolled to its end

  /** @param {(at: number) => object} actionsOf what the buttons of a message do. */
  constructor(element, actionsOf) {
    this.#element = element;
    this.#actionsOf = actionsOf;
  }

  /** Show these; none: what a new chat is greeted with. */
  show(messages) {
    const isAtEnd = this.#isAtEnd;
    if (this.#live && this.#live.at >= messages.length) this.#live = null;
    if (messages.length === 0 || this.#drawn.length === 0) this.#clear();
    for (const [at, message] of messages.entries()) {
      if (this.#live?.at === at) continue;
      const isLast = at === messages.length - 1;
      const key = keyOf(message, isLast);
      if (this.#drawn[at]?.key !== key) {
        this.#put(at, { key, view: messageView(message, isLast, this.#actionsOf(at)) });
      }
    }
    for (const { view } of this.#drawn.splice(messages.length)) view.remove();
    if (messages.length === 0) this.#greet();
    if (isAtEnd) this.#toEnd();
  }

  /** Messages of another chat come next. */
  forget() {
    this.#live = null;
    this.#endPx = 0;
    this.#clear();
  }

  /** An answer is written into message `at`, until it is over. */
  begin(at) {
    const answer = new LiveAnswer(() => { if (this.#isAtEnd) this.#toEnd(); });
    this.#live = { at, answer };
    this.#put(at, { key: "", view: answer.element });
    this.#toEnd();
    return answer;
  }

  end() {
    this.#live?.answer.end();
    this.#live = null;
  }

  /** The element of a message. */
  view(at) {
    return this.#drawn[at]?.view;
  }

  /** Draw a message again at the next `show`, whatever became of its element. */
  invalidate(at) {
    if (this.#drawn[at]) this.#drawn[at].key = "";
  }

  /** Whether the user has not scrolled up, however much longer it has become since. */
  get #isAtEnd() {
    return this.#element.scrollTop > this.#endPx - NEAR_PX;
  }

  #toEnd() {
    this.#element.scrollTop = this.#element.scrollHeight;
    this.#endPx = this.#element.scrollTop;
  }

  #put(at, drawn) {
    const earlier = this.#drawn[at];
    if (earlier) earlier.view.replaceWith(drawn.view);
    else this.#element.append(drawn.view);
    this.#drawn[at] = drawn;
  }

  #clear() {
    this.#drawn = [];
    this.#element.replaceChildren();
  }

  #greet() {
    const greeting = make(
      "div", { className: "greeting" },
      make("p", { textContent: "What would you like to know?" }),
      make("p", {
        className: "remark",
        textContent: "As you begin to type, the chat's KV cache is prefetched, so that the answer starts sooner.",
      }),
    );
    this.#element.replaceChildren(greeting);
  }
}

/** Changes when the message is to be drawn again; of its other versions only the number is drawn. */
function keyOf({ versions, ...message }, isLast) {
  return JSON.stringify([message, versions?.map((each) => each === null), isLast]);
}
