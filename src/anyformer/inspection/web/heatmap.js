// A matrix as a picture, its legend and its rulers; see README.md.

import { arrow } from "look/controls";
import { announce, h, svg } from "look/element";
import { cut, number, visible } from "look/format";
import { clamp } from "look/lists";
import { category, onColour, place, ramp, theme } from "look/palette";
import { gestures } from "look/zoom";

const HIDDEN = { "aria-hidden": "true" };
const GREY = { light: [236, 237, 239], dark: [9, 10, 12] };
const LETTER = 6.7; // width of one letter of the rulers' 11-px mono type

/** Colours of a matrix, put on a canvas of one pixel a cell. */
export const paint = (canvas, data, [rows, columns], { range, scale = "linear", sides = "one" }) => {
  canvas.width = columns;
  canvas.height = rows;
  const image = new ImageData(columns, rows);
  const words = new Uint32Array(image.data.buffer);
  const table = ramp(sides);
  const packed = new Uint32Array(256);
  for (let i = 0; i < 256; i++) packed[i] = (255 << 24) | (table[i * 3 + 2] << 16) | (table[i * 3 + 1] << 8) | table[i * 3];
  const [r, g, b] = GREY[theme()];
  const grey = (255 << 24) | (b << 16) | (g << 8) | r;
  if (data instanceof Uint8Array && !range) for (let i = 0; i < words.length; i++) words[i] = packed[data[i]];
  else {
    const [low, high] = range;
    for (let i = 0; i < words.length; i++) {
      const value = data[i];
      words[i] = value !== value ? grey : packed[(place(value, low, high, scale) * 255 + 0.5) | 0];
    }
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
};

export const picture = (data, [rows, columns], style, size) => {
  const by = size / Math.max(rows, columns);
  return paint(h("canvas", { ...HIDDEN, style: { width: `${Math.max(8, columns * by)}px`, height: `${Math.max(8, rows * by)}px` } }), data, [rows, columns], style);
};

export const byTokens = (queries, keys) => ({ rows: { labels: queries, kind: "query" }, columns: { labels: keys, kind: "key" } });

/** Smallest and largest finite value. */
export const rangeOf = (data) => {
  let low = Infinity, high = -Infinity;
  for (const value of data) if (Number.isFinite(value)) { if (value < low) low = value; if (value > high) high = value; }
  return low > high ? [0, 1] : [low, high];
};

export const legend = ({ range, scale = "linear", sides = "one", format = number, masked = false, name = "" }) => {
  const strip = paint(h("canvas", HIDDEN), Uint8Array.from({ length: 256 }, (_, i) => i), [1, 256], { sides });
  const half = scale === "sqrt" ? 0.25 : scale === "log" ? 0.01 : 0.5; // the value in the middle of the strip
  const middle = range[0] + (range[1] - range[0]) * half;
  return h("span", { class: "legend" }, name, format(range[0]), strip, `${format(range[1])} · ${scale} scale, middle ${format(middle)}`,
    masked ? h("span", {}, "· grey: masked") : null);
};

/** Cells of `w` by `t` pixels, walked by arrow keys from one tab stop: {field, under(event)}. `at` is the chosen cell, `said` its words. */
export const walked = ({ shape: [rows, columns], w, t, size, label, focus, at, said, page = 10, pick, onHover, onOpen }, ...inside) => {
  const field = h("div", { class: "field", role: "grid", "aria-label": label, "aria-rowcount": rows, "aria-colcount": columns, "aria-readonly": "true", tabindex: 0,
    "aria-activedescendant": `${focus}-cell`, data: { focus }, style: size }, inside,
  h("div", { role: "row", class: "unseen", "aria-rowindex": (at?.[0] ?? 0) + 1 },
    h("div", { role: "gridcell", id: `${focus}-cell`, "aria-selected": String(Boolean(at)), "aria-colindex": (at?.[1] ?? 0) + 1 }, said)));
  const under = (event) => {
    const box = field.getBoundingClientRect();
    return [clamp(Math.floor((event.clientY - box.top) / t), 0, rows - 1), clamp(Math.floor((event.clientX - box.left) / w), 0, columns - 1)];
  };
  field.addEventListener("click", (event) => {
    pick(...under(event));
    if (event.detail > 1) onOpen?.(); // the field of the first click is gone by then: there is no dblclick
  });
  if (onHover) {
    field.addEventListener("pointermove", (event) => onHover(...under(event)));
    field.addEventListener("pointerleave", () => onHover(null));
  }
  field.addEventListener("keydown", (event) => {
    const move = arrow(event, { page, line: columns }), opens = at && onOpen && event.key === "Enter";
    if (!move && !opens) return;
    event.preventDefault();
    if (opens) onOpen();
    else pick(...(at ? [at[0] + move[0], at[1] + move[1]] : [0, 0]));
  });
  return { field, under };
};

const cellSize = (rows, columns, width, most) => {
  const [wide, high] = [width / columns, 640 / rows].map((size) => clamp(size, 1, most)).map((size) => (size >= 2 ? Math.floor(size) : size));
  const less = Math.min(wide, high);
  return less >= 6 || rows === columns ? [less, less] : [wide, high];
};

const bar = (values, size, length, upright) => {
  const most = Math.max(...[...values].filter(Number.isFinite), 1e-12);
  const inset = size > 12 ? size / 4 : size > 3 ? 0.5 : 0;
  let path = "";
  values.forEach((value, i) => {
    const long = Number.isFinite(value) ? (Math.max(0, value) / most) * (length - 4) : 0;
    const thick = size - 2 * inset, at = i * size + inset;
    path += upright ? `M${at} 4h${thick}v${long}h${-thick}z` : `M4 ${at}h${long}v${thick}h${-long}z`;
  });
  return path;
};

export const heatmap = ({ data, shape: [nr, nc], rows = {}, columns = {}, range = null, scale = "linear", sides = "one", selected = null,
  onSelect = null, onHover = null, onOpen = null, onZoom = null, whole = null, describe = null, numbers = false, marginals = null, width = 640, most = 40, label = "Map", focus = "heatmap", format = number }) => {
  const bounds = range ?? rangeOf(data);
  const { labels: rowLabels, start: rowStart = 0, bands: rowBands = [] } = rows, { labels: columnLabels, start: columnStart = 0, bands: columnBands = [] } = columns;
  const longest = width < 420 ? 9 : 16;
  const text = (word) => cut(visible(word), longest);
  const side = (labels) => (labels ? Math.min(longest, Math.max(1, ...labels.map((word) => [...text(word)].length))) * LETTER + 10 : 0);
  const left = Math.ceil(side(rowLabels)), top = Math.ceil(side(columnLabels));
  const strip = marginals ? 48 : 0;
  let [w, t] = cellSize(nr, nc, Math.max(64, width - left - strip - 2), most);
  if (numbers) [w, t] = [Math.max(w, 40), Math.max(t, 22)];
  const wide = w * nc, high = t * nr, size = { width: `${wide}px`, height: `${high}px` };

  const canvas = paint(h("canvas", { ...HIDDEN, style: size }), data, [nr, nc], { range: bounds, scale, sides });
  const over = svg("svg", { class: "over", width: wide, height: high, ...HIDDEN });
  const path = (d, width, opacity = 1, stroke = "var(--ink)") => over.append(svg("path", { d, fill: "none", stroke, "stroke-width": width, "stroke-opacity": opacity }));
  const ruler = (labels, bands, chosen, size, kind, upright) => {
    const box = svg("svg", { width: upright ? wide : left, height: upright ? top : high, ...HIDDEN });
    const every = Math.max(1, Math.ceil(12 / size));
    bands.forEach((band, i) => {
      const at = i * size;
      box.append(svg("rect", { class: "band", fill: category(band).colour, ...(upright ? { x: at, y: top - 4, width: size, height: 3 } : { x: left - 4, y: at, width: 3, height: size }) }));
      if (i && band !== bands[i - 1]) path(upright ? `M${at} 0v${high}` : `M0 ${at}h${wide}`, 1, 0.5);
    });
    labels.forEach((word, i) => {
      const on = i === chosen;
      // Where labels are thinned, the selected one is shown and its neighbours give way.
      if (!on && (i % every || (chosen !== null && Math.abs(i - chosen) < every))) return;
      const at = (i + 0.5) * size;
      const place = upright ? { transform: `translate(${at + 4} ${top - 6}) rotate(-90)` } : { x: left - 6, y: at + 4, "text-anchor": "end" };
      box.append(svg("text", { ...place, class: `${kind ?? ""} ${on ? "on" : ""}` }, text(word)));
    });
    return box;
  };

  const [row, column] = selected ? [selected[0] - rowStart, selected[1] - columnStart] : [-1, -1];
  const seen = row >= 0 && row < nr && column >= 0 && column < nc;
  const cell = (r, c) => [r + rowStart, c + columnStart, data[r * nc + c]]; // as the rulers number it, with its value
  if (seen) {
    const y = row * t, x = column * w;
    path(t < 6 ? `M0 ${y + t / 2}h${wide}` : `M0 ${y}h${wide}v${t}h${-wide}z`, 1, 0.35);
    path(w < 6 ? `M${x + w / 2} 0v${high}` : `M${x} 0h${w}v${high}h${-w}z`, 1, 0.35);
    const frame = `M${x - 1} ${y - 1}h${w + 2}v${t + 2}h${-w - 2}z`;
    path(frame, 4, 1, "var(--panel)");
    path(frame, 2);
  }
  if (numbers && nr * nc <= 4096) {
    for (let i = 0; i < nr * nc; i++) {
      if (Number.isNaN(data[i])) continue;
      over.append(svg("text", { class: "figure", x: ((i % nc) + 0.5) * w, y: (Math.floor(i / nc) + 0.5) * t + 4,
        style: { fill: onColour(place(data[i], bounds[0], bounds[1], scale), sides) } }, format(data[i], 2)));
    }
  }

  const pick = (r, c) => {
    const [i, j] = whole ? [clamp(r + rowStart, 0, whole[0] - 1), clamp(c + columnStart, 0, whole[1] - 1)] : cell(clamp(r, 0, nr - 1), clamp(c, 0, nc - 1));
    if (describe) announce(describe(i, j, data[(i - rowStart) * nc + j - columnStart]));
    onSelect?.(i, j);
  };
  const said = !seen ? "No cell is selected" : describe ? describe(...cell(row, column)) : format(data[row * nc + column]);
  const { field, under } = walked({ shape: [nr, nc], w, t, size, label, focus, at: seen ? [row, column] : null, said, pick, onOpen,
    onHover: onHover && ((r, c) => (r === null ? onHover(null) : onHover(...cell(r, c)))) }, canvas, over);
  if (onZoom) gestures(field, (event) => cell(...under(event)), (by, at) => onZoom(by, (at ?? selected ?? [rowStart, columnStart]).slice(0, 2)));

  const blank = () => h("span", {});
  const margin = (values, name, upright) => svg("svg", { width: upright ? wide : strip, height: upright ? strip : high, role: "img", "aria-label": name },
    svg("path", { d: bar([...values], upright ? w : t, strip, upright), fill: upright ? "var(--key)" : "var(--query)", "fill-opacity": 0.75 }));
  // With numbers it scrolls: reachable by keyboard.
  return h("div", numbers ? { class: "heatmap wide", tabindex: 0, role: "group", "aria-label": `${label}, with numbers` } : { class: "heatmap" },
    columnLabels ? [blank(), ruler(columnLabels, columnBands, seen ? column : null, w, columns.kind, true), blank()] : null,
    rowLabels ? ruler(rowLabels, rowBands, seen ? row : null, t, rows.kind, false) : blank(), field,
    marginals ? [margin(marginals.rows, marginals.rowsName, false), blank(), margin(marginals.columns, marginals.columnsName, true)] : null, blank());
};
