// The generation trace: tokens shaded by their probability, a line of entropy, and the alternatives of one token under
// sampling settings that the page applies by itself.

import { announce, h, replace } from "look/element";
import { chart } from "look/chart";
import { button, buttons, row, slider } from "look/controls";
import { count, number, percent, quoted, visible, whole } from "look/format";
import { renormalise } from "look/sampling";
import { legend } from "look/heatmap";
import { tokens } from "look/tokens";
import { best, placeIn, rowOf, sum, times } from "look/lists";
import { note, roomOf, soft, table, titled } from "look/parts";

const PACE = 700; // milliseconds a token while playing
const LISTED = 10; // alternatives shown; the values table of the token has all
let timer = null; // of the playing, which goes on while the panel is drawn anew

const stop = () => {
  clearInterval(timer);
  timer = null;
};

export const draw = (panel, answer, look) => {
  const { facts, arrays } = answer;
  const list = facts.tokens;
  const all = { logprobs: arrays.logprobs.data, entropy: arrays.entropy.data, ranks: arrays.ranks.data, times: arrays.milliseconds.data };
  const probability = (i) => (facts.scored[i] ? Math.exp(all.logprobs[i]) : null);
  const steps = list.map((_, i) => i).filter((i) => facts.scored[i]);
  const first = steps.find((i) => i >= facts.first) ?? steps[0] ?? 0;
  const step = placeIn(look.option("step", first), list.length, first);
  const go = (to) => { stop(); look.select({ step: to }); };
  const had = (i) => `${percent(probability(i))}, rank ${whole(all.ranks[i])}`;
  const say = (i) => `${quoted(list[i].text)}${facts.scored[i] ? `, ${had(i)}` : ""}`;

  panel.append(playing(look, steps, step, go, say), chips(look, facts, step, go, probability));
  if (steps.length > 1) panel.append(entropyLine(panel, facts, all, step, go, look));
  panel.append(latency(panel, all, step));
  panel.append(facts.scored[step] ? alternatives(look, answer, step, percent(probability(step))) : soft(facts.unscored), note(trust(look, facts, all)));

  return {
    summary: facts.scored[step]
      ? `${quoted(list[step].text)} had ${had(step)} of ${whole(facts.vocabulary)}; entropy ${number(all.entropy[step])} nats. `
        + `${count(steps.length, "token")} together: log-probability ${number(facts.total)}, perplexity ${number(facts.perplexity)}.`
      : `${quoted(list[step].text)} has no probability: ${facts.unscored}`,
    columns: ["position", "token", "id", "origin", "probability", "log-probability", "rank", "entropy (nats)", "milliseconds"],
    rows: list.map((token, i) => [i, token.text, token.id, origin(facts, i), ...(facts.scored[i]
      ? [probability(i), all.logprobs[i], all.ranks[i], all.entropy[i]] : ["", "", "", ""]), Number.isFinite(all.times[i]) ? all.times[i] : ""]),
  };
};

const origin = (facts, i) => (facts.kind === "masked" ? "masked" : i < facts.first ? "read" : facts.branched && i === facts.given - 1 ? "branch" : "written");

const playing = (look, steps, step, go, say) => {
  const at = steps.indexOf(step);
  const after = (now) => steps.find((i) => i > now);
  const next = after(step), last = steps.findLast((i) => i < step);
  const tick = () => {
    const to = after(Number(look.option("step", steps[0])));
    if (look.selection.view !== "trace" || to === undefined) { stop(); return; }
    if (to === steps.at(-1)) stop(); // before the panel is drawn, which then offers to play again
    announce(say(to));
    look.select({ step: to });
  };
  const label = () => { replace(toggle, timer ? "Pause" : "Play"); toggle.setAttribute("aria-pressed", String(timer !== null)); };
  const play = () => {
    if (timer) { stop(); announce("Paused"); label(); return; }
    timer = setInterval(tick, PACE);
    label();
    look.select({ step: next === undefined ? steps[0] : step });
  };
  const toggle = button(timer ? "Pause" : "Play", play, { focus: "play", pressed: timer !== null, disabled: steps.length < 2 });
  const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  return row(
    still ? null : toggle, // nothing moves by itself where the reader asked for that
    button("‹ Previous", () => go(last), { focus: "previous", disabled: last === undefined }),
    button("Next ›", () => go(next), { focus: "next", disabled: next === undefined }),
    h("span", { class: "soft small" }, at < 0 ? "" : `${at + 1} of ${count(steps.length, "token")}`),
  );
};

const chips = (look, facts, step, go, probability) => {
  const part = (title, from, to) => (to <= from ? null : titled(title, tokens({
    tokens: facts.tokens.slice(from, to), start: from, selected: step, onSelect: go, range: [0, 1], label: title,
    values: times(to - from, (i) => probability(from + i)), numbers: look.option("numbers", "0") === "0",
    format: percent, focus: `trace-${from}` })));
  const masked = facts.kind === "masked";
  const extra = [];
  if (!masked && look.live && look.manifest.kind !== "pair") extra.push(buttons(look, { name: "new", label: "Tokens to write", fallback: "16", options: [0, 8, 16, 32, 64].map((n) => [n, n]) }));
  if (facts.branched) extra.push(button("Back to the model's own text", () => { stop(); look.select({ prefix: null, branch: null, step: null }); }, { focus: "unbranch" }));
  return h("div", { class: "chips" },
    part(masked ? "Each word masked in turn" : "Read", 0, masked ? facts.tokens.length : facts.first),
    masked ? null : part(facts.branched ? "Written, from another token on" : "Written", facts.first, facts.tokens.length),
    legend({ range: [0, 1], format: percent, name: h("span", {}, "probability") }),
    row(...extra));
};

const entropyLine = (panel, facts, all, step, go, look) => {
  const line = (name, values, sign) => ({ name, values: facts.scored.map((scored, i) => (scored ? sign * values[i] : null)) });
  const series = [line("entropy", all.entropy, 1), line("surprise", all.logprobs, -1)];
  const every = Math.ceil(facts.tokens.length / 12);
  return titled("Entropy and surprise", note(look.notes.entropy),
    chart({ series, x: { label: "position", ticks: times(Math.ceil(facts.tokens.length / every), (n) => [n * every, n * every]) },
      y: { label: "nats", range: [0, Math.max(1e-6, ...series.flatMap((each) => each.values).filter(Number.isFinite))] },
      mark: step, width: roomOf(panel, 960), height: 200, onSelect: go, label: "Entropy of each choice and surprise of each token" }));
};

/** How long each token took; the first one has the prompt in it. */
const latency = (panel, all, step) => {
  const known = all.times.filter(Number.isFinite);
  return known.length < 2 ? "" : titled("Milliseconds a token", chart({ series: [{ values: all.times }], x: { label: "position" }, y: { label: "ms", range: [0, Math.max(...known)] },
    mark: step, width: roomOf(panel, 960), height: 160, label: "Time that each written token took" }));
};

/** The tokens that could have come at one step, under the model's own numbers and under the settings of the sliders. */
const alternatives = (look, { facts, arrays }, step, probability) => {
  const width = arrays.top_ids.shape[1];
  const ids = rowOf(arrays.top_ids, step), logprobs = rowOf(arrays.top_logprobs, step);
  const { id: own, text } = facts.tokens[step];
  const option = (name, fallback) => Number(look.option(name, fallback));
  const settings = { temperature: option("temperature", 1), topK: Math.min(width, option("top_k", 0)), topP: option("top_p", 1), whole: width >= facts.vocabulary };
  const others = Array.from(ids.subarray(0, LISTED));
  const status = h("p", { class: "soft small", role: "status" });
  const cells = others.map((id) => ({ figure: h("span", { data: { id } }), bar: h("span", { class: "under", "aria-hidden": "true" }) }));

  const apply = () => {
    const off = facts.temperatures.map((t) => -Math.abs(t - settings.temperature));
    const nearest = best(off);
    const { probabilities, exact } = renormalise(logprobs, arrays.partition.data[step * off.length + nearest], { ...settings, temperature: facts.temperatures[nearest] });
    const most = Math.max(...probabilities.slice(0, LISTED), 1e-12); // bars compare: the longest is the best one
    cells.forEach(({ figure, bar }, i) => {
      const p = probabilities[i];
      figure.textContent = p > 0 ? percent(p) : "not allowed";
      figure.dataset.value = p;
      bar.style.width = `${Math.round((p / most) * 96)}px`;
    });
    replace(status, !exact ? `Tokens beyond the ${width} most probable may come too, so these are upper bounds.`
      : settings.topK > 0 || settings.topP < 1 ? `${count(probabilities.filter((p) => p > 0).length, "token")} may come.`
        : `All ${whole(facts.vocabulary)} tokens may come; the ${width} most probable are here.`);
  };
  const moved = (name) => (value) => { settings[name] = value; apply(); };
  const decimals = (value) => value.toFixed(2);
  const sliders = row(
    slider(look, { name: "temperature", label: "Temperature", min: 0.1, max: 2, step: 0.05, fallback: 1, format: decimals, onInput: moved("temperature") }),
    slider(look, { name: "top_k", label: "Top-k", min: 0, max: width, fallback: 0, format: (v) => v || "off", onInput: moved("topK") }),
    slider(look, { name: "top_p", label: "Top-p", min: 0.05, max: 1, step: 0.05, fallback: 1, format: (v) => (v < 1 ? decimals(v) : "off"), onInput: moved("topP") }));
  const branches = facts.branches && look.live && step >= facts.first;
  const branch = (id) => {
    stop();
    const prefix = facts.tokens.slice(facts.first, step).map((token) => token.id).join(",");
    look.select({ prefix: prefix || null, branch: id, step });
  };
  const name = (id) => facts.names[id] ?? `#${id}`;
  apply();
  return titled(`What could stand in place of ${quoted(text)}`, sliders,
    table(`Alternatives to ${quoted(text)}`, ["Token", "Model", "These settings", branches && "Go on from it"], others.map((id, i) => [
      h("span", { class: id === own ? "mono" : "mono other" }, visible(name(id)), id === own ? h("span", { class: "soft" }, " ← came") : null),
      percent(Math.exp(logprobs[i])), [cells[i].figure, cells[i].bar],
      branches && (id === own ? "" : button("Branch here", () => branch(id), { label: `Branch here with ${quoted(name(id))}`, focus: `branch-${id}` }))]), { numbers: [1, 2] }), status,
    others.includes(own) ? null : note(`${quoted(text)} came with ${probability} and is further down.`),
    note(why(look, facts, step, branches)), attention(look, facts, step));
};

const why = (look, facts, step, branches) => {
  if (branches || facts.kind === "masked") return "";
  if (!look.live) return look.notes.still;
  return step < facts.first ? look.notes.read : "";
};

/** A way from a token to the attention of the position that predicted it. */
const attention = (look, facts, step) => {
  const stack = look.manifest.kind === "pair" ? "decoder" : "";
  const site = look.manifest.sites.findLast((each) => each.stack === stack && each.kind === "self");
  const query = facts.kind === "masked" ? step : step - 1;
  const there = look.manifest.views.some((view) => view.name === "map" && view.applies);
  if (!site || !there || query < 0 || query >= look.tokens(site.queries).length || facts.branched) return null;
  return row(button("Attention of the position that predicted it", () => { stop(); look.select({ view: "map", site: site.index, query }); }, { focus: "attention" }));
};

const trust = (look, facts, all) => {
  if (facts.kind === "masked") return look.notes.alone;
  const times = Array.from(all.times).filter(Number.isFinite);
  const rest = times.slice(1);
  const speed = times.length ? ` First token ${number(times[0])} ms${rest.length ? `, then ${number(sum(rest) / rest.length)} ms each` : ""}.` : "";
  const ended = { eos: " It ended by itself.", length: " It stopped at the length asked for.", stop: " It met a stop." }[facts.reason] ?? "";
  if (!facts.written) return "Nothing was written: these tokens were given.";
  return `${facts.trusted ? "✓" : "!"} Read again in one pass, its log-probabilities agree within ${number(facts.error)} (allowed ${number(facts.tolerance)}).${speed}${ended}`;
};
