/** Copying, also where the page came by plain HTTP and browsers have no clipboard for it. */

import { button, make } from "./dom.js";
import { say } from "./live.js";

const SHOWN_MS = 1_500;

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const focused = document.activeElement;
  const area = make("textarea", { value: text, className: "hidden" });
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  focused?.focus();
  if (!isCopied) throw new Error("not copied");
}

/** A button that copies what `text` gives, and says whether it did. */
export function copyButton(label, text) {
  const shown = async () => {
    const said = await copy(text()).then(() => "Copied", () => "Not copied");
    it.textContent = said;
    say(said);
    setTimeout(() => { it.textContent = "Copy"; }, SHOWN_MS);
  };
  const it = button("Copy", shown, { "aria-label": label });
  return it;
}
