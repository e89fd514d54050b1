// A walk through the page in about a minute: five stops at most, each one view and one sentence.
//
// startTour(look): a bar at the bottom with Back, Next and Skip; Esc ends it. Stops whose view does not apply are left out.

import { knob, row } from "look/controls";
import { announce, h, replace } from "look/element";

const MOST = 5;

export const startTour = (look) => {
  document.querySelector(".tour")?.remove();
  const stops = look.manifest.views.filter(({ applies, tour }) => applies && tour).sort((a, b) => a.tour[0] - b.tour[0]);
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
    const { name, tour: [, text] } = stops[at];
    look.select({ view: name });
    const next = knob(at + 1 < stops.length ? "Next" : "Done", () => go(at + 1), { class: "primary", focus: "tour-next" });
    replace(bar, h("p", {}, h("span", { class: "soft" }, `${at + 1} of ${stops.length} `), text),
      row(knob("Back", () => go(at - 1), { disabled: at === 0 }), next, knob("Skip", end, { class: "plain" })));
    next.focus();
    announce(text);
  };
  document.addEventListener("keydown", onKey, true);
  document.body.append(bar);
  go(0);
};
