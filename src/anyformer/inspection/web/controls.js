// Controls bound to an option of the address; see README.md.

import { h } from "look/element";
import { number } from "look/format";

const put = (look, name, value, fallback) => look.select({ [name]: String(value) === String(fallback) ? null : value });

export const knob = (text, onclick, { focus, ...attributes } = {}) => h("button", { type: "button", data: focus && { focus }, onclick, ...attributes }, text);

export const isOn = (look, name) => look.option(name, "0") === "1";

export const row = (...controls) => h("div", { class: "controls" }, ...controls);

export const select = (look, { name, label, options, fallback, disabled = false }) => {
  const now = look.option(name, fallback);
  return h("label", { class: "control" }, label,
    h("select", { data: { focus: `option-${name}` }, disabled, onchange: (event) => put(look, name, event.target.value, fallback) },
      options.map(([value, text]) => h("option", { value, selected: String(value) === String(now) }, text))));
};

export const buttons = (look, { name, label, options, fallback }) => {
  const now = look.option(name, fallback);
  return h("div", { class: "control", role: "group", "aria-label": label }, h("span", { "aria-hidden": "true" }, label),
    h("div", { class: "segments" },
      options.map(([value, text]) => knob(text, () => put(look, name, value, fallback),
        { "aria-pressed": String(String(value) === String(now)), focus: `option-${name}-${value}` }))));
};

export const scales = (look) => select(look, { name: "scale", label: "Scale", options: [["sqrt", "square root"], ["linear", "linear"], ["log", "log"]], fallback: "sqrt" });

export const toggle = (look, { name, label, fallback = false }) => {
  const now = look.option(name, fallback ? "1" : "0") === "1";
  return h("label", { class: "control" },
    h("input", { type: "checkbox", checked: now, data: { focus: `option-${name}` },
      onchange: (event) => put(look, name, event.target.checked ? "1" : "0", fallback ? "1" : "0") }), label);
};

export const slider = (look, { name, label, min, max, step = 1, fallback, format = number, onInput = null }) => {
  const now = Number(look.option(name, fallback));
  const shown = h("output", {}, format(now));
  const input = h("input", { type: "range", min, max, step, value: now, "aria-label": label, data: { focus: `option-${name}` },
    oninput: (event) => { shown.textContent = format(Number(event.target.value)); onInput?.(Number(event.target.value)); },
    onchange: (event) => put(look, name, event.target.value, fallback) });
  input.value = String(now); // after min, max and step, which bound it
  return h("label", { class: "control" }, label, input, shown);
};

export const button = (text, onClick, { primary = false, label = null, disabled = false, focus = text, pressed = null } = {}) =>
  knob(text, onClick, { class: primary ? "primary" : null, "aria-label": label, disabled,
    "aria-pressed": pressed === null ? null : String(pressed), focus: `button-${focus}` });

export const scroll = (label, ...children) => h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": label }, ...children);

export const arrow = (event, { page = 0, line = 0 } = {}) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return null;
  const pages = page && { PageUp: [-page, 0], PageDown: [page, 0] }, lines = line && { Home: [0, -line], End: [0, line] };
  return { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], ...pages, ...lines }[event.key] ?? null;
};
