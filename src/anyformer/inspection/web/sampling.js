// What sampling settings make of a distribution, without running the model again:
//
//   renormalise(logprobs, partition, {temperature, topK, topP, whole}) -> {probabilities, exact}
//
// logprobs: the most probable tokens, best first. partition: log sum over the whole vocabulary of p ** (1 / temperature),
// so that a temperature is exact though few tokens are here. Order: temperature, top-k, top-p, as in generation; topK 0
// and topP 1 change nothing. `whole`: the tokens here are all there are. `exact` is false where tokens that are not here
// may come too: their sum is then not known, and topP stands for it.

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
