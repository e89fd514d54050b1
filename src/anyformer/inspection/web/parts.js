// What views are put together from, beside their pictures; see README.md.

import { scroll } from "look/controls";
import { h } from "look/element";
import { clamp } from "look/lists";

export const note = (...words) => h("p", { class: "soft small" }, ...words);
export const soft = (...words) => h("p", { class: "soft" }, ...words);
export const small = (...words) => h("p", { class: "small" }, ...words);
export const readout = (...words) => h("p", { class: "readout" }, ...words);
export const titled = (title, ...children) => h("div", {}, h("h3", {}, title), ...children);
export const part = (title, ...children) => h("section", { class: "part", "aria-label": title }, h("h3", {}, title), ...children);
export const beside = (...children) => h("div", { class: "beside" }, ...children);
export const roomOf = (panel, most = null) => (most === null ? panel.clientWidth || 640 : clamp(panel.clientWidth || 640, 280, most));

/** A table as it is; kind(i) is the class of a column, first(cell) makes the first cell of a row. */
export const grid = (columns, rows, kind, first = (cell) => h("td", { class: kind(0) }, cell)) => h("table", {},
  h("thead", {}, h("tr", {}, columns.map((name, i) => h("th", { scope: "col", class: kind(i) }, name)))),
  h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, i) => (i ? h("td", { class: kind(i) }, cell) : first(cell)))))));

export const table = (label, columns, rows, { numbers = [], tall = null } = {}) => {
  const there = (cells) => cells.filter((cell) => cell !== null && cell !== false);
  const kind = (i) => (numbers.includes(i) ? "number" : null);
  const box = scroll(label, grid(there(columns), rows.map(there), kind, (cell) => h("th", { scope: "row" }, cell)));
  if (tall) box.style.maxHeight = tall;
  return box;
};
