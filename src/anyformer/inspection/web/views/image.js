// Where a token looks in an image: the picture under the map of one head, every head beside it, and the tokens that are no patches.

import { h, replace } from "look/element";
import { legend, picture as drawn } from "look/heatmap";
import { coloured, patches, pictureControls, pictureOptions, place } from "look/patches";
import { tokens } from "look/tokens";
import { buttons, knob, row, slider } from "look/controls";
import { number, percent, quoted, visible } from "look/format";
import { best, placeIn, rowOf, sum, times } from "look/lists";
import { beside, note, roomOf, small, titled } from "look/parts";

const meanOf = (data, heads, length) => Float32Array.from({ length }, (_, i) => sum(times(heads, (head) => data[head * length + i])) / heads);

/** The map of every head, or of every visual token, in the colours of one range. */
const thumbnails = (title, data, grid, count, look, { current, onSelect, said, size = 72 }) => {
  const style = { range: coloured(look, data), scale: look.option("scale", "sqrt") };
  return titled(title, h("div", { class: "thumbs" }, times(count, (i) => {
    const own = rowOf({ data, shape: [count, grid[0] * grid[1]] }, i), name = said(i, own);
    return knob([drawn(own, grid, style, size), h("span", {}, String(i))], () => onSelect(i),
      { class: "thumb", "aria-pressed": String(i === current), "aria-label": name, title: name, focus: `thumb-${i}` });
  })), small(legend(style)));
};
const side = (field, readout, style, ...others) => beside(h("div", {}, field, readout, small(legend(style))), h("div", { class: "more" }, ...others));

export const draw = async (panel, answer, look) => {
  const { arrays: { picture } } = await look.ask("image", { part: "picture" });
  return (answer.facts.kind === "attention" ? drawAttention : drawPlaces)(panel, answer, look, picture);
};

const drawAttention = (panel, { facts, arrays }, look, picture) => {
  const { grid, first, others, heads, token } = facts;
  const length = grid[0] * grid[1];
  const queries = look.tokens(facts.queries), keys = look.tokens(facts.keys);
  const head = Math.min(look.selection.head, heads - 1);
  const isMean = heads > 1 && look.option("over", "head") === "mean";
  const scale = look.option("scale", "sqrt");
  const chosen = (all, n) => (isMean ? meanOf(all, heads, n) : all.slice(head * n, (head + 1) * n));
  const data = chosen(arrays.maps.data, length), apart = chosen(arrays.others.data, others.length);
  const range = coloured(look, data);
  const from = quoted(queries[token]?.text ?? String(token));
  const which = isMean ? "mean of heads" : `head ${head}`;
  const selfLook = facts.patches_look;
  const patchOf = (i) => (i >= first && i < first + length ? i - first : null);
  const framed = selfLook ? patchOf(token) : null;
  const spot = (i) => place(i, grid[1]);
  let field = null;

  panel.append(row(
    heads > 1 ? buttons(look, { name: "over", label: "Of", options: [["head", "This head"], ["mean", "Mean of heads"]], fallback: "head" }) : null,
    ...pictureControls(look, (value) => field?.fade(value))));
  if (facts.site !== look.selection.site) panel.append(note(`The chosen layer does not look at patches: this is ${facts.label}.`));
  if (!selfLook) panel.append(h("h3", {}, "Token that looks"), tokens({ tokens: queries, selected: token, onSelect: (i) => look.select({ query: i }), label: "Tokens that look", focus: "asking" }));

  const readout = h("p", { class: "readout" });
  const tell = (i) => {
    const asking = h("b", { class: "query" }, from);
    replace(readout, i === null ? ["From ", asking, `, ${which} of ${facts.label}: ${percent(sum(data))} of the weight lies on patches.`]
      : ["Patch ", h("b", { class: "key" }, spot(i)), ` has ${number(data[i])} from `, asking, rows && selfLook ? "; shown: where this patch looks itself." : "."]);
  };
  let rows = null; // every row of this head, for moving over the patches
  const hover = (i) => {
    tell(i);
    if (!rows || !selfLook) return;
    if (i === null) field.show(data, framed, range);
    else field.show(Float32Array.from(rowOf({ data: rows.data, shape: [0, length] }, first + i)), i, [0, 255]);
  };
  const room = roomOf(panel);
  field = patches({
    picture, data, grid, range, scale, ...pictureOptions(look), selected: selfLook ? framed : patchOf(look.selection.key), width: room,
    onSelect: (i) => look.select(selfLook ? { query: first + i } : { key: first + i }), onHover: hover,
    describe: (i, value) => (selfLook && i === framed ? `patch ${spot(i)} looks; it gives itself ${number(value)}` : `patch ${spot(i)}: weight ${number(value)} from ${from}`),
    label: `Image with the weights of ${from}, ${which} of ${facts.label}`,
  });
  if (!isMean && selfLook && facts.has_rows) look.ask("image", { part: "rows", site: facts.site, head }).then((more) => { rows = more.arrays.rows; }, () => { /* not in this page: a click still shows one */ });
  tell(null);

  const every = thumbnails(heads > 1 ? `Every head of ${facts.label}, from ${from}` : facts.label, arrays.maps.data, grid, heads, look, {
    size: room < 480 ? 56 : 72, current: isMean ? null : head, onSelect: (i) => look.select({ head: i, over: null }),
    said: (i, own) => `Head ${i}: ${percent(sum(own))} on patches, most on ${spot(best(own))} (${number(Math.max(...own))})`,
  });
  panel.append(side(field, readout, { range, scale }, every, others.length ? titled("Tokens that are no patches", tokens({ tokens: others.map((i) => keys[i]), values: Array.from(apart),
    range: [range[0], Math.max(...apart, range[1])], scale, numbers: true, selected: selfLook ? others.indexOf(token) : null,
    onSelect: selfLook ? (i) => look.select({ query: others[i] }) : null, label: "Weights of tokens that are no patches", focus: "others" })) : null));

  const most = best(data);
  const special = others.length ? `, ${percent(sum(apart))} on other tokens` : "";
  return {
    summary: `${facts.label}, ${which}: ${from} gives ${percent(sum(data))} of its weight to patches${special}; most to patch ${spot(most)} (${number(data[most])}).`,
    columns: ["token", "number", ...times(heads, (i) => `head ${i}`), "mean"],
    rows: keys.map((key, i) => {
      const patch = i - first, other = others.indexOf(i);
      const own = times(heads, (k) => (other < 0 ? arrays.maps.data[k * length + patch] : arrays.others.data[k * others.length + other]));
      return [visible(key.text), i, ...own, sum(own) / heads];
    }),
  };
};

/** Places of convolutional maps: what a visual token is drawn from, or where one place looks. */
const drawPlaces = (panel, { facts, arrays }, look, picture) => {
  const { grid, heads } = facts;
  const looking = facts.kind === "places"; // one place looks at all, else tokens are drawn from places
  const length = grid[0] * grid[1];
  const spot = (i) => place(i, grid[1]);
  const chosen = looking ? 0 : placeIn(look.option("token", 0), heads);
  const cell = looking ? facts.cell : placeIn(look.option("cell", 0), length);
  const scale = look.option("scale", "sqrt");
  const data = arrays.maps.data.slice(chosen * length, (chosen + 1) * length);
  const range = coloured(look, data);
  const name = looking ? `place ${spot(cell)}` : `visual token ${chosen}`;
  let field = null;
  panel.append(row(
    looking ? null : slider(look, { name: "round", label: "Round", min: 1, max: facts.rounds, fallback: facts.rounds, format: String }),
    ...pictureControls(look, (value) => field?.fade(value))));
  field = patches({ picture, data, grid, range, ...pictureOptions(look), width: roomOf(panel), selected: cell, onSelect: (i) => look.select({ cell: i || null }),
    describe: (i, value) => `place ${spot(i)}: ${number(value)} of ${name}`, label: `Image with the weights of ${name}` });
  panel.append(side(field, null, { range, scale }, looking ? null : thumbnails(`Every visual token of round ${facts.round}`, arrays.maps.data, grid, heads, look, {
    current: chosen, onSelect: (i) => look.select({ token: i || null }), said: (i, own) => `Visual token ${i}: most from ${spot(best(own))} (${number(Math.max(...own))})` })));
  const most = best(data);
  const names = looking ? [`weight of ${name}`] : times(heads, (i) => `token ${i}`);
  return {
    summary: looking ? `${name[0].toUpperCase()}${name.slice(1)} looks most at ${spot(most)} (${number(data[most])}).` : `Round ${facts.round}: ${name} is drawn most from place ${spot(most)} (${number(data[most])}).`,
    columns: ["place", ...names],
    rows: times(length, (i) => [spot(i), ...names.map((_, k) => arrays.maps.data[k * length + i])]),
  };
};
