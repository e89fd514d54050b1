// How numbers are spread, and a part of them to choose: brush(look, {name, values, format, label, width}) -> {element, keeps}.
//
// The part is kept in the address as `name=5-12`, edges of the bars: dragged over the bars, or moved by the two sliders.

import { row } from "look/controls";
import { h, svg } from "look/element";
import { clamp, times } from "look/lists";

const BARS = 24, TALL = 48;

export const brush = (look, { name, values, format, label, width }) => {
  const low = Math.min(...values), step = (Math.max(...values) - low) / BARS || 1, wide = width / BARS;
  const bar = (value) => clamp(Math.floor((value - low) / step), 0, BARS - 1);
  const counts = times(BARS, () => 0);
  for (const value of values) counts[bar(value)] += 1;
  const put = (ends) => {
    const from = clamp(Math.min(...ends), 0, BARS - 1), to = clamp(Math.max(...ends), from + 1, BARS);
    look.select({ [name]: to - from === BARS ? null : `${from}-${to}` });
  };
  const part = look.option(name, `0-${BARS}`).split("-").map((edge, i) => clamp(Math.round(edge) || 0, i, BARS - 1 + i));
  const keeps = (value) => part[1] - part[0] === BARS || (value !== null && bar(value) >= part[0] && bar(value) < part[1]);

  const unit = TALL / Math.max(...counts);
  const frame = svg("rect", { class: "part", height: TALL });
  const show = ([a, b]) => { frame.setAttribute("x", Math.min(a, b) * wide); frame.setAttribute("width", Math.abs(b - a) * wide); };
  show(part);
  let start = null;
  const dragged = (event) => [start, clamp(Math.round((event.clientX - root.getBoundingClientRect().left) / wide), 0, BARS)];
  const root = svg("svg", { class: "brush", width, height: TALL, "aria-hidden": "true",
    onpointerdown: (event) => { [, start] = dragged(event); root.setPointerCapture(event.pointerId); },
    onpointermove: (event) => { if (start !== null) show(dragged(event)); },
    onpointerup: (event) => { const ends = dragged(event); put(ends[0] === ends[1] ? [0, BARS] : ends); } },
  counts.map((count, i) => svg("rect", { x: i * wide + 1, width: wide - 2, y: TALL - count * unit, height: count * unit })), frame);
  const end = (word, i) => {
    const said = format(low + part[i] * step);
    const input = h("input", { type: "range", min: i, max: BARS - 1 + i, "aria-label": `${label}, ${word}`, "aria-valuetext": said, data: { focus: `${name}-${word}` },
      onchange: () => put(part.with(i, Number(input.value))) });
    input.value = String(part[i]);
    return h("label", { class: "control" }, word, input, h("output", {}, said));
  };
  return { keeps, element: h("div", { role: "group", "aria-label": label }, root, row(end("from", 0), end("to", 1))) };
};
