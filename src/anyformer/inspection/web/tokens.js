// Token chips; see README.md.

import { arrow } from "look/controls";
import { h } from "look/element";
import { number, visible } from "look/format";
import { clamp } from "look/lists";
import { colour, onColour, place } from "look/palette";

const said = (token, value, format) =>
  [token.text.trim() === "" ? visible(token.text) : token.text, value === null || value === undefined ? "" : format(value), token.note ?? ""].filter(Boolean).join(", ");

export const tokens = ({ tokens: list, values = null, range = null, scale = "linear", sides = "one", selected = null,
  onSelect = null, format = number, label = "Tokens", focus = "tokens", numbers = false, start = 0 }) => {
  const finite = values ? [...values].filter(Number.isFinite) : [];
  const [low, high] = range ?? [Math.min(0, ...finite), Math.max(...finite, 1e-12)];
  const chips = list.map((token, i) => {
    const value = values ? values[i] : null;
    const share = value === null ? null : place(value, low, high, scale);
    const props = {
      class: `token ${token.kind ?? ""}`, title: said(token, value, format) + (token.id === null || token.id === undefined ? "" : `, id ${token.id}`),
      style: share === null ? {} : { background: colour(share, sides), color: onColour(share, sides) },
    };
    const inside = [visible(token.text), numbers && value !== null ? h("span", { class: "value" }, format(value)) : null];
    if (!onSelect) return h("span", props, inside);
    const current = i + start === selected;
    return h("button", { ...props, type: "button", "aria-pressed": String(current), "aria-label": said(token, value, format),
      tabindex: current || (i === 0 && (selected === null || selected < start || selected >= start + list.length)) ? 0 : -1,
      data: { focus: `${focus}-${i + start}` }, onclick: () => onSelect(i + start) }, inside);
  });
  const box = h("div", { class: "tokens", role: "group", "aria-label": label }, chips);
  if (onSelect) {
    box.addEventListener("keydown", (event) => {
      const move = arrow(event);
      const at = chips.indexOf(document.activeElement);
      if (!move || at < 0) return;
      event.preventDefault();
      event.stopPropagation();
      const next = clamp(at + move[0] + move[1], 0, chips.length - 1);
      chips[next].focus();
      onSelect(next + start);
    });
  }
  return box;
};
