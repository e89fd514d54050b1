// The residual stream and one block of it: norms by layer, a diagram with live shapes, parameters and FLOPs.

import { h, svg } from "look/element";
import { bars } from "look/bars";
import { chart, wholeTicks } from "look/chart";
import { buttons, row, scroll, select, toggle } from "look/controls";
import { count, number, percent, quoted, whole } from "look/format";
import { heatmap, legend, rangeOf } from "look/heatmap";
import { placeIn, rowOf, sum, times } from "look/lists";
import { beside, note, roomOf, small, soft, table, titled } from "look/parts";

const ROLES = ["stream", "mixer", "cross", "feed"];
const COLOURS = { stream: "var(--ink)", mixer: "var(--query)", cross: "var(--head)", feed: "var(--value)" };
const UNITS = [["P", 1e15], ["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]];

const short = (value) => {
  const unit = UNITS.find(([, size]) => value >= size);
  return unit ? `${number(value / unit[1])} ${unit[0]}` : number(value);
};
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const shape = (sizes) => (sizes.length ? sizes.join(" × ") : "–");

/** What the lines are called: a mixer that is no attention by its own name. */
const namesOf = (facts, stack) => {
  const mixers = new Set(facts.groups.filter((group) => group.block && group.stack === stack.name).map((group) => group.block.branches[0].name));
  const [only = "Attention"] = mixers;
  return { stream: "stream", mixer: mixers.size > 1 ? "mixer" : only === "Attention" ? "attention" : only, cross: "cross-attention", feed: "feed-forward" };
};

export const draw = (panel, { facts, arrays }, look) => {
  const { stacks } = facts;
  const width = roomOf(panel, 720);
  const newest = stacks.length - 1;
  const at = placeIn(look.option("stack", newest), stacks.length);
  const stack = stacks[at];
  const names = namesOf(facts, stack);
  const groups = facts.groups.filter((group) => group.block);
  const first = groups.findIndex((group) => group.stack === stack.name);
  const chosen = placeIn(look.option("group", first), groups.length);
  panel.append(row(
    newest > 0 && select(look, { name: "stack", label: "Stack", fallback: newest, options: stacks.map((each, i) => [i, each.name || "model"]) }),
    buttons(look, { name: "token", label: "Norms of", fallback: "mean", options: [["mean", "mean token"], ["one", "selected token"]] })));
  const lines = norms(arrays, at, look, stack);
  panel.append(normChart(lines, names, width), shareChart(stack, names, width));
  if (groups.length) drawBlock(panel, facts, groups, chosen, look);
  panel.append(row(facts.derivative ? toggle(look, { name: "derivative", label: "Which tokens a branch mixes" }) : null,
    facts.recurrent ? toggle(look, { name: "gates", label: "Gates over time" }) : null));
  if (arrays.mixer_derivative) drawDerivatives(panel, arrays, look, width);
  if (facts.gates) drawGates(panel, facts, arrays, look, width);
  const { parameters: { feed }, flops } = facts.shares;
  return {
    summary: `${lines.who} the stream goes from ${number(lines.stream[0])} to ${number(lines.stream.at(-1))} over ${count(stack.layers, "layer")}. `
      + (feed ? `Feed-forward networks hold ${percent(feed, 2)} of the blocks' parameters and take ${percent(flops.feed, 2)} of their FLOPs. ` : "")
      + `The model has ${short(facts.parameters)} parameters; this pass took ${short(facts.flops)} FLOPs.`,
    ...values(stack, lines, names),
  };
};

/** Lengths by layer: of the mean token, or of the selected query where its site has the stack's tokens. */
const norms = (arrays, at, look, stack) => {
  const tokens = look.tokens(stack.axis);
  const one = look.option("token", "mean") === "one" && look.site?.queries === stack.axis ? Math.min(look.selection.query, tokens.length - 1) : null;
  const found = { who: one === null ? "For the mean token" : `For ${quoted(tokens[one].text)}` };
  for (const name of ROLES) {
    const array = arrays[`${name}${at}`];
    if (!array) continue;
    found[name] = times(array.shape[0], (l) => {
      const lengths = rowOf(array, l);
      if (one !== null) return lengths[one];
      const there = lengths.filter(Number.isFinite); // a pyramid has fewer tokens higher up
      return sum(there) / there.length;
    });
  }
  return found;
};

const normChart = (lines, names, width) => chart({
  // What a block adds is drawn at the layer that adds it; the stream begins before the first.
  series: ROLES.filter((name) => lines[name]).map((name) => ({ name: names[name], colour: COLOURS[name], values: lines[name],
    x: lines[name].map((_, i) => (name === "stream" ? i : i + 1)) })),
  x: { label: "layers so far (0: embedding)", ticks: wholeTicks(0, lines.stream.length - 1) },
  y: { label: "length of the vector", range: [0, Math.max(1e-9, ...ROLES.flatMap((name) => lines[name] ?? []))] },
  width, height: 240, label: "Length of the stream and of what each branch adds, by layer",
});

const shareChart = (stack, names, width) => titled("Share of what a layer adds", chart({
  series: Object.entries(stack.shares).map(([name, values]) => ({ name: names[name], colour: COLOURS[name], values, x: values.map((_, i) => i) })),
  x: { label: "layer", ticks: wholeTicks(0, stack.layers - 1) }, y: { range: [0, 1], format: (value) => percent(value, 2) }, width, height: 160,
  label: "Share of each branch in what a layer adds, by layer",
}));

const values = (stack, lines, names) => {
  const added = ROLES.slice(1).filter((name) => lines[name]);
  const both = (of) => [lines, stack.shares].flatMap((from, k) => added.map((name) => of(from[name], name, k)));
  return {
    columns: ["layer", "stream after", ...both((_, name, k) => `${names[name]} ${k ? "share" : "adds"}`)],
    rows: lines.stream.map((value, i) => [i ? `layer ${i - 1}` : "embedding", value, ...both((list) => list?.[i - 1] ?? "")]),
  };
};

// ---- one block ----

const groupName = ({ stack, first, last }) => `${stack && `${stack} `}${first === last ? "layer" : `layers ${first} to`} ${last}`;
const partName = (facts, part) => `${facts.roles[part.role]} (${part.name})`;

const drawBlock = (panel, facts, groups, chosen, look) => {
  const group = groups[chosen];
  const part = group.parts.find((each) => each.role === look.option("part", "")) ?? group.parts[0];
  const pick = (role) => look.select({ part: role === group.parts[0].role ? null : role });
  const equal = group.last - group.first + 1;
  const byPart = (title, of, label) => titled(title, bars({ label, items: group.parts.map((each) => ({
    name: facts.roles[each.role], value: each[of], label: short(each[of]), on: each === part, colour: COLOURS[each.role], onclick: () => pick(each.role) })) }));
  panel.append(h("h3", {}, "One block"),
    row(groups.length > 1 ? select(look, { name: "group", label: "Layers", fallback: 0, options: groups.map((each, i) => [i, groupName(each)]) }) : h("span", {}, capital(groupName(group))),
      h("span", { class: "soft small" }, `${group.block.place}-norm, ${group.block.order}${equal > 1 ? ` · ${equal} equal layers` : ""}`)),
    beside(diagram(group.block, part, equal, pick),
      h("div", { class: "aside" },
        byPart("Parameters of a layer", "parameters", "Parameters of the parts of a layer"),
        byPart("FLOPs of a layer in this pass", "flops", "FLOPs of the parts of a layer"),
        h("div", { class: "part", "aria-live": "polite" }, h("h3", {}, partName(facts, part)),
          small(`${count(part.parameters, "parameter")} · ${short(part.flops)} FLOPs`),
          small(`in ${shape(part.entered)} → out ${shape(part.left)}`)))),
    everyPart(facts));
};

const everyPart = (facts) => {
  const line = (name, { parameters, flops }, output) => [name, whole(parameters), short(flops), output];
  return table("All parts of the model", ["part", "parameters", "FLOPs", "output"], [
    ...facts.groups.map((group) => line(group.block ? capital(groupName(group)) : partName(facts, group.parts[0]), group, shape(group.parts.at(-1).left))),
    line("total", facts, "")], { numbers: [1, 2] });
};

/** The block from bottom to top as papers draw it: the stream on the left, branches on the right, a sum where they meet. */
const diagram = (block, part, equal, pick) => {
  const [box, gap, left, middle] = [30, 14, 24, 190];
  const steps = block.branches.map(({ role, name, before, inside, scaled, after }) => ( // from the input upwards
    { boxes: [before && ["norms", before], [role, name], inside && ["norms", inside], scaled && ["norms", "scale"]].filter(Boolean), after }));
  const parallel = block.order === "parallel";
  const tall = parallel ? Math.max(...steps.map((step) => step.boxes.length)) * (box + gap) + 100
    : 48 + sum(steps.map(({ boxes, after }) => (boxes.length + (after ? 1 : 0)) * (box + gap) + 40));
  const wide = parallel ? left + 24 + steps.length * 148 : 320;
  const root = svg("svg", { class: "chart", viewBox: `0 0 ${wide} ${tall}`, width: wide, height: tall, role: "img", "aria-label": sentence(block, equal) });
  const line = (d) => root.append(svg("path", { d, fill: "none", stroke: "var(--line)", "stroke-width": 1.5 }));
  const word = (x, y, text, anchor = "middle") => svg("text", { x, y, "text-anchor": anchor, style: { fill: "var(--ink)" } }, text);
  const plate = (x, y, role, name, w = 132) => {
    const on = role === part.role;
    root.append(svg("g", { style: { cursor: "pointer" }, onclick: () => pick(role) },
      svg("rect", { x: x - w / 2, y: y - box, width: w, height: box, rx: 4, fill: on ? "var(--wash)" : "var(--panel)", stroke: COLOURS[role] ?? "var(--line)",
        "stroke-width": on ? 3 : 1.5, "stroke-dasharray": role === "norms" ? "3 2" : "" }),
      word(x, y - box / 2 + 4, name)));
  };
  const branch = (x, from, top, boxes) => {
    line(`M${left} ${from}H${x}V${top}H${left}`);
    boxes.forEach(([role, name], i) => plate(x, from - i * (box + gap) - gap / 2, role, name));
  };
  const plus = (y) => root.append(svg("circle", { cx: left, cy: y, r: 9, fill: "var(--panel)", stroke: "var(--ink)" }), word(left, y + 4, "+"));
  let y = tall - 20;
  root.append(svg("text", { x: left + 12, y: tall - 4 }, `x: ${shape(block.shape)}`));
  if (parallel) {
    line(`M${left} ${y}V8`);
    steps.forEach(({ boxes }, i) => branch(left + 98 + i * 148, y - 12, 48, boxes));
    plus(48);
  } else {
    for (const { boxes, after } of steps) {
      const top = y - 20 - boxes.length * (box + gap);
      line(`M${left} ${y}V${top - 20}`);
      branch(middle, y - 12, top, boxes);
      if (block.residual) plus(top);
      y = top - 20;
      if (after) { plate(72, y, "norms", after, 96); line(`M${left} ${y - box}V${y - box - gap}`); y -= box + gap; }
    }
    line(`M${left} ${y}V8`);
  }
  root.append(svg("text", { x: left + 12, y: 16 }, shape(block.shape)));
  if (equal > 1) root.append(word(wide - 8, 16, `× ${equal}`, "end"));
  return scroll("Diagram of the block", root);
};

const sentence = (block, equal) => {
  const one = ({ before, name, inside, after }) => [before, name, inside].filter(Boolean).join(", then ") + ", added to the stream" + (after ? `, then ${after}` : "");
  return `${block.place}-norm block${equal > 1 ? `, ${equal} times` : ""}: ${block.branches.map(one).join(block.order === "parallel" ? "; beside it " : "; then ")}`;
};

// ---- on demand ----

const textsOf = (look) => look.tokens(look.site?.queries).map((token) => token.text);

const drawDerivatives = (panel, arrays, look, width) => {
  const axis = textsOf(look), labels = { labels: axis };
  const name = (i) => quoted(axis[i] ?? String(i));
  const room = width > 640 ? width / 2 - 12 : width;
  const one = (branch, title, words) => {
    const array = arrays[`${branch}_derivative`];
    if (!array) return null;
    const style = { range: [0, rangeOf(array.data)[1]], scale: "sqrt" };
    const label = `${look.site?.label}: ${title}`;
    return h("div", { style: { flex: `1 1 ${Math.min(280, room)}px`, maxWidth: "100%" } }, h("h3", {}, label), heatmap({ ...array, ...style, rows: labels, columns: labels,
      width: room, most: 24, label, focus: branch, selected: [look.selection.query, look.selection.key], onSelect: (query, key) => look.select({ query, key }),
      describe: (i, j, value) => `output ${name(i)}, input ${name(j)}: ${number(value)}` }),
      legend(style), note(words));
  };
  panel.append(beside(
    one("mixer", "mixer", look.notes.mixer),
    one("feed", "feed-forward", alone(arrays.feed_derivative) ? look.notes.alone : look.notes.together)));
};

const alone = (array) => !array || array.data.every((value, i) => value === 0 || Math.floor(i / array.shape[1]) === i % array.shape[1]);

const drawGates = (panel, facts, arrays, look, width) => {
  if (!facts.gates.length) { panel.append(soft(look.notes.gateless)); return; }
  const axis = textsOf(look);
  facts.gates.forEach((name, i) => {
    const { data, shape: [length, units] } = arrays[`gate${i}`];
    const turned = new Float32Array(data.length);
    for (let t = 0; t < length; t++) for (let u = 0; u < units; u++) turned[u * length + t] = data[t * units + u];
    const [low, high] = rangeOf(data), far = Math.max(-low, high);
    const style = low < 0 ? { range: [-far, far], sides: "two" } : { range: [0, 1] };
    panel.append(titled(`${capital(name)} by token`, heatmap({ data: turned, shape: [units, length], columns: { labels: axis }, ...style, width, most: 24, label: `${name}, units by tokens`, focus: `gate-${i}`,
      describe: (u, t, value) => `unit ${u}, ${quoted(axis[t] ?? String(t))}: ${number(value)}` }), legend(style)));
  });
};
