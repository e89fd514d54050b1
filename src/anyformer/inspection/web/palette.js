// Colours of values; see README.md.

import { clamp } from "look/lists";

// What the pictures of Python are drawn with too (inspection/palette.py). Categories are Okabe and Ito's set without its yellow
// and black, darkened or lightened to 3:1 on the panel.
const { ramps: STOPS, categories: CATEGORIES, dashes: DASHES } = JSON.parse(document.getElementById("look-palette").textContent);

let forced = null;
/** Draw in this theme whatever the page shows (exports are light); null: as the page. */
export const force = (name) => { forced = name; };
export const theme = () => {
  if (forced) return forced;
  const chosen = document.documentElement.dataset.theme;
  return chosen || (window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
};

const parse = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const made = new Map();

export const ramp = (sides = "one") => {
  const name = `${theme()} ${sides}`;
  if (!made.has(name)) {
    const stops = STOPS[theme()][sides].map(parse);
    const table = new Uint8Array(256 * 3);
    for (let i = 0; i < 256; i++) {
      const at = (i / 255) * (stops.length - 1);
      const low = Math.min(Math.floor(at), stops.length - 2);
      for (let c = 0; c < 3; c++) table[i * 3 + c] = Math.round(stops[low][c] + (at - low) * (stops[low + 1][c] - stops[low][c]));
    }
    made.set(name, table);
  }
  return made.get(name);
};

const entry = (share, sides) => {
  const i = clamp(Math.round(share * 255), 0, 255) * 3;
  return Array.from(ramp(sides).subarray(i, i + 3));
};

export const colour = (share, sides) => `rgb(${entry(share, sides).join(", ")})`;

export const onColour = (share, sides) => {
  const [r, g, b] = entry(share, sides).map((c) => c / 255).map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff"; // one of the two always has 4.5:1
};

export const place = (value, low, high, scale = "linear") => {
  if (!(high > low) || Number.isNaN(value)) return 0;
  const share = clamp((value - low) / (high - low), 0, 1);
  if (scale === "sqrt") return Math.sqrt(share);
  if (scale === "log") return Math.max(0, 1 + Math.log10(Math.max(share, 1e-4)) / 4); // four decades
  return share;
};

export const category = (i) => ({ colour: CATEGORIES[theme()][i % 8], dash: DASHES[i % 8] });
