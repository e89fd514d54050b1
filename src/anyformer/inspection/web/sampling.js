// Sampling settings applied to a distribution; see README.md.

import { sum } from "look/lists";

export const renormalise = (logprobs, partition, { temperature = 1, topK = 0, topP = 1, whole = false }) => {
  let shares = Array.from(logprobs, (value) => Math.exp(value / temperature - partition));
  if (topK > 0) {
    shares = shares.map((share, i) => (i < topK ? share : 0));
    const kept = sum(shares);
    shares = shares.map((share) => share / kept);
  }
  if (topP >= 1) return { probabilities: shares, exact: true };
  let reached = 0;
  const kept = shares.map((share) => {
    const before = reached;
    reached += share;
    return before < topP ? share : 0;
  });
  const exact = reached >= topP || topK > 0 || whole;
  const total = exact ? sum(kept) : topP;
  return { probabilities: kept.map((share) => share / total), exact };
};
