// A walk through the page in about a minute: five stops at most, each one view and one sentence.
//
// startTour(look): a bar at the bottom with Back, Next and Skip; Esc ends it. Stops whose view does not apply are left out.

import { knob, row } from "look/controls";
import { h, replace } from "look/element";

const STOPS = [
  ["map", "The map. Each row is a token and shows where one head reads. Click a cell; the arrow keys move it."],
  ["heads", "Every head at a glance. Sort them by what they do, and open one that looks interesting."],
  ["steps", "Step by step. The numbers behind one row, from the scores to the output. Change one and watch the rest."],
  ["cross", "Cross-attention. Which part of the source each written word looks at."],
  ["image", "The image. Where a patch, or the class token, looks."],
  ["table", "The table. Which columns the answer looks at, beside what happens without them."],
  ["lens", "The lens. What the model would answer after each layer."],
  ["remove", "Remove. Attention shows where information was read, not why: take a head away and see what changes."],
];
const MOST = 5;

export const startTour = (look) => {
  document.querySelector(".tour")?.remove();
  const stops = STOPS.filter(([view]) => look.manifest.views.some(({ name, applies }) => applies && name === view));
  while (stops.length > MOST) stops.splice(stops.length - 2, 1); // the last stop is the one to remember
  if (!stops.length) return;
  let at = 0;
  const before = document.activeElement;
  const bar = h("aside", { class: "tour", "aria-label": "Tour" });
  const end = () => { bar.remove(); document.removeEventListener("keydown", onKey, true); before?.focus?.(); };
  const onKey = (event) => { if (event.key === "Escape" && !document.querySelector("dialog[open]")) { event.preventDefault(); event.stopPropagation(); end(); } };
  const go = (to) => {
    if (to >= stops.length) { end(); return; }
    at = to;
    const [view, text] = stops[at];
    look.select({ view });
    const next = knob(at + 1 < stops.length ? "Next" : "Done", () => go(at + 1), { class: "primary", focus: "tour-next" });
    replace(bar, h("p", {}, h("span", { class: "soft" }, `${at + 1} of ${stops.length} `), text),
      row(knob("Back", () => go(at - 1), { disabled: at === 0 }), next, knob("Skip", end, { class: "plain" })));
    next.focus();
    look.announce(text);
  };
  document.addEventListener("keydown", onKey, true);
  document.body.append(bar);
  go(0);
};
