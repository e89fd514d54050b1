// Small things that every picture counts with.

/** The value, or the bound that it has passed. */
export const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

/** A whole number of an option, as a place in a list of `length`; what is no whole number is the fallback. */
export const placeIn = (value, length, fallback = 0) => clamp(Number.isInteger(Number(value)) ? Number(value) : fallback, 0, length - 1);

/** [make(0), make(1), ... make(count - 1)] */
export const times = (count, make) => Array.from({ length: count }, (_, i) => make(i));

export const sum = (values) => values.reduce((a, b) => a + b, 0);

/** Where the largest number stands. */
export const best = (values) => values.reduce((top, value, i) => (value > values[top] ? i : top), 0);

/** Row i of a matrix {data, shape: [rows, columns]}. */
export const rowOf = ({ data, shape }, i) => data.subarray(i * shape[1], (i + 1) * shape[1]);
