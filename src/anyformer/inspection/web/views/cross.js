// Cross-attention: target by source, for one head or the mean of heads; a target under the pointer or the focus lights its
// sources, and the alignment lists each target's strongest source.

import { h, replace } from "look/element";
import { buttons, isOn, knob, row, select, slider } from "look/controls";
import { cut, number, percent, quoted, visible } from "look/format";
import { byTokens, heatmap, legend } from "look/heatmap";
import { tokens } from "look/tokens";
import { clamp, rowOf, times } from "look/lists";
import { note, roomOf, table, titled } from "look/parts";

export const draw = (panel, answer, look) => {
  const { facts, arrays } = answer;
  const [T, S] = arrays.weights.shape;
  const weight = (t, s) => arrays.weights.data[t * S + s];
  const here = look.selection.site === facts.site;
  const at = here ? clamp(look.selection.query - facts.start, 0, T - 1) : 0;
  const key = here ? Math.min(S - 1, look.selection.key) : arrays.best.data[at];
  const pick = (t, s) => look.select({ site: facts.site, query: facts.start + t, key: s });
  const scale = look.option("scale", "sqrt");
  const sources = facts.sources.map((token) => token.text), targets = facts.targets.map((token) => token.text);
  // A step of the decoder reads one token and writes the next: what it looks at serves the written one.
  const after = (t) => (facts.after ? `, written after ${quoted(facts.after[t])}` : "");
  const said = (t, s) => `target ${quoted(targets[t])}${after(t)}, source ${quoted(sources[s])}: ${number(weight(t, s))}`;

  // Whatever is chosen here is about this site, also where the page came from another one.
  const bound = { option: look.option, select: (changes) => look.select({ site: facts.site, ...changes }) };
  const choice = (label, name, options) => h("label", { class: "control" }, label, h("select", { data: { focus: `cross-${name}` }, onchange: (event) => bound.select({ [name]: Number(event.target.value) }) },
    options.map(([value, text]) => h("option", { value, selected: value === facts[name] }, text))));
  panel.append(row(
    choice("Layer", "site", facts.sites.map((site) => [site.index, site.label])),
    facts.heads > 1 && buttons(bound, { name: "heads", label: "Heads", fallback: "mean", options: [["mean", "Mean of heads"], ["one", "One head"]] }),
    facts.heads > 1 && !facts.mean && choice("Head", "head", times(facts.heads, (i) => [i, `head ${i}`])),
    facts.has_beams && look.live ? beamChoice(bound, facts) : null,
    facts.count > facts.window ? slider(bound, { name: "start", label: "From target token", min: 0, max: facts.count - 1, step: 64, fallback: 0 }) : null));

  // What the target chosen, or the one under the pointer or the focus, looked at.
  const lit = h("div", {});
  const light = (t) => replace(lit, titled(facts.after ? `Source, as it was read to write ${quoted(targets[t])}` : `Source, as ${quoted(targets[t])} saw it`,
    tokens({ tokens: facts.sources, values: rowOf(arrays.weights, t), range: [0, 1], scale, numbers: S <= 64, selected: t === at ? key : null, onSelect: (s) => pick(t, s), label: "Source tokens", focus: "cross-source" })));
  const chips = tokens({ tokens: facts.targets, selected: at, onSelect: (t) => pick(t, arrays.best.data[t]), label: "Target tokens", focus: "cross-target" });
  const index = (event) => [...chips.children].indexOf(event.target.closest("button"));
  for (const kind of ["mouseover", "focusin"]) chips.addEventListener(kind, (event) => { const t = index(event); if (t >= 0) light(t); });
  for (const kind of ["mouseleave", "focusout"]) chips.addEventListener(kind, () => light(at));
  light(at);
  panel.append(titled(facts.after ? "Target, as written" : "Target", chips), lit);

  const range = [0, Math.max(...arrays.weights.data, 1e-12)];
  panel.append(h("div", {}, heatmap({ data: arrays.weights.data, shape: [T, S], ...byTokens(targets, sources),
    range, scale, selected: [at, key], onSelect: pick, describe: said, numbers: isOn(look, "numbers"), width: roomOf(panel), label: "Target by source" }),
  h("p", { class: "below" }, legend({ range, scale }))));

  panel.append(titled("Alignment", note(look.notes[facts.after ? "written" : "read"]),
    table("Alignment", ["Target", facts.after && "After", "Source", "Weight", facts.heads > 1 && "Heads that agree"], targets.map((text, t) => {
      const s = arrays.best.data[t];
      return [knob(visible(text), () => pick(t, s), { class: "plain mono", "aria-pressed": String(t === at && s === key), focus: `align-${t}` }),
        facts.after && h("span", { class: "mono soft" }, visible(facts.after[t])), h("span", { class: "mono" }, visible(sources[s])), number(weight(t, s)), facts.heads > 1 && `${agreeing(arrays.by_head, t, s)} of ${facts.heads}`];
    }), { numbers: facts.after ? [3, 4] : [2, 3], tall: "320px" })));

  const which = facts.heads === 1 ? facts.mixer : facts.mean ? `the mean of ${facts.heads} heads` : `head ${facts.head}`;
  return {
    summary: `In ${which}, ${facts.after ? `to write ${quoted(targets[at])} the decoder` : quoted(targets[at])} looked most at ${quoted(sources[arrays.best.data[at]])} (${percent(weight(at, arrays.best.data[at]))}). Rows sum to ${number(facts.sums[0], 6)} at least and ${number(facts.sums[1], 6)} at most.`,
    columns: ["target position", "target", "source position", "source", "weight", ...(facts.after ? ["written after"] : [])],
    rows: targets.flatMap((text, t) => sources.map((source, s) => [facts.start + t, text, s, source, weight(t, s), ...(facts.after ? [facts.after[t]] : [])])),
  };
};

/** The target as it is, or one of the texts that beam search finds. */
const beamChoice = (look, facts) => {
  const names = facts.beams?.map((beam, i) => `${i + 1}: ${cut(beam.text, 32)} (${number(beam.score)})`) ?? ["1", "2", "3", "4"];
  return select(look, { name: "beam", label: "Beam", fallback: "0", options: [["0", "none: the target shown above"], ...names.map((name, i) => [String(i + 1), name])] });
};

const agreeing = ({ data, shape: [H, T] }, t, s) => times(H, (head) => data[head * T + t]).filter((best) => best === s).length;
