// Formulas as MathML; see README.md.

import { append, h } from "look/element";
import { number } from "look/format";

const MATH = "http://www.w3.org/1998/Math/MathML";

const math = (tag, props, ...children) => {
  const node = document.createElementNS(MATH, tag);
  for (const [name, value] of Object.entries(props)) if (value) node.setAttribute(name, value);
  return append(node, children);
};

const piece = (text) => {
  const [sign, kind] = text.length > 1 ? text.split(":") : [text];
  return math(/^\p{L}/u.test(sign) ? "mi" : /^\d/.test(sign) ? "mn" : "mo", { class: kind }, sign);
};
const pieces = (text) => row(text.match(/(?:\p{L}+|\d[\d.]*|\S)(?::[a-z]+)?/gu).map(piece));
const word = (text) => {
  const [, base, below, above] = text.match(/^([^_^]+)(?:_([^^]+))?(?:\^(.+))?$/);
  const low = below ? sub(pieces(base), pieces(below)) : pieces(base);
  return above ? sup(low, word(above)) : low;
};
const read = (part) => {
  if (Array.isArray(part)) return part.map(read);
  if (typeof part === "number") return math("mn", {}, number(part));
  return typeof part === "string" ? part.split(" ").filter(Boolean).map(word) : part;
};
const made = (tag) => (...parts) => math(tag, {}, parts.map((part) => row(part)));

export const row = (...parts) => math("mrow", {}, read(parts));
export const sub = made("msub");
export const sup = made("msup");
export const frac = made("mfrac");
export const sqrt = made("msqrt");
export const mtext = (text) => math("mtext", {}, text);

/** The whole formula, as a block that scrolls by itself where it is too wide, and can then be reached by keyboard. */
export const formula = (...parts) => {
  const block = h("div", { class: "formula", role: "group", "aria-label": "Formula" }, math("math", { display: "inline" }, read(parts)));
  new ResizeObserver(() => { block.tabIndex = block.scrollWidth > block.clientWidth ? 0 : -1; }).observe(block);
  return block;
};
