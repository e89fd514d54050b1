// Attention through the layers, and gradient times attention beside it: over the image, or as bars for texts and tables.

import { h } from "look/element";
import { bars } from "look/bars";
import { legend } from "look/heatmap";
import { coloured, patches, pictureControls, pictureOptions, place } from "look/patches";
import { tokens } from "look/tokens";
import { buttons, row, select, slider } from "look/controls";
import { count, number, percent, quoted, visible } from "look/format";
import { best } from "look/lists";
import { beside, note, part, small, soft } from "look/parts";

const SIDES = { "": "the model", cross: "output to input", encoder: "encoder", decoder: "decoder", first: "first stream", second: "second stream" };
const MOST_BARS = 40;

export const draw = async (panel, answer, look) => {
  const { facts, arrays } = answer;
  const picture = facts.picture && facts.grid ? (await look.ask("image", { part: "picture" })).arrays.picture : null;
  const keys = facts.keys.flatMap((axis) => look.tokens(axis)), queries = look.tokens(facts.queries);
  const rolled = arrays.rollout.data, raised = arrays.relevance?.data ?? null;
  const ofToken = facts.target === "token";
  const name = ofToken ? quoted(queries[facts.token]?.text ?? String(facts.token)) : "the mean of all tokens";
  const chosen = facts.answers?.find((each) => each.id === facts.answer);
  const answered = chosen ? quoted(chosen.name) : "the answer";
  const depth = count(facts.depth, "layer");
  const fields = [];
  const trace = (i) => look.select({ [facts.own_token ? "trace" : "query"]: i, towards: facts.default_target === "token" ? null : "token" });

  panel.append(row(
    facts.stacks.length > 1 ? select(look, { name: "side", label: "Stack", options: facts.stacks.map((side) => [side, SIDES[side] ?? side]), fallback: facts.stacks[0] }) : null,
    slider(look, { name: "depth", label: "Layers", min: 0, max: facts.most, fallback: facts.most, format: (value) => `${value} of ${facts.most}` }),
    buttons(look, { name: "fuse", label: "Heads", options: [["mean", "Mean"], ["max", "Max"], ["min", "Min"]], fallback: "mean" }),
    slider(look, { name: "residual", label: "Residual", min: 0, max: 1, step: 0.05, fallback: 0.5, format: (value) => number(value, 2) }),
    slider(look, { name: "discard", label: "Discard weakest", min: 0, max: 0.95, step: 0.05, fallback: 0, format: (value) => percent(value, 2) }),
    buttons(look, { name: "towards", label: "Trace", options: [["token", "One token"], ["mean", "Mean of tokens"]], fallback: facts.default_target }),
    raised && facts.answers.length > 1 ? select(look, { name: "raised", label: "Answer", options: facts.answers.map((each) => [each.id, `${visible(each.name)}${each.probability === null ? "" : ` ${percent(each.probability)}`}`]), fallback: facts.answers[0].id }) : null));
  if (picture) panel.append(row(...pictureControls(look, (value) => fields.forEach((field) => field.fade(value)))));
  const residual = Number(look.option("residual", 0.5));
  panel.append(note(`Each layer counts as ${number(1 - residual, 2)} × attention + ${number(residual, 2)} × the token itself, rows divided by their sum. `,
    look.notes[residual === 0 ? "alone" : "passed"]));

  const side = (title, words, values, text) => part(title, note(words), show(values, text, title));
  const own = facts.queries === facts.keys[0] ? queries.length : 0; // columns that are the traced tokens themselves
  const ownPatches = facts.grid !== null && facts.grid_axis === facts.queries;
  const show = (values, text, title) => {
    const range = [0, Math.max(...values, 1e-12)];
    if (!facts.grid) return asBars(values, keys, range, title);
    const [rows, columns] = facts.grid, { first } = facts, stop = first + rows * columns;
    const cells = values.slice(first, stop), bounds = coloured(look, cells);
    const { scale, ...style } = pictureOptions(look);
    const isPatch = (i) => i >= first && i < stop;
    const framed = ownPatches && ofToken && isPatch(facts.token) ? facts.token - first : null;
    const field = patches({ picture, data: cells, grid: facts.grid, range: bounds, scale, ...style, selected: framed, width: Math.min(panel.clientWidth || 448, 448),
      onSelect: ownPatches ? (i) => trace(first + i) : null,
      describe: (i, value) => `patch ${place(i, columns)}: ${text(value)}`, label: `Image with ${title.toLowerCase()} of ${name}`, focus: title === "Rollout" ? "rollout" : "relevance" });
    fields.push(field);
    const rest = keys.map((_, i) => i).filter((i) => !isPatch(i));
    return [field, small(legend({ range: bounds, scale })),
      rest.length ? tokens({ tokens: rest.map((i) => keys[i]), values: rest.map((i) => values[i]), range, scale, numbers: true, selected: own && ofToken ? rest.indexOf(facts.token) : null,
        onSelect: own ? (i) => { if (rest[i] < own) trace(rest[i]); } : null, label: `${title}: tokens that are no patches`, focus: `others-${title}` }) : null];
  };

  if (ofToken && !ownPatches) panel.append(h("h3", {}, "Token to trace"), tokens({ tokens: queries, selected: facts.token, onSelect: trace, label: "Token to trace", focus: "trace" }));
  const second = raised
    ? side("Gradient × attention", `Weights that raised ${answered}, through ${depth}.`, raised, (value) => `relevance ${number(value)}`)
    : part("Gradient × attention", soft(facts.why_no_relevance ?? ""));
  panel.append(beside(
    side("Rollout", `Shares of the input in ${name} after ${depth}; they sum to 1.`, rolled, (value) => `${percent(value)} of ${name}`), second));

  const top = best(rolled), topRaised = raised ? best(raised) : 0;
  return {
    summary: `After ${depth}, most of ${name} comes from ${quoted(keys[top].text)} (${percent(rolled[top])})`
      + (raised && raised[topRaised] > 0 ? `; ${answered} was raised most by ${quoted(keys[topRaised].text)}.` : "."),
    columns: ["token", "number", "rollout", ...(raised ? ["gradient × attention"] : [])],
    rows: keys.map((key, i) => [visible(key.text), i, rolled[i], ...(raised ? [raised[i]] : [])]),
  };
};

/** One bar a token; of a long text the strongest, in their order, and all tokens coloured above. */
const asBars = (values, keys, range, title) => {
  const every = keys.map((_, i) => i);
  const shown = keys.length <= MOST_BARS ? every : every.sort((a, b) => values[b] - values[a]).slice(0, MOST_BARS / 2).sort((a, b) => a - b);
  return [
    keys.length > MOST_BARS ? [tokens({ tokens: keys, values: Array.from(values), range, scale: "sqrt", label: `${title} of every token` }), note(`The ${shown.length} strongest:`)] : null,
    bars({ items: shown.map((i) => ({ name: visible(keys[i].text), value: values[i], label: number(values[i]) })), range, label: `${title} by token` }),
  ];
};
