// Numbers and words as the page writes them.

const MINUS = "−";

/** 0.0412, 12.3, 1.2e-7, 41,200: three significant digits. */
export const number = (value, digits = 3) => {
  if (value === null || value === undefined) return "";
  if (Number.isNaN(value)) return "not a number";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : MINUS + "∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  let text;
  if (size < 1e-4 || size >= 1e7) text = size.toExponential(digits - 1).replace("e+", "e").replace("e-", "e" + MINUS);
  else if (Number(size.toPrecision(digits)) >= Math.min(1000, 10 ** digits)) text = whole(size);
  else text = size.toPrecision(digits).replace(/e.*$/, "");
  return (value < 0 ? MINUS : "") + text;
};

/** A number without zeros at its end, for the ticks of an axis: 0.05, 4, 1e-7. */
export const round = (value) => number(value).replace(/(\.\d*?)0+(?=$|e)/, "$1").replace(/\.(?=$|e)/, "");

/** 41.2 %. */
export const percent = (value, digits = 3) => (value === null || value === undefined ? "" : `${number(value * 100, digits)} %`);

/** A token with its spaces, tabs and line ends made visible. */
export const visible = (text) => {
  if (text === "") return "∅";
  return text.replace(/ /g, "·").replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/\r/g, "␍")
    .replace(/[\u0000-\u001f\u007f]/g, (c) => `\\x${c.charCodeAt(0).toString(16).padStart(2, "0")}`);
};

/** A token inside a sentence: quoted, cut to `most` characters. */
export const quoted = (text, most = 24) => `"${cut(text.trim() === "" ? visible(text) : text.trim(), most)}"`;

/** At most `most` characters, the rest as one ellipsis. */
export const cut = (text, most) => {
  const letters = [...text];
  return letters.length <= most ? text : letters.slice(0, most - 1).join("") + "…";
};

/** 41,200: a whole number. */
export const whole = (value) => Math.round(value).toLocaleString("en-US");

/** "+0.4"; nothing for a number that is missing. */
export const signed = (value) => (value === null || value === undefined ? "" : (value > 0 ? "+" : "") + number(value));

/** "1 head", "12 heads". */
export const count = (n, one, many = one + "s") => `${whole(n)} ${n === 1 ? one : many}`;
