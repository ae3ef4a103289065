/** Making and finding elements. */

export const $ = (id) => document.getElementById(id);

/**
 * An element. Of `fields`, those with a dash and `role` are attributes, `on` are listeners, and the
 * others are properties.
 */
export function make(tag, fields = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(fields)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "role" || name.includes("-")) {
      element.setAttribute(name, value);
    } else {
      element[name] = value;
    }
  }
  element.append(...children);
  return element;
}

export function button(label, onClick, fields = {}) {
  return make("button", { type: "button", className: "quiet", on: { click: onClick }, ...fields }, label);
}

/** A textarea as high as its text, as far as its style lets it. */
export function fit(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + area.offsetHeight - area.clientHeight}px`;
}
