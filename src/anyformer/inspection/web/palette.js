// Colours of numbers. A ramp has 256 entries; each theme has its own, starting at the panel's background.
//
//   theme()                          "light" | "dark", as the page is drawn now
//   ramp("one" | "two")              Uint8Array (256*3): one-sided from the background, or two-sided about the middle
//   colour(0.3, "one")               "rgb(...)" of a number in 0..1
//   onColour(0.3, "one")             the text colour that is readable on it
//   place(value, low, high, scale)   value -> 0..1 by "linear" | "sqrt" | "log"
//   CATEGORIES, category(i)          eight colours told apart by colour-blind readers, with a dash pattern each

import { clamp } from "look/lists";

const STOPS = {
  light: {
    one: ["#ffffff", "#e2ebf6", "#b3cde8", "#76a5d4", "#3f78b8", "#214f92", "#142f66", "#0a173a"],
    two: ["#0b3c8c", "#3f78b8", "#a9c6e6", "#ffffff", "#f3c79b", "#d07a2d", "#8a4200"],
  },
  dark: {
    one: ["#181b1f", "#1c2f45", "#1f4a6b", "#25698a", "#3a8c9b", "#6db3a2", "#b5d6a8", "#fbf3c4"],
    two: ["#9cc7ff", "#4c8ad6", "#274a74", "#181b1f", "#70431b", "#d0803a", "#ffc998"],
  },
};

// Okabe and Ito's set without its yellow and black, darkened or lightened to 3:1 on the panel.
export const CATEGORIES = {
  light: ["#0072b2", "#b34f00", "#007a5a", "#a1497a", "#1f7fb5", "#8a6a00", "#5d636c", "#6a3fb5"],
  dark: ["#56b4e9", "#ff9c4a", "#3fd0a4", "#e79bc4", "#9fd3ff", "#f0d060", "#b9bfc8", "#bfa3ff"],
};
export const DASHES = ["", "6 3", "2 3", "8 3 2 3", "1 3", "10 4", "4 2 1 2", "12 3"];

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
