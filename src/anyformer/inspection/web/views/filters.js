// The patch filters: principal components or filters as they are, beside those of an untrained network.

import { h } from "look/element";
import { chart, ticks } from "look/chart";
import { buttons, row, slider, toggle } from "look/controls";
import { count, number, percent } from "look/format";
import { pixels } from "look/patches";
import { best, clamp, placeIn, rowOf, sum, times } from "look/lists";
import { beside, roomOf } from "look/parts";

const strength = (data) => data.reduce((top, value) => Math.max(top, Math.abs(value)), 1e-12);

export const draw = (panel, { facts, arrays }, look) => {
  const raw = facts.show === "raw";
  const [channels, rows, across] = facts.shape, size = facts.pixels;
  const shown = arrays.filters.shape[0];
  const chosen = placeIn(look.option("filter", 0), shown);
  const together = look.option("strength", "own") === "all";
  const fresh = look.option("untrained", "1") === "1";
  const titles = raw ? facts.dimensions.map((at) => `filter ${at}`) : times(shown, (i) => `component ${i}`);
  panel.append(row(
    buttons(look, { name: "filters", label: "Show", options: [["components", "Components"], ["raw", "Filters"]], fallback: "components" }),
    slider(look, { name: "components", label: "How many", min: 1, max: 64, fallback: 28, format: String }),
    buttons(look, { name: "strength", label: "Colours", options: [["own", "Own scale"], ["all", "One scale"]], fallback: "own" }),
    toggle(look, { name: "untrained", label: "Untrained beside it", fallback: true })));

  const room = roomOf(panel), width = Math.min(room, 640);
  const each = clamp(Math.floor((fresh && room > 800 ? (room - 40) / 2 : room) / 7) - 17, 28, 56);
  const columns = clamp(Math.floor(room / (Math.max(each, 40) + 18)), 3, 7);
  const sheet = (array, title, note, pick) => {
    const top = together ? strength(array.data) : null;
    const tiles = times(array.shape[0], (i) => {
      const own = array.data.subarray(i * size, (i + 1) * size);
      const most = top ?? strength(own);
      // as colours: 0 is mid-grey, the strongest number full strength
      const canvas = pixels(rows, across, each, Math.round((each * rows) / across), (n, c) => Math.round(127.5 + (127.5 * own[(channels >= 3 ? c : 0) * rows * across + n]) / most));
      const said = `${pick ? "" : "untrained "}${titles[i]}${note ? `, ${percent(note[i])} of the variance` : ""}`;
      const inside = [canvas, h("span", {}, note ? percent(note[i], 2) : String(raw ? facts.dimensions[i] : i + 1))];
      return pick ? h("button", { type: "button", class: "thumb", "aria-pressed": String(i === chosen), "aria-label": said, title: said, data: { focus: `filter-${i}` }, onclick: () => look.select({ filter: i || null }) }, inside)
        : h("div", { class: "thumb", title: said }, inside);
    });
    return h("section", { "aria-label": title }, h("h3", {}, title), h("div", { class: "thumbs filters", style: { "--columns": columns } }, tiles));
  };
  const explained = raw ? null : arrays.explained.data, freshly = raw ? null : arrays.untrained_explained.data;
  panel.append(beside(sheet(arrays.filters, "This model", explained, true), fresh ? sheet(arrays.untrained, "Untrained", freshly, false) : null));

  if (raw) {
    return { summary: `The ${shown} largest of ${facts.width} filters; filter ${facts.dimensions[0]} has length ${number(facts.norms[0])}.`,
      columns: ["filter", "length"], rows: facts.dimensions.map((at, i) => [at, facts.norms[i]]) };
  }
  const [all, allFresh] = [explained, freshly].map((values) => percent(sum(values)));
  const upTo = (name, values) => ({ name, values: times(values.length, (i) => sum(values.slice(0, i + 1))) });
  panel.append(h("h3", {}, "Variance explained by the first components"), chart({
    series: [upTo("this model", explained), ...(fresh ? [upTo("untrained", freshly)] : [])],
    x: { label: "components", ticks: [[0, 1], [explained.length - 1, explained.length]] }, y: { range: [0, 1], format: (value) => percent(value, 2) }, width, height: 200, mark: chosen,
    label: `${count(explained.length, "component")} explain ${all} of the variance of this model's filters and ${allFresh} of an untrained one's`,
  }), h("h3", {}, `Component ${chosen} in every filter`), chart({
    series: [{ values: rowOf(arrays.coordinates, chosen) }], x: { label: "dimension of the embedding", ticks: ticks(0, facts.width - 1, 6).map((at) => [at, at]) }, width, height: 160,
    label: `How much of component ${chosen} is in each of ${facts.width} filters`,
  }));
  return {
    summary: `The first ${count(shown, "component")} explain ${all} of the variance of ${facts.width} filters; of an untrained network's, ${allFresh}.`,
    columns: ["component", "variance explained", "untrained", "filter with most of it"],
    rows: Array.from(explained, (value, i) => [i, value, freshly[i] ?? "", best(rowOf(arrays.coordinates, i).map(Math.abs))]),
  };
};
