// Every head as a thumbnail, by layer or sorted by a statistic, with heads that share keys and values under one bracket.

import { brush } from "look/brush";
import { h } from "look/element";
import { byTokens, heatmap, legend, picture } from "look/heatmap";
import { isOn, knob, row, scales, select, toggle } from "look/controls";
import { number } from "look/format";
import { clamp, sum, times } from "look/lists";
import { place } from "look/palette";
import { note, roomOf, soft, titled } from "look/parts";

const MOST = 8; // heads in one mean
/** The 256 codes of the thumbnails, which are square roots, in the scale that is chosen. */
const recoded = (scale) => times(256, (code) => Math.round(place((code / 255) ** 2, 0, 1, scale) * 255));
const headName = (site, head) => `${site.label}, head ${head}`;

/** The mean of the chosen heads, from their thumbnails, which are exact to half a step of 255. */
const together = (facts, bytes, chosen, look, scale, width) => {
  const sites = new Map(facts.sites.map((site) => [site.site, site]));
  const heads = chosen.map((id) => id.split(".").map(Number)).map(([site, head]) => [sites.get(site), head]).filter(([site, head]) => site && head < site.heads);
  const [first] = heads[0] ?? [];
  if (heads.length < 2) return soft(`Choose two to ${MOST} heads below: their mean is drawn here.`);
  const { rows, columns } = first;
  if (heads.some(([site]) => site.rows !== rows || site.columns !== columns)) return soft(look.notes.sizes);
  const size = rows * columns;
  const data = new Float32Array(size);
  for (const [site, head] of heads) for (let i = 0; i < size; i++) data[i] += ((bytes[site.start + head * size + i] / 255) ** 2 * facts.top) / heads.length;
  const { queries, keys } = look.manifest.sites[first.site];
  const labels = (axis, length) => (look.tokens(axis).length === length ? look.tokens(axis).map((token) => token.text) : null);
  const names = heads.map(([site, head]) => headName(site, head)).join("; ");
  const asked = labels(queries, rows);
  return titled(`Mean of ${heads.length} heads`, note(names),
    heatmap({ data, shape: [rows, columns], range: [0, facts.top], scale, width, most: 28, label: `Mean of ${names}`, focus: "mean", ...byTokens(asked, labels(keys, columns)),
      selected: asked ? [look.selection.query, look.selection.key] : null, onSelect: (query, key) => look.select({ query, key }), describe: (r, c, value) => `mean ${number(value)}` }));
};

export const draw = (panel, answer, look) => {
  const { facts, arrays: { thumbnails: { data: bytes } } } = answer;
  const room = roomOf(panel);
  const scale = look.option("scale", "sqrt"), sort = look.option("sort", "layer");
  const codes = scale === "sqrt" ? null : recoded(scale);
  const sortable = Object.keys(facts.names).filter((name) => facts.statistics.some((each) => each[name] !== null));
  const meaning = facts.names[sort]?.[1] ?? sort;
  const statistic = new Map(facts.statistics.map((each) => [`${each.site} ${each.head}`, each]));
  const valueOf = (site, head) => (sort === "layer" ? null : statistic.get(`${site.site} ${head}`)?.[sort] ?? null); // of the statistic that sorts
  panel.append(row(
    select(look, { name: "sort", label: "Sort by", options: ["layer", ...sortable].map((name) => [name, facts.names[name]?.[0] ?? name]), fallback: "layer" }),
    scales(look),
    toggle(look, { name: "several", label: "Choose several" }), legend({ range: [0, facts.top], scale })));
  const several = isOn(look, "several");
  const chosen = look.option("chosen", "").split(",").filter(Boolean).slice(0, MOST);
  const choose = (id) => {
    const next = chosen.includes(id) ? chosen.filter((each) => each !== id) : [...chosen, id].slice(-MOST);
    look.select({ several: 1, chosen: next.join(",") || null });
  };
  if (several) panel.append(together(facts, bytes, chosen, look, scale, room));

  const most = Math.max(...facts.sites.map((site) => site.heads));
  const size = clamp(Math.floor((room - (sort === "layer" && room > 600 ? 136 : 0)) / Math.min(most, room > 600 ? 12 : 4)) - 18, 44, 128);
  const thumb = (site, head, caption) => {
    const cells = site.rows * site.columns, start = site.start + head * cells;
    let data = bytes.subarray(start, start + cells);
    if (codes) data = data.map((code) => codes[code]);
    const id = `${site.site}.${head}`;
    const current = several ? chosen.includes(id) : look.selection.site === site.site && look.selection.head === head;
    const value = valueOf(site, head);
    const title = headName(site, head) + (value === null ? "" : `, ${meaning} ${number(value)}`);
    return knob([picture(data, [site.rows, site.columns], {}, size), h("span", {}, caption)], (event) => (several || event.shiftKey ? choose(id) : look.select({ view: "map", site: site.site, head })),
      { class: "thumb", "aria-pressed": String(current), "aria-label": title, title, focus: `thumb-${site.site}-${head}` });
  };

  const thumbs = (inside) => h("div", { class: "thumbs" }, inside);
  const started = performance.now();
  if (sort === "layer") {
    for (const site of facts.sites) {
      const all = times(site.heads, (head) => thumb(site, head, String(head)));
      const per = site.heads / site.groups;
      const bracket = (group) => h("div", { class: "group", role: "group", "aria-label": `Heads that share keys and values ${group}` },
        thumbs(all.slice(group * per, (group + 1) * per)), h("span", { class: "bracket" }, `keys and values ${group}`));
      panel.append(h("div", { class: "layer" }, h("h3", {}, site.label), thumbs(site.groups < site.heads ? times(site.groups, bracket) : all)));
    }
  } else {
    const all = facts.sites.flatMap((site) => times(site.heads, (head) => ({ site, head, value: valueOf(site, head) })));
    const rank = ({ value }) => (value === null ? Infinity : sort === "entropy" ? value : -value);
    all.sort((a, b) => rank(a) - rank(b));
    const { element, keeps } = brush(look, { name: "brush", values: all.map(({ value }) => value).filter((value) => value !== null), format: number, label: `Heads by ${meaning}`, width: Math.min(room, 480) });
    const kept = all.filter(({ value }) => keeps(value));
    panel.append(element, note(`${kept.length} of ${all.length} heads, sorted by ${meaning}; the number is below each map. ${look.notes.brush}`),
      thumbs(kept.map(({ site, head, value }) => thumb(site, head, `${site.label.replace(/layer /i, "L")}.${head} · ${value === null ? "none" : number(value)}`))));
  }
  performance.measure("look:thumbnails", { start: started, end: performance.now() });

  const heads = sum(facts.sites.map((site) => site.heads));
  const lowest = facts.statistics.reduce((best, each) => (each.entropy !== null && (best === null || each.entropy < best.entropy) ? each : best), null);
  return {
    scale,
    summary: lowest ? `${heads} heads in ${facts.sites.length} layers; the most focused is ${headName(lowest, lowest.head)}, with ${number(lowest.entropy)} bits of entropy.` : `${heads} heads.`,
    columns: ["layer", "head", ...sortable],
    rows: facts.statistics.map((each) => [each.label, each.head, ...sortable.map((name) => each[name] ?? "none")]),
  };
};
