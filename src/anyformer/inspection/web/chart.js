// A line chart; see README.md.

import { svg } from "look/element";
import { round, whole } from "look/format";
import { clamp } from "look/lists";
import { category } from "look/palette";

/** Few round ticks between low and high. */
export const ticks = (low, high, most = 5) => {
  if (!(high > low)) return [low];
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return found;
};

/** Those of them that are whole numbers, as [number, text]. */
export const wholeTicks = (low, high, most = 8) => ticks(low, high, most).map((at) => Number(at.toFixed(6))).filter(Number.isInteger).map((at) => [at, whole(at)]);

export const chart = ({ series, x = {}, y = {}, mark = null, label = "", width = 640, height = 240, onSelect = null }) => {
  const all = series.flatMap((line) => [...line.values].filter(Number.isFinite));
  const xs = series.flatMap((line) => [...(line.x ?? line.values.keys())]);
  let [low, high] = y.range ?? [Math.min(...all, Infinity), Math.max(...all, -Infinity)];
  if (!Number.isFinite(low) || !Number.isFinite(high)) [low, high] = [0, 1];
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const [first, last] = x.range ?? [Math.min(...xs, Infinity), Math.max(...xs, -Infinity)];
  const named = series.length > 1 || series[0]?.name;
  const space = { left: 56, right: named ? Math.min(128, width * 0.25) : 16, top: y.label ? 28 : 16, bottom: 40 };
  const inner = { width: Math.max(40, width - space.left - space.right), height: height - space.top - space.bottom };
  const px = (value) => space.left + (last > first ? ((value - first) / (last - first)) * inner.width : inner.width / 2);
  const py = (value) => space.top + (1 - (value - low) / (high - low)) * inner.height;
  const right = space.left + inner.width, bottom = space.top + inner.height;
  const format = y.format ?? round;
  const text = (words, x, y, more) => root.append(svg("text", { x, y, ...more }, words));
  const rule = (x1, y1, x2, y2, more) => root.append(svg("line", { x1, x2, y1, y2, ...more }));
  const middle = { "text-anchor": "middle" };

  const root = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  for (const at of ticks(low, high, 4)) {
    rule(space.left, py(at), right, py(at), { class: "grid" });
    text(format(at), space.left - 8, py(at) + 4, { "text-anchor": "end" });
  }
  const marks = x.ticks ?? ticks(first, last, Math.max(2, Math.floor(inner.width / 80))).filter((at) => Number.isInteger(at) || last - first < 2).map((at) => [at, round(at)]);
  for (const [at, words] of marks) text(words, px(at), bottom + 18, middle);
  rule(space.left, bottom, right, bottom, { class: "axis" });
  if (x.label) text(x.label, space.left + inner.width / 2, height - 4, middle);
  if (y.label) text(y.label, 0, 10);
  if (mark !== null) rule(px(mark), space.top, px(mark), bottom, { class: "mark" });

  const ends = [];
  series.forEach((line, i) => {
    const style = category(i);
    const stroke = line.colour ?? style.colour;
    const xAt = (at) => px(line.x ? line.x[at] : at);
    let path = "", pen = "M";
    line.values.forEach((value, at) => {
      const there = Number.isFinite(value);
      if (there) path += `${pen}${xAt(at).toFixed(1)} ${py(value).toFixed(1)}`;
      pen = there ? "L" : "M";
    });
    root.append(svg("path", { class: "curve", d: path, stroke, "stroke-dasharray": line.dash ?? style.dash }));
    const at = line.values.findLastIndex(Number.isFinite);
    if (at >= 0 && line.values.length === 1) root.append(svg("circle", { cx: xAt(0), cy: py(line.values[0]), r: 3, fill: stroke }));
    if (line.name && at >= 0) ends.push({ name: line.name, y: py(line.values[at]), stroke });
  });
  ends.sort((a, b) => a.y - b.y);
  ends.forEach((end, i) => { if (i) end.y = Math.max(end.y, ends[i - 1].y + 14); }); // names do not lie on each other
  for (const end of ends) text(end.name, right + 8, end.y + 4, { class: "name", style: { fill: end.stroke } });
  if (onSelect) {
    root.style.cursor = "pointer";
    root.addEventListener("click", (event) => {
      const box = root.getBoundingClientRect();
      const at = first + (((event.clientX - box.left) / box.width) * width - space.left) / inner.width * (last - first);
      onSelect(clamp(Math.round(at), first, last));
    });
  }
  return root;
};
