// Zoom of a map; see README.md.

import { clamp, times } from "look/lists";

export const LEAST = 8; // cells a side
const NOTCH = 100; // of a wheel; a trackpad sends many small turns
const CORNER = ["top", "left"];

export const windowIn = ({ selection: { query, key }, option }, start, shape) => {
  const side = Number(option("zoom", 0)), zoomed = side >= LEAST && side < Math.max(...shape);
  const size = shape.map((most) => (zoomed ? Math.min(most, Math.round(side)) : most));
  const corner = CORNER.map((name, i) => clamp(Math.round(option(name, [query, key][i] - size[i] / 2)) || 0, start[i], start[i] + shape[i] - size[i]));
  return { corner, size, zoomed };
};

export const zoomBy = (look, { corner, size }, shape, by, at) => {
  const now = Math.max(...size), side = by > 0 ? Math.max(LEAST, now >> 1) : now * 2;
  const near = by && side < Math.max(...shape);
  const [top, left] = near ? at.map((cell, i) => Math.max(0, Math.round(cell - ((cell - corner[i]) * Math.min(side, shape[i])) / size[i]))) : [null, null];
  look.select({ zoom: near ? side : null, top, left });
};

export const follow = ({ corner, size, zoomed }, cell) => zoomed && Object.fromEntries(CORNER.map((name, i) => [name, clamp(corner[i], cell[i] - size[i] + 1, cell[i])]));

/** The numbers inside, of `columns` in a row of the tile. */
export const cropped = (data, columns, start, { corner, size: [rows, wide] }) => {
  const at = (i) => (corner[0] - start[0] + i) * columns + corner[1] - start[1];
  return Float32Array.from(times(rows, (i) => [...data.subarray(at(i), at(i) + wide)]).flat());
};

let turned = 0, apart = 0; // outlive a redraw in the middle of a turn

export const gestures = (field, cellAt, onZoom) => {
  const on = (name, act) => field.addEventListener(name, act, { passive: false });
  on("wheel", (event) => {
    if (!(event.ctrlKey || event.metaKey || document.activeElement === field)) return;
    event.preventDefault();
    turned += event.deltaY * (event.deltaMode ? NOTCH : event.ctrlKey ? 4 : 1);
    if (Math.abs(turned) < NOTCH) return;
    onZoom(turned < 0 ? 1 : -1, cellAt(event));
    turned = 0;
  });
  const pinch = (event) => {
    const [a, b] = event.touches;
    if (!b) return;
    event.preventDefault();
    const now = Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY), by = now / apart;
    if (event.type === "touchstart") apart = now;
    else if (apart && (by > 1.4 || by < 0.7)) {
      apart = 0;
      onZoom(by > 1 ? 1 : -1, cellAt(a));
    }
  };
  on("touchstart", pinch);
  on("touchmove", pinch);
  on("keydown", (event) => {
    const by = { "+": 1, "=": 1, "-": -1, 0: 0 }[event.key];
    if (by === undefined || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    onZoom(by);
  });
};
