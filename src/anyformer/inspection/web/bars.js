// Bars with names; see README.md.

import { h } from "look/element";
import { number } from "look/format";

export const bars = ({ items, range = null, format = number, label = "" }) => {
  const values = items.map((item) => item.value).filter(Number.isFinite);
  const [low, high] = range ?? [Math.min(0, ...values), Math.max(0, ...values)];
  const span = high - low || 1;
  const at = (value) => Math.max(0, Math.min(100, ((value - low) / span) * 100));
  const zero = at(0);
  return h("div", { class: "bars", role: "list", "aria-label": label },
    items.map((item, i) => {
      const end = at(Number.isFinite(item.value) ? item.value : low);
      const name = item.onclick
        ? h("button", { type: "button", class: "name", title: item.name, data: { focus: `bar-${i}` }, onclick: item.onclick }, item.name)
        : h("span", { class: "name", title: item.name }, item.name);
      return h("div", { class: item.on ? "row on" : "row", role: "listitem" }, name,
        h("span", { class: "track", "aria-hidden": "true" },
          h("span", { class: "fill", style: { left: `${Math.min(zero, end)}%`, width: `${Math.abs(end - zero)}%`, ...(item.colour ? { background: item.colour } : {}) } })),
        h("span", { class: "figure" }, item.label ?? format(item.value)));
    }));
};
