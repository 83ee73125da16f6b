// Making elements. Text is always set as text: nothing a model writes is read as HTML.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An HTML element with properties, data-* values in `data`, and children (nodes or strings). */
export function el(name, { data = {}, ...properties } = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  Object.assign(element.dataset, data);
  element.append(...children);
  return element;
}

/** An SVG element with attributes and children. */
export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Calls draw at most once a frame, with the latest arguments. */
export function onFrame(draw) {
  let latest = null;
  return (...given) => {
    if (latest === null) {
      requestAnimationFrame(() => {
        const arguments_ = latest;
        latest = null;
        draw(...arguments_);
      });
    }
    latest = given;
  };
}
