// An image with its grid of patches; see README.md.

import { announce, h, svg } from "look/element";
import { paint, walked } from "look/heatmap";
import { buttons, scales, select, slider, toggle } from "look/controls";
import { number, percent } from "look/format";
import { clamp, sum } from "look/lists";
import { place as placeOf } from "look/palette";

/** A patch by its row and column, counted from 1. */
export const place = (i, columns) => `r${Math.floor(i / columns)} c${i % columns}`;

const CONTOURS = { none: [], 50: [0.5], 75: [0.75], 90: [0.9], all: [0.5, 0.75, 0.9] };

/** Controls that every picture has; the slider fades the map while it is moved. */
export const pictureControls = (look, fade) => [
  scales(look),
  select(look, { name: "range", label: "Colours from", options: [["zero", "0 to the largest"], ["least", "the least to the largest"]], fallback: "zero" }),
  slider(look, { name: "opacity", label: "Opacity", min: 0, max: 1, step: 0.05, fallback: 0.6, format: (value) => percent(value, 2), onInput: fade }),
  buttons(look, { name: "smooth", label: "Between patches", options: [["0", "Steps"], ["1", "Smooth"]], fallback: "0" }),
  select(look, { name: "contour", label: "Line around", options: [["none", "nothing"], ["50", "50 % of the weight"], ["75", "75 %"], ["90", "90 %"], ["all", "50, 75 and 90 %"]], fallback: "none" }),
  toggle(look, { name: "lines", label: "Patch grid", fallback: true }),
];

/** What those controls say, for `patches`. */
export const pictureOptions = (look) => ({
  scale: look.option("scale", "sqrt"),
  opacity: Number(look.option("opacity", 0.6)), smooth: look.option("smooth", "0") === "1", contours: CONTOURS[look.option("contour", "none")] ?? [], lines: look.option("lines", "1") === "1",
});

/** The range of the colours of some weights: from 0, unless small differences are wanted. */
export const coloured = (look, values) => [look.option("range", "zero") === "least" ? Math.min(...values) : 0, Math.max(...values, 1e-12)];

/** A canvas of pixels drawn `wide` and `high`; value(i, c) is 0 to 255, of pixel i and colour c. */
export const pixels = (rows, columns, wide, high, value) => {
  const canvas = h("canvas", { "aria-hidden": "true", width: columns, height: rows, style: { width: `${wide}px`, height: `${high}px` } });
  const image = new ImageData(columns, rows);
  image.data.forEach((_, n) => { image.data[n] = n % 4 === 3 ? 255 : value(Math.floor(n / 4), n % 4); });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
};

/** Which patches are the strongest that together hold `share` of the whole. */
export const strongest = (data, share) => {
  const order = Array.from(data.keys()).sort((a, b) => data[b] - data[a]);
  const total = sum(data);
  const found = new Uint8Array(data.length);
  let held = 0;
  for (const i of order) {
    if (held >= (share - 1e-6) * total || !(data[i] > 0)) break;
    found[i] = 1;
    held += data[i];
  }
  return found;
};

/** The borders between chosen and other patches, as a path. */
export const outline = (chosen, [rows, columns], w, t) => {
  const at = (i, j) => (i >= 0 && j >= 0 && i < rows && j < columns ? chosen[i * columns + j] : 0);
  let path = "";
  for (let i = 0; i <= rows; i++) {
    for (let j = 0; j <= columns; j++) {
      const corner = `M${(j * w).toFixed(2)} ${(i * t).toFixed(2)}`;
      if (at(i, j) !== at(i - 1, j)) path += `${corner}h${w.toFixed(2)}`;
      if (at(i, j) !== at(i, j - 1)) path += `${corner}v${t.toFixed(2)}`;
    }
  }
  return path;
};

const DASHES = ["", "6 3", "2 3"];

export const patches = ({ picture = null, data, grid: [rows, columns], range, scale = "linear", opacity = 0.6, smooth = false, contours = [], lines = true, selected = null,
  onSelect = null, onHover = null, describe = null, width = 448, label = "Image", focus = "patches", format = number }) => {
  const [pixelRows, pixelColumns] = picture ? picture.shape : [rows, columns];
  const wide = Math.floor(Math.min(width, 448, (480 * pixelColumns) / pixelRows)), high = Math.round((wide * pixelRows) / pixelColumns);
  const w = wide / columns, t = high / rows;
  const size = { width: `${wide}px`, height: `${high}px` };
  const under = picture ? pixels(pixelRows, pixelColumns, wide, high, (i, c) => picture.data[i * 3 + c]) : null;
  const map = h("canvas", { class: "map", "aria-hidden": "true", style: { ...size, imageRendering: smooth ? "auto" : "pixelated" } });
  const over = svg("svg", { class: "over", width: wide, height: high, "aria-hidden": "true" });
  const marks = (values, framed) => {
    over.replaceChildren();
    if (lines && w >= 8 && t >= 8) {
      let path = "";
      for (let j = 1; j < columns; j++) path += `M${(j * w).toFixed(2)} 0v${high}`;
      for (let i = 1; i < rows; i++) path += `M0 ${(i * t).toFixed(2)}h${wide}`;
      over.append(svg("path", { class: "grid", d: path }));
    }
    contours.forEach((share, i) => {
      const path = outline(strongest(values, share), [rows, columns], w, t);
      over.append(svg("path", { class: "rim", d: path }), svg("path", { class: "contour", d: path, "stroke-dasharray": DASHES[i], data: { share } }));
    });
    if (framed !== null) {
      const box = { x: (framed % columns) * w - 1, y: Math.floor(framed / columns) * t - 1, width: w + 2, height: t + 2 };
      over.append(svg("rect", { ...box, class: "rim" }), svg("rect", { ...box, class: "chosen" }));
    }
  };
  const show = (values, framed = selected, bounds = range) => {
    paint(map, values, [rows, columns], { range: bounds, scale });
    if (picture) { // what is not looked at stays the picture: nothing lies over a weight of 0
      const pen = map.getContext("2d"), drawn = pen.getImageData(0, 0, columns, rows);
      values.forEach((value, i) => { drawn.data[4 * i + 3] = Math.round(255 * placeOf(value, ...bounds, scale)); });
      pen.putImageData(drawn, 0, 0);
    }
    marks(values, framed);
  };
  const fade = (value) => { map.style.opacity = picture ? String(value) : "1"; };
  show(data);
  fade(opacity);

  const pick = (i) => {
    if (describe) announce(describe(i, data[i]));
    onSelect?.(i);
  };
  let last = null;
  const hover = (i, j) => { const now = i === null ? null : i * columns + j; if (now !== last) { last = now; onHover(now); } };
  const { field } = walked({ shape: [rows, columns], w, t, size, label, focus, page: rows, at: selected === null ? null : [Math.floor(selected / columns), selected % columns],
    said: selected === null ? "No patch is selected" : describe ? describe(selected, data[selected]) : format(data[selected]),
    pick: (i, j) => pick(clamp(i, 0, rows - 1) * columns + clamp(j, 0, columns - 1)), onHover: onHover && hover }, under, map, over);
  return Object.assign(h("div", { class: "heatmap pictured" }, field), { show, fade });
};
