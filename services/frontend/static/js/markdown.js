/** What a model wrote, as elements: Markdown without HTML, scripts, styles or anything that loads. */

import DOMPurify from "/static/vendor/dompurify/purify.es.js";
import { Marked } from "/static/vendor/marked/marked.esm.js";
import { copyButton } from "./clipboard.js";
import { make } from "./dom.js";
import { highlighted } from "./highlight.js";

const TAGS = [
  "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol",
  "p", "pre", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
];
const ATTRIBUTES = ["align", "class", "href", "start", "title"];
const LEVEL_FIRST = 3; // below the page's title and the message's

const escaped = (text) =>
  text.replace(/[&<>"']/g, (char) => `&#${char.charCodeAt(0)};`);

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text }) => escaped(text), // shown as it was written
    image: ({ href, text }) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

/** @returns {Node} of a text, finished or not. */
export function rendered(text) {
  let fragment;
  try {
    const options = { ALLOWED_TAGS: TAGS, ALLOWED_ATTR: ATTRIBUTES, RETURN_DOM_FRAGMENT: true };
    fragment = DOMPurify.sanitize(marked.parse(text), options);
  } catch {
    return make("p", { className: "plain", textContent: text });
  }
  for (const link of fragment.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  }
  for (const pre of fragment.querySelectorAll("pre")) pre.replaceWith(codeBlock(pre));
  for (const table of fragment.querySelectorAll("table")) {
    const frame = make("div", { className: "table", tabIndex: 0, role: "group", "aria-label": "Table" });
    table.replaceWith(frame);
    frame.append(table);
  }
  levelHeadings(fragment);
  return fragment;
}

function codeBlock(pre) {
  const code = pre.querySelector("code") ?? pre;
  const language = /language-(\S+)/.exec(code.className)?.[1] ?? "";
  code.removeAttribute("class");
  const coloured = highlighted(code.textContent, language);
  if (coloured) code.replaceChildren(...coloured);
  const head = make(
    "div", { className: "code-head" }, make("span", { textContent: language }),
    copyButton("Copy code", () => code.textContent.replace(/\n$/, "")),
  );
  const frame = make("div", { className: "code" }, head);
  pre.tabIndex = 0;
  pre.setAttribute("role", "group");
  pre.setAttribute("aria-label", language ? `Code in ${language}` : "Code");
  frame.append(pre.cloneNode(true));
  return frame;
}

/** No level is left out, whatever the model did. */
function levelHeadings(fragment) {
  let deepest = LEVEL_FIRST - 1;
  for (const heading of fragment.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
    const wanted = Math.min(Number(heading.tagName[1]) + LEVEL_FIRST - 1, 6);
    const level = Math.min(wanted, deepest + 1);
    deepest = level;
    heading.replaceWith(make(`h${level}`, {}, ...heading.childNodes));
  }
}
